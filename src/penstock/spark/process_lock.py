"""A lock file for one process at a time, which names its holder.

It is a kernel lock, so it ends with its process in any case. The text in the file is for people. It does not know what
it protects: `busy` makes the error for other processes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

# `lock_holder` takes the lock for a moment, too.
ATTEMPTS = 5
PAUSE_S = 0.02

_SOMEBODY = "another process"


class ProcessLock:
    """`purpose`: the holder's activity, shown to other processes. `busy` gets the holder's name."""

    def __init__(self, path: Path, busy: Callable[[str], Exception], purpose: str = "") -> None:
        self._path = path
        self._busy = busy
        self._purpose = purpose
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _taken(file):
            holder = _name_in(file)
            os.close(file)
            raise self._busy(holder)
        os.ftruncate(file, 0)
        purpose = f" ({self._purpose})" if self._purpose else ""
        os.write(file, f"process {os.getpid()}{purpose}\n".encode())
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


def lock_holder(path: Path) -> str | None:
    """The present holder of the lock, or None."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _name_in(file)
    finally:
        os.close(file)
    return None


def _taken(file: int) -> bool:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S if attempt + 1 < ATTEMPTS else 0)
        else:
            return True
    return False


def _name_in(file: int) -> str:
    return os.read(file, 200).decode(errors="replace").strip() or _SOMEBODY
