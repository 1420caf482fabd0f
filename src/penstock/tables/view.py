"""A version of a table, to be read. It stays what it is while the table changes, until the version expires.

Reading is delta-rs's: files are skipped by the limits that the log has of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.tables.schema import ArrowSchema


class View:
    def __init__(self, table: Path, version: int, schema: ArrowSchema) -> None:
        self._table = table
        self.version = version
        self.schema = schema

    def dataset(self) -> Any:
        """A `pyarrow.dataset.Dataset`: for DuckDB, pandas, filters and scans."""
        from deltalake import DeltaTable
        from pyarrow import fs

        place = fs.SubTreeFileSystem(str(self._table.absolute()), fs.LocalFileSystem())
        return DeltaTable(str(self._table), version=self.version).to_pyarrow_dataset(
            filesystem=place, schema=self.schema
        )

    def arrow(self) -> Any:
        """All rows as a `pyarrow.Table`."""
        return self.dataset().to_table()
