"""Where a job keeps what it must remember between runs: a directory of its own, found again by what it does.

$XDG_STATE_HOME/penstock/jobs/<kind>-<digest of the identity>/     (~/.local/state/penstock/jobs/...)
    checkpoint/     Spark's
    job.json        the identity, and what the job writes to
    spark.log       what Spark and its workers print
    lock            held while the job runs

The identity is what makes it this job and no other: clusters by their ids, not by the addresses that happen to lead
there. A job whose arguments changed a little is another one, and would begin anew: all records would be sent again. So
one that writes where another does already is refused, unless it is told to have a directory of its own.
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
    """What it writes to."""
    directory: Path
    is_chosen: bool
    """By the user, who may have several jobs write to one target."""

    @classmethod
    def of(
        cls, kind: str, identity: Mapping[str, object], targets: tuple[str, ...], directory: Path | None = None
    ) -> JobPlace:
        """`directory`: where the user wants it instead."""
        found = directory or state_directory() / f"{kind}-{_digest(kind, identity)}"
        return cls(kind, identity, targets, found.absolute(), directory is not None)

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

    def make(self, is_under_way: Callable[[Path], bool] = has_planned) -> None:
        """Raises JobError when it cannot be, or belongs to another job; WrongJob when another that writes to the same
        target is under way, which its directory tells."""
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
            raise JobError(f"{self.directory} cannot keep the state of this job: {error}") from None
        if known != json.loads(json.dumps(described)):
            raise JobError(f"{self.directory} is the checkpoint of another job ({path} says which): take another")

    def _refuse_another(self, is_under_way: Callable[[Path], bool]) -> None:
        for path in sorted(self.directory.parent.glob(f"{self.kind}-*/{DESCRIPTION}")):
            try:
                other = json.loads(path.read_text(encoding="utf-8"))
                shared = [target for target in self.targets if target in other["targets"]]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half written: nothing was done with it yet
            if shared and is_under_way(path.parent):
                raise WrongJob(
                    f"{shared[0]} is written by another {self.kind} job: {_differences(other, self.identity)}. Nothing "
                    f"was done, since this one would begin anew. Call it as before to go on; give --checkpoint DIR to "
                    f"have this one beside it, with a state of its own; or delete {path.parent} to give the other up"
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
    """Two runs of one job would do everything twice. Raises JobError when it runs already."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, lambda holder: JobError(f"{what} is in use by {holder}: wait for it, or end it"))
