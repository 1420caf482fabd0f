"""One run at a time: a lock file in the project that says who holds it.

The lock is the kernel's, so it ends with its process however that ends; the text in the file is for people.
"""

from __future__ import annotations

import fcntl
import os
import time
from types import TracebackType

from penstock.spark.pipeline.errors import ProjectBusy
from penstock.spark.pipeline.project import PipelineProject

# Whoever only asks who holds the lock has it for a moment.
ATTEMPTS = 5
PAUSE_S = 0.02


class ProjectLock:
    """`purpose`: what the holder does, for whoever finds the project locked."""

    def __init__(self, project: PipelineProject, purpose: str) -> None:
        self._path = project.lock_path
        self._name = project.name
        self._purpose = purpose
        self._file: int | None = None

    def __enter__(self) -> ProjectLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _taken(file):
            holder = os.read(file, 200).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise ProjectBusy(f"pipeline {self._name} is in use by {holder}: wait for it, or end it, before this")
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} ({self._purpose})\n".encode())
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


def _taken(file: int) -> bool:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S if attempt + 1 < ATTEMPTS else 0)
        else:
            return True
    return False


def holder_of(project: PipelineProject) -> str | None:
    """Who runs the project now; None when nobody does."""
    try:
        file = os.open(project.lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(file, 200).decode(errors="replace").strip() or "another process"
    finally:
        os.close(file)
    return None
