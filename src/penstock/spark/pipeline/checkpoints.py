"""What Spark left on disk of a pipeline: which flows there are, how far each has read, and which table it reads.

    _checkpoints/<catalog>/<database>/<table>/<flow>/<n>/    a flow into a table
    _checkpoints/<sink>/<flow>/<n>/                          a flow into a sink
        metadata                                             the query's id
        offsets/<batch>, commits/<batch>                     planned, and done
        sources/<i>/<batch>                                  files that a source of files has taken

A full refresh begins the next <n>; the highest is the one in use. Only reads, and needs no Spark: also while a run is
under way, so that a file that is gone or half written is a file that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.model.topic_partition import TopicPartition
from penstock.spark.offsets import SourceOffset


@dataclass(frozen=True, slots=True)
class FlowCheckpoint:
    flow: str
    target: tuple[str, ...]
    """(catalog, database, table) or (sink,)."""
    directory: Path
    """Of all its numbers."""

    @property
    def is_table(self) -> bool:
        return len(self.target) > 1

    @property
    def current(self) -> Path:
        return max((path for path in self.directory.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))

    def last_batch(self) -> int | None:
        """The last one that is done."""
        return max(_numbers(self.current / "commits"), default=None)

    def source_offsets(self) -> list[SourceOffset]:
        """Where each source of topics is after the last batch that is done; sources of other kinds are left out.

        Raises UnreadableOffset.
        """
        batch = self.last_batch()
        if batch is None:
            return []
        return list(_source_offsets(self.current / "offsets" / str(batch)))

    def positions(self) -> dict[TopicPartition, int]:
        """Of all its topics together; a partition that two sources read counts where it is further behind."""
        merged: dict[TopicPartition, int] = {}
        for offset in self.source_offsets():
            for tp, position in offset.positions.items():
                merged[tp] = min(position, merged.get(tp, position))
        return merged

    def topic_ids(self) -> dict[str, bytes]:
        """Of the topics it has read, by their names."""
        return {topic: topic_id for offset in self.source_offsets() for topic, topic_id in offset.topic_ids.items()}

    def groups(self) -> list[str]:
        return [offset.group for offset in self.source_offsets()]

    def reads(self, table_directory: Path) -> bool:
        """Whether files of this directory have been taken by one of its sources."""
        wanted = table_directory.resolve()
        return any(wanted in path.resolve().parents for path in self._taken_files())

    def _taken_files(self) -> Iterator[Path]:
        for log in sorted(self.current.glob("sources/*/[0-9]*")):
            for line in _lines(log):
                entry = _json(line)
                if entry is not None and "path" in entry:
                    yield Path(unquote(urlsplit(str(entry["path"])).path))


def flow_checkpoints(root: Path) -> list[FlowCheckpoint]:
    """All of them under `_checkpoints`, by target and flow."""
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
        if entry is not None and "topics" in entry:  # else Spark's own, or the offset of another kind of source
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
