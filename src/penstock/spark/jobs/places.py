"""The directory of a job's state between runs, which is found by the job's identity.

$XDG_STATE_HOME/penstock/jobs/<kind>-<digest of the identity>/     (~/.local/state/penstock/jobs/...)
    checkpoint/     Spark's checkpoint
    job.json        the identity, and the targets of the job
    spark.log       the output of Spark and its workers
    lock            held while the job runs

The identity distinguishes jobs: it has clusters by id, not by address. A job with slightly different arguments is
another job and would begin again: all records would be sent again. So a job with the same target as another unfinished
job is refused, unless the user gives it its own directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.process_lock import ProcessLock

DESCRIPTION = "job.json"


def state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()) / "penstock" / "jobs"


def has_planned(directory: Path) -> bool:
    """Whether a query with this job's checkpoint has ever begun a batch."""
    return (directory / "checkpoint" / "offsets").is_dir()


@dataclass(frozen=True, slots=True)
class JobPlace:
    kind: str
    identity: Mapping[str, object]
    targets: tuple[str, ...]
    """The targets of the job."""
    directory: Path
    is_chosen: bool
    """The user chose the directory, and may have several jobs with one target."""

    @classmethod
    def of(
        cls, kind: str, identity: Mapping[str, object], targets: tuple[str, ...], directory: Path | None = None
    ) -> JobPlace:
        """`directory`: the user's choice, if any."""
        found = directory or state_directory() / f"{kind}-{_digest(kind, identity)}"
        return cls(kind, identity, targets, found.absolute(), directory is not None)

    @property
    def group(self) -> str:
        """The consumer group that shows the job's progress."""
        return f"penstock-{self.kind}-{_digest(self.kind, self.identity)[:8]}"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def log_path(self) -> Path:
        return self.directory / "spark.log"

    def lock(self) -> JobLock:
        return JobLock(self.directory / "lock", f"{self.kind} job {self.directory}")

    def make(self, is_under_way: Callable[[Path], bool] = has_planned) -> None:
        """Creates the directory. Raises JobError if that fails or it belongs to another job; WrongJob if another
        unfinished job has the same target."""
        described = {"kind": self.kind, **self.identity, "targets": list(self.targets)}
        path = self.directory / DESCRIPTION
        if not path.exists() and not self.is_chosen:
            self._refuse_another(is_under_way)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(json.dumps(described, indent=2), encoding="utf-8")
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise JobError(
                f"{self.directory} cannot hold the state of this job: {reason}. Choose another with --checkpoint"
            ) from None
        if known != json.loads(json.dumps(described)):
            raise JobError(f"{self.directory} is the checkpoint of another job (see {path}): choose another")

    def _refuse_another(self, is_under_way: Callable[[Path], bool]) -> None:
        for path in sorted(self.directory.parent.glob(f"{self.kind}-*/{DESCRIPTION}")):
            try:
                other = json.loads(path.read_text(encoding="utf-8"))
                shared = [target for target in self.targets if target in other["targets"]]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half written: not used yet
            if shared and is_under_way(path.parent):
                raise WrongJob(
                    f"{shared[0]} is written by another {self.kind} job: {_differences(other, self.identity)}. This "
                    "job would start from the beginning, so nothing was done. Use the same arguments as before to "
                    f"resume; or give --checkpoint DIR for a second job with its own state; or delete {path.parent} to "
                    "drop the other"
                )


def _differences(other: Mapping[str, object], mine: Mapping[str, object]) -> str:
    wanted: dict[str, object] = json.loads(json.dumps(mine))
    found = [
        f"its {name} is {json.dumps(other.get(name))}, not {json.dumps(value)}"
        for name, value in wanted.items()
        if other.get(name) != value
    ]
    return ", ".join(found)


def _digest(kind: str, identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps([kind, identity], sort_keys=True).encode()).hexdigest()[:12]


class JobLock(ProcessLock):
    """Prevents two runs of one job, which would do everything twice. Raises JobError if the job is running."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, lambda holder: JobError(f"{what} is in use by {holder}: wait for it, or end it"))
