"""Streaming reads: the rows of a table, and then those that its versions add.

An offset in the checkpoint is a version, {"table": <id>, "path": <directory>, "version": 7}: all rows up to it have
been read. -1 is the offset of a query that has read nothing. A version that changed or removed rows cannot be read as
new rows: it is an error, or left out with skipChangeCommits, or with ignoreDeletes if it only removed rows. Compaction
and expiry are not such changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.model.errors import PenstockError
from penstock.spark.plain_errors import plain_errors
from penstock.spark.source.columns import arrow_schema
from penstock.spark.tables.options import LATEST, ReadOptions
from penstock.spark.tables.reading import TASK_BYTES, FileGroup, grouped, read_group
from penstock.tables import NoTable, Table
from penstock.tables.actions import AddFile

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TABLE, PATH, VERSION = "table", "path", "version"
NOTHING = -1


class TableStreamFailed(PenstockError):
    """A stream cannot be continued."""


@plain_errors
class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.parse(options)
        self._wanted = arrow_schema(schema)
        self._until: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        start = self._options.start
        if start is None:
            return self._offset(NOTHING)
        table = self._table()
        newest = NOTHING if table is None else table.version
        if start > newest:
            raise TableStreamFailed(
                f"option 'startingVersion' is {start}, and the newest version of {self._options.directory} is "
                f"{newest}: write a version that it has, or {LATEST}"
            )
        return self._offset(newest if start < 0 else start - 1)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        newest = self._until if self._until is not None else self._newest()
        return start if newest <= int(start[VERSION]) else self._offset(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = int(start[VERSION]), int(end[VERSION])
        table = self._table()
        if last <= first:
            return []
        if table is None or (end[TABLE] or table.id) != table.id or (start[TABLE] or table.id) != table.id:
            raise TableStreamFailed(
                f"{self._options.directory} is not the table that this query has read before: begin with a new "
                "checkpoint (in a pipeline: reset the flow)"
            )
        try:
            files = self._files(table, first, last)
        except NoTable as error:
            raise TableStreamFailed(
                f"{error}, and this query has read the table up to version {first} only: begin with a new checkpoint "
                "(in a pipeline: reset the flow), and keep versions for longer"
            ) from None
        return grouped(self._options.directory, table.schema, files, TASK_BYTES)

    def _files(self, table: Table, first: int, last: int) -> list[AddFile]:
        if first == NOTHING and self._options.start is None:
            return list(table.snapshot(last).files)
        files: list[AddFile] = []
        for added in table.additions(first, last):
            if not added.is_replacing:
                files += added.files
            elif not self._options.skips_changes and (added.files or not self._options.ignores_deletes):
                raise TableStreamFailed(
                    f"version {added.version} of {table.directory} changed or removed rows, and a stream can only "
                    "follow rows that are added: begin with a new checkpoint (in a pipeline: reset the flow), or set "
                    "the option skipChangeCommits=true to leave such versions out"
                )
        return files

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_group(partition, self._wanted) if isinstance(partition, FileGroup) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        pass  # the checkpoint has it

    def stop(self) -> None:
        pass  # nothing is open

    def _table(self) -> Table | None:
        try:
            return Table.open(self._options.directory)
        except NoTable:
            return None

    def _newest(self) -> int:
        table = self._table()
        return NOTHING if table is None else table.version

    def _offset(self, version: int) -> dict[str, Any]:
        table = None if version == NOTHING else self._table()
        told = None if table is None else table.id
        return {TABLE: told, PATH: str(self._options.directory), VERSION: version}
