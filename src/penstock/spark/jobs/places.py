"""Where a job keeps what it must remember between runs: a directory of its own, found again by its arguments.

$XDG_STATE_HOME/penstock/jobs/<kind>-<digest of the arguments>/     (~/.local/state/penstock/jobs/...)
    checkpoint/     Spark's
    job.json        the arguments, for people
    spark.log       what Spark and its workers print
    lock            held while the job runs
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from penstock.spark.jobs.errors import JobError


def state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()) / "penstock" / "jobs"


@dataclass(frozen=True, slots=True)
class JobPlace:
    kind: str
    identity: Mapping[str, object]
    """The arguments that make it this job and no other."""
    directory: Path

    @classmethod
    def of(cls, kind: str, identity: Mapping[str, object], directory: Path | None = None) -> JobPlace:
        """`directory`: where the user wants it instead."""
        directory = directory or state_directory() / f"{kind}-{_digest(kind, identity)}"
        return cls(kind, identity, directory.absolute())

    @property
    def group(self) -> str:
        """The consumer group that shows how far the job is."""
        return f"penstock-{self.kind}-{_digest(self.kind, self.identity)[:8]}"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def log_path(self) -> Path:
        return self.directory / "spark.log"

    def lock(self) -> JobLock:
        return JobLock(self.directory / "lock", f"{self.kind} job {self.directory}")

    def make(self) -> None:
        """Raises JobError when it cannot be, or belongs to another job."""
        described = {"kind": self.kind, **self.identity}
        path = self.directory / "job.json"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(json.dumps(described, indent=2), encoding="utf-8")
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise JobError(f"{self.directory} cannot keep the state of this job: {error}") from None
        if known != json.loads(json.dumps(described)):
            raise JobError(f"{self.directory} is the checkpoint of another job ({path} says which): take another")


def _digest(kind: str, identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps([kind, identity], sort_keys=True).encode()).hexdigest()[:12]


class JobLock:
    """Two runs of one job would do everything twice. Raises JobError when it runs already."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._file: int | None = None

    def __enter__(self) -> JobLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise JobError(f"{self._what} is in use by {holder}: wait for it, or end it") from None
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()}\n".encode())
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None
