"""Spark's checkpoints of a pipeline on disk: the flows, their positions, and the tables that they read.

    _checkpoints/<catalog>/<database>/<table>/<flow>/<n>/    a flow into a table
    _checkpoints/<sink>/<flow>/<n>/                          a flow into a sink
        metadata                                             the query's id
        offsets/<batch>, commits/<batch>                     planned and finished batches
        sources/<i>/<batch>                                  files that a file source has read

Lines of `offsets` are the positions of topics (`source.offsets`), or of tables in the open format
(`spark.tables.streaming`).

A full refresh begins the next <n>; the highest is in use. This module only reads, and needs no Spark. It also works
during a run, so a file that is missing or half written counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.spark.source.offsets import NO_GROUP, SourceOffset, UnreadableOffset


@dataclass(frozen=True, slots=True)
class FlowCheckpoint:
    flow: str
    target: tuple[str, ...]
    """(catalog, database, table) or (sink,)."""
    directory: Path
    """The directory of all its numbers."""

    @property
    def is_table(self) -> bool:
        return len(self.target) > 1

    @property
    def current(self) -> Path:
        return max((path for path in self.directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))

    def last_batch(self) -> int | None:
        """The last finished batch."""
        return max(_numbers(self.current / "commits"), default=None)

    def source_offsets(self) -> list[SourceOffset]:
        """The offset of each source of topics after the last finished batch. Other kinds of sources are left out.

        Raises UnreadableOffset.
        """
        batch = self.last_batch()
        if batch is None:
            return []
        return list(_source_offsets(self.current / "offsets" / str(batch)))

    def groups(self) -> dict[Path, set[str]]:
        """The groups that sources commit to by themselves, by the directory of each number."""
        found: dict[Path, set[str]] = {}
        for directory in self.directory.iterdir():
            batch = max(_numbers(directory / "offsets"), default=None)
            if batch is not None:
                with suppress(UnreadableOffset):  # also for the source, which says so
                    offsets = list(_source_offsets(directory / "offsets" / str(batch)))
                    found[directory] = {offset.group for offset in offsets} - {NO_GROUP}
        return found

    def reads(self, table_directory: Path) -> bool:
        """Whether one of its sources has read this table, or files of this directory."""
        wanted = table_directory.resolve()
        if self.version_read(table_directory) is not None:
            return True
        return any(wanted in path.resolve().parents for path in self._taken_files())

    def version_read(self, table_directory: Path) -> int | None:
        """The version up to which its sources have read a table in the open format; of the first batch, while it is
        not finished, the one that it reads. None if it does not read the table.
        """
        wanted = table_directory.resolve()
        offsets = self.current / "offsets"
        batch = self.last_batch()
        entries = [_json(line) for line in _lines(offsets / str(0 if batch is None else batch))]
        versions = [
            int(str(entry["version"]))
            for entry in entries
            if entry is not None and "path" in entry and Path(str(entry["path"])).resolve() == wanted
        ]
        return min(versions, default=None)

    def _taken_files(self) -> Iterator[Path]:
        for log in sorted(self.current.glob("sources/*/[0-9]*")):
            for line in _lines(log):
                entry = _json(line)
                if entry is not None and "path" in entry:
                    yield Path(unquote(urlsplit(str(entry["path"])).path))


def flow_checkpoints(root: Path) -> list[FlowCheckpoint]:
    """All checkpoints under `_checkpoints`, sorted by target and flow."""
    found = {path.parent.parent for path in root.glob("**/metadata") if path.parent.name.isdigit()}
    return [
        FlowCheckpoint(directory.name, directory.relative_to(root).parts[:-1], directory)
        for directory in sorted(found)
        if len(directory.relative_to(root).parts) > 1
    ]


def _numbers(directory: Path) -> Iterator[int]:
    if directory.is_dir():
        for path in directory.iterdir():
            if path.name.isdigit():
                yield int(path.name)


def _source_offsets(log: Path) -> Iterator[SourceOffset]:
    for line in _lines(log):
        entry = _json(line)
        if entry is not None and "topics" in entry:  # otherwise an entry of Spark's own, or of another kind of source
            yield SourceOffset.from_json(entry)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _json(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
