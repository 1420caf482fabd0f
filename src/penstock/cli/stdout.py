"""Errors of standard output: the reader has closed the pipe, or the device is full.

They look like any other OSError. The code that runs all commands distinguishes them.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.model.errors import PenstockError

BROKEN_PIPE = 141  # 128 + SIGPIPE, as in shells
_ERRNOS = frozenset((errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class OutputClosed(PenstockError):
    """The reader, such as `| head`, has closed the pipe: not a failure, and no message."""


class OutputFailed(PenstockError):
    pass


@contextmanager
def output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not _is_of_output(error):
            raise
        if error.errno == errno.EPIPE:
            raise OutputClosed("the output was closed") from error
        reason = (error.strerror or str(error)).lower()
        raise OutputFailed(f"cannot write the output: {reason}") from error


def flush() -> None:
    if sys.stdout is not None:
        with output_errors():
            sys.stdout.flush()


def give_up() -> None:
    """Sends the buffered output to /dev/null: the interpreter flushes again when it exits, and would fail again."""
    with suppress(AttributeError, io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_of_output(error: OSError) -> bool:
    """Flushes again: output that could not be written stays in the buffer and fails again."""
    if error.filename is not None or sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except OSError as again:
        return again.errno == error.errno
    return error.errno in _ERRNOS
