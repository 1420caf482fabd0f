"""Data files that are on disk and flushed, and that no version names yet: written by one process, committed by another.

The workers of a query stage their rows. Then one process adds what all of them have staged, as one version. Staged
files that nobody adds are deleted when old versions expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.tables.actions import AddFile
from penstock.tables.conform import Rows, batches_of, conforming
from penstock.tables.errors import CommitConflict
from penstock.tables.files import TARGET_BYTES, FileSet, data_path
from penstock.tables.schema import ArrowSchema


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Goes from process to process by pickle."""

    schema: ArrowSchema
    partition_by: tuple[str, ...]
    files: tuple[AddFile, ...] = ()
    rows: int = 0

    def with_all(self, others: Iterable[StagedRows]) -> StagedRows:
        """With the files of others that have the same schema."""
        parts = [self, *others]
        if any(part.schema != self.schema or part.partition_by != self.partition_by for part in parts):
            raise CommitConflict("the schema of the table was changed while rows were written: write them again")
        files = tuple(file for part in parts for file in part.files)
        return StagedRows(self.schema, self.partition_by, files, sum(part.rows for part in parts))

    def discard(self, table: Path) -> None:
        """Best effort: what is left is deleted when old versions expire."""
        for file in self.files:
            with suppress(OSError):
                data_path(table, file).unlink(missing_ok=True)

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]


def stage(
    table: Path | str, schema: ArrowSchema, partition_by: Sequence[str], rows: Rows, target_bytes: int = TARGET_BYTES
) -> StagedRows:
    """Writes rows for a table with this schema. Raises SchemaMismatch, TableFailed."""
    files = FileSet(Path(table), schema, partition_by, target_bytes)
    try:
        files.add_all(conforming(batches_of(rows), schema))
        return StagedRows(schema, tuple(partition_by), tuple(files.finish()), files.rows)
    except BaseException:
        files.discard()
        raise


def check_fit(staged: StagedRows, schema: ArrowSchema, partition_by: Sequence[str]) -> None:
    """Whether files that were staged for an earlier schema fit the present one. Raises CommitConflict."""
    present = {field.name: field for field in schema}
    is_same = all(field.name in present and present[field.name].type == field.type for field in staged.schema)
    has_all = all(field.nullable or field.name in staged.schema.names for field in schema)
    if not is_same or not has_all or tuple(partition_by) != staged.partition_by:
        raise CommitConflict("the schema of the table was changed while rows were written: write them again")
