"""The contenders, each behind the same few calls.

A stream's position is committed with its rows, in the way that the format has for it: Delta's `txn` action, a property
of Iceberg's snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

METADATA_DIRECTORIES = frozenset(("_delta_log", "metadata"))
RETENTION_S = 0  # what compaction replaced goes at once, to measure what is left


class TableFormat(Protocol):
    def __init__(self, directory: Path) -> None: ...

    def create(self, schema: Any, partition_by: str | None = None) -> None: ...

    def append(self, rows: Any, stream: str, start: int, end: int) -> None: ...

    def position(self, stream: str) -> int | None:
        """From the table alone, opened anew."""

    def compact(self) -> None: ...

    def expire(self) -> None: ...

    def merge(self, rows: Any, key: str) -> None: ...

    def replace(self, rows: Any) -> None: ...

    def evolve(self, schema: Any) -> None: ...

    def arrow(self) -> Any:
        """All rows, by the library itself."""

    def readers(self) -> Mapping[str, Callable[[], int]]:
        """Number of rows as others read them."""


def sizes(directory: Path) -> dict[str, int]:
    """Files and bytes, of data and of metadata."""
    found = {"data_files": 0, "data_bytes": 0, "metadata_files": 0, "metadata_bytes": 0}
    for place, _, names in os.walk(directory):
        parts = Path(place).relative_to(directory).parts
        for name in names:
            is_data = name.endswith(".parquet") and not METADATA_DIRECTORIES & set(parts)
            kind = "data" if is_data else "metadata"
            found[f"{kind}_files"] += 1
            found[f"{kind}_bytes"] += (Path(place) / name).stat().st_size
    return found


class DeltaRs:
    """deltalake, with its defaults."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "table")
        self._table: Any = None

    def _open(self) -> Any:
        from deltalake import DeltaTable

        if self._table is None:
            self._table = DeltaTable(self._path)
        return self._table

    def create(self, schema: Any, partition_by: str | None = None) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable.create(self._path, schema, partition_by=partition_by)

    def append(self, rows: Any, stream: str, start: int, end: int) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        properties = CommitProperties(app_transactions=[Transaction(stream, end)])
        write_deltalake(self._open(), rows, mode="append", commit_properties=properties)

    def position(self, stream: str) -> int | None:
        from deltalake import DeltaTable

        found: int | None = DeltaTable(self._path).transaction_version(stream)
        return found

    def compact(self) -> None:
        self._open().optimize.compact(target_size=128 << 20)

    def expire(self) -> None:
        table = self._open()
        table.create_checkpoint()
        table.vacuum(retention_hours=RETENTION_S, enforce_retention_duration=False, dry_run=False)
        table.cleanup_metadata()

    def merge(self, rows: Any, key: str) -> None:
        merger = self._open().merge(rows, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def replace(self, rows: Any) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._open(), rows, mode="overwrite")

    def evolve(self, schema: Any) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._open(), schema.empty_table(), mode="append", schema_mode="merge")

    def arrow(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._path).to_pyarrow_table()

    def readers(self) -> Mapping[str, Callable[[], int]]:
        return delta_readers(self._path)


def delta_readers(path: str) -> dict[str, Callable[[], int]]:
    def polars() -> int:
        import polars as pl

        return int(pl.scan_delta(path).select(pl.len()).collect().item())

    def duckdb() -> int:
        import duckdb
        from deltalake import DeltaTable

        rows = DeltaTable(path).to_pyarrow_dataset()  # found by name in the query
        return int(duckdb.sql("select count(*) from rows").fetchall()[0][0]) if rows is not None else -1

    def pandas() -> int:
        from deltalake import DeltaTable

        return len(DeltaTable(path).to_pandas())

    return {"polars": polars, "duckdb": duckdb, "pandas": pandas}


