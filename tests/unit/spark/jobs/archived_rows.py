"""Rows as the source hands them to an archive, and what is in an archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.spark.jobs.archives.manifest import Archive, Origin, StagedFile
from penstock.spark.jobs.archives.writing import WritePlan, stage
from penstock.spark.source.columns import COLUMNS, arrow_schema, source_schema

DAY_MS = 86_400_000
MIB = 1 << 20


def rows(offsets: Sequence[int], times_ms: Sequence[int], topic: str = "clicks", partition: int = 0) -> Any:
    """A batch whose keys, values and headers follow from the offset; every third has neither key nor headers."""
    columns: dict[str, list[Any]] = {
        "key": [None if offset % 3 == 0 else b"k%d" % offset for offset in offsets],
        "value": [None if offset % 5 == 0 else b"v%d" % offset for offset in offsets],
        "topic": [topic] * len(offsets),
        "partition": [partition] * len(offsets),
        "offset": list(offsets),
        "timestamp": [time_ms * 1000 for time_ms in times_ms],
        "timestampType": [0] * len(offsets),
        "headers": [
            None if offset % 3 == 0 else [{"key": "h", "value": b"%d" % offset}, {"key": "h", "value": None}]
            for offset in offsets
        ],
    }
    return pa.RecordBatch.from_pydict(
        {name: columns[name] for name in COLUMNS}, schema=arrow_schema(source_schema(include_headers=True))
    )


def staged(archive: Archive, *batches: Any, max_file_bytes: int = MIB) -> list[StagedFile]:
    return stage(batches, WritePlan(archive.staging, max_file_bytes, ends=archive.load().ends))


CLICKS = {"clicks": "id-1"}
ORIGINS = (Origin(CLICKS),)


def new_archive(directory: Path) -> Archive:
    archive = Archive(directory / "archive")
    archive.create(CLICKS, {})
    return archive


def globbed(archive: Archive) -> list[tuple[int, int]]:
    """(partition, offset) as a tool sees them that knows nothing of manifests."""
    found = ds.dataset(archive.directory, partitioning="hive", format="parquet")
    if not found.files:
        return []
    table = found.to_table(["partition", "offset"])
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
