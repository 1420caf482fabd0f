"""The log file for the output of the driver's JVM and its Python workers, which is bounded in size.

Their output is useless on a terminal. Error messages name the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG_LIMIT_BYTES = 64 << 20


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Processes that start meanwhile have the file as their standard output and error, for their whole life."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in saved:
            os.dup2(log, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)
        os.close(log)


def trim_log(path: Path) -> None:
    """Empties the file if it is too large. Writers continue with the same file."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            os.truncate(path, 0)
