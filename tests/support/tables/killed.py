"""A committer that is killed at each of its steps, one after the other.

    python -m support.tables.killed DIRECTORY WORK

The process imports everything and then forks. A child does the work and kills itself (SIGKILL) before its n-th call of
a function that touches the disk; another child looks at what is left, and prints it as one line of JSON. The next child
continues with the same table, until one gets through.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.tables import Span, Table, checkpoint, stage
from penstock.tables.reading import read_file
from support.tables.rows import EVENTS, STREAM, append, events

ROWS = 5
MAX_STEPS = 200


def append_some(directory: Path, checkpoint_interval: int = 1) -> None:
    table = Table.open_or_create(directory, EVENTS, properties={"delta.checkpointInterval": str(checkpoint_interval)})
    first = table.positions.get(STREAM, 0)
    append(table, first, first + ROWS)


def replace_all(directory: Path) -> None:
    table = Table.open_or_create(directory, EVENTS)
    table.replace(events(0, table.version + 1))


def maintain(directory: Path) -> None:
    append_some(directory, checkpoint_interval=1000)
    table = Table.open(directory)
    table.compact(is_thorough=True)
    table.expire(timedelta(0), unfinished_s=0)


def merge_some(directory: Path) -> None:
    """The rows of a window that moves: each merge adds a row behind it, and deletes the first."""
    table = Table.open_or_create(directory, EVENTS)
    at = table.positions.get(STREAM, 0)
    gone = events(at - 1, at).select(["id"]) if at else None
    table.merge(["id"], events(at, at + ROWS), gone, {STREAM: Span(at, at + 1)})


def commit_staged(directory: Path) -> None:
    """As a sink that repeats its last batch, which it does not know to be committed, and makes the next one."""
    table = Table.open_or_create(directory, EVENTS)
    batch = table.positions.get(STREAM, 0) // ROWS
    for number in (batch - 1, batch) if batch else (batch,):
        span = Span(number * ROWS, (number + 1) * ROWS)
        parts = [
            stage(directory, EVENTS, (), events(span.start, span.start + 2)),
            stage(directory, EVENTS, (), events(span.start + 2, span.end)),
        ]
        table.append(parts[0].with_all(parts[1:]), {STREAM: span})


WORK: dict[str, Callable[[Path], None]] = {
    "append": append_some,
    "replace": replace_all,
    "maintain": maintain,
    "merge": merge_some,
    "staged": commit_staged,
}


class Killer:
    """Counts calls, not those within others, and kills the process at one of them."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._count = 0
        self._is_within = False

    def watch(self, owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            if self._is_within:
                return plain(*args, **options)
            if self._count == self._step:
                os.kill(os.getpid(), signal.SIGKILL)
            self._count += 1
            self._is_within = True
            try:
                return plain(*args, **options)
            finally:
                self._is_within = False

        setattr(owner, name, watched)


def work(directory: Path, name: str, step: int) -> None:
    killer = Killer(step)
    for function in ("fsync", "link", "unlink", "mkdir", "replace"):
        killer.watch(os, function)
    killer.watch(pq.ParquetWriter, "close")
    killer.watch(checkpoint, "_copy")  # links one entry more after each kill
    killer.watch(DeltaTable, "create_checkpoint")
    WORK[name](directory)


def look(directory: Path) -> None:
    found: dict[str, Any] = {"version": -1, "position": 0, "ids": []}
    if (directory / "_delta_log" / f"{0:020d}.json").exists() or list(
        directory.glob("_delta_log/*.checkpoint.parquet")
    ):
        table = Table.open(directory)
        files = table._state.files.values()
        batches = [batch for file in files for batch in read_file(directory, file, EVENTS, ["id"])]
        ids = sorted(one for batch in batches for one in batch.column("id").to_pylist())
        found = {"version": table.version, "position": table.positions.get(STREAM, 0), "ids": ids}
    sys.stdout.write(json.dumps(found) + "\n")


def forked(do: Callable[[], None]) -> int:
    """Returns the child's wait status."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        do()
        sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def main() -> None:
    directory, name = Path(sys.argv[1]), sys.argv[2]
    for step in range(MAX_STEPS):
        status = forked(lambda step=step: work(directory, name, step))  # type: ignore[misc]
        if forked(lambda: look(directory)):
            raise SystemExit(f"step {step}: the table cannot be read")
        if status == 0:
            return
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"step {step}: failed before it was killed")
    raise SystemExit(f"not through after {MAX_STEPS} steps")


if __name__ == "__main__":
    main()