class PyIceberg:
    """pyiceberg with an SQLite catalog. Old metadata files are deleted and manifests are merged: without these two
    settings both only grow."""

    NAME = "bench.rows"
    PROPERTIES = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "5",
        "commit.manifest-merge.enabled": "true",
        "write.parquet.compression-codec": "snappy",  # as the other
    }

    def __init__(self, directory: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        directory.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse"
        )
        self._positions: dict[str, str] = {}
        self._table: Any = None

    def _open(self) -> Any:
        if self._table is None:
            self._table = self._catalog.load_table(self.NAME)
        return self._table

    def create(self, schema: Any, partition_by: str | None = None) -> None:
        self._catalog.create_namespace_if_not_exists("bench")
        self._table = self._catalog.create_table(self.NAME, schema, properties=self.PROPERTIES)
        if partition_by is not None:
            with self._table.update_spec() as spec:
                spec.add_identity(partition_by)

    def append(self, rows: Any, stream: str, start: int, end: int) -> None:
        self._positions[f"penstock.{stream}"] = str(end)  # a snapshot must repeat those of all streams
        self._open().append(rows, snapshot_properties=self._positions)

    def position(self, stream: str) -> int | None:
        snapshot = self._catalog.load_table(self.NAME).current_snapshot()
        found = snapshot.summary[f"penstock.{stream}"] if snapshot is not None else None
        return None if found is None else int(found)

    def compact(self) -> None:
        """It has no compaction: the table is read and overwritten."""
        table = self._open()
        table.overwrite(table.scan().to_arrow(), snapshot_properties=self._positions)

    def expire(self) -> None:
        from datetime import datetime

        self._open().maintenance.expire_snapshots().older_than(datetime.now()).commit()

    def merge(self, rows: Any, key: str) -> None:
        self._open().upsert(rows, join_cols=[key], snapshot_properties=self._positions)

    def replace(self, rows: Any) -> None:
        self._open().overwrite(rows, snapshot_properties=self._positions)

    def evolve(self, schema: Any) -> None:
        with self._open().update_schema() as update:
            update.union_by_name(schema)

    def arrow(self) -> Any:
        return self._catalog.load_table(self.NAME).scan().to_arrow()

    def readers(self) -> Mapping[str, Callable[[], int]]:
        def polars() -> int:
            import polars as pl

            return int(pl.scan_iceberg(self._catalog.load_table(self.NAME)).select(pl.len()).collect().item())

        def duckdb() -> int:
            import duckdb

            rows: pa.Table = self.arrow()
            return int(duckdb.sql("select count(*) from rows").fetchall()[0][0]) if rows is not None else -1

        def pandas() -> int:
            return len(self._catalog.load_table(self.NAME).scan().to_pandas())

        return {"polars": polars, "duckdb": duckdb, "pandas": pandas}


class Penstock:
    """Tables of this repository: Delta, with their own writer. Everything is flushed to disk before it counts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "table"
        self._table: Any = None

    def create(self, schema: Any, partition_by: str | None = None) -> None:
        from penstock.tables import Table

        self._table = Table.create(self._path, schema, [] if partition_by is None else [partition_by])

    def append(self, rows: Any, stream: str, start: int, end: int) -> None:
        from penstock.tables import Span

        self._table.append(rows, {stream: Span(start, end)})

    def position(self, stream: str) -> int | None:
        from penstock.tables import Table

        return Table.open(self._path).positions.get(stream)

    def compact(self) -> None:
        self._table.compact(is_thorough=True)

    def expire(self) -> None:
        self._table.expire(timedelta(0))

    def merge(self, rows: Any, key: str) -> None:
        self._table.merge([key], rows)

    def replace(self, rows: Any) -> None:
        self._table.replace(rows)

    def evolve(self, schema: Any) -> None:
        self._table.evolve(schema)

    def arrow(self) -> Any:
        return self._table.at().arrow()

    def readers(self) -> Mapping[str, Callable[[], int]]:
        return delta_readers(str(self._path))


FORMATS: dict[str, type[TableFormat]] = {"delta-rs": DeltaRs, "pyiceberg": PyIceberg, "penstock": Penstock}
