"""Tables read by Spark, without Spark: its readers are called as Spark calls them."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.datasource import LessThanOrEqual as AtMost
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.options.known import InvalidOption
from penstock.spark.tables.datasource import TableDataSource
from penstock.spark.tables.reading import TableReader
from penstock.spark.tables.streaming import TableStreamFailed, TableStreamReader
from penstock.tables import NoTable, SchemaMismatch, Table
from support.tables.rows import EVENTS, append, events

ALL = from_arrow_schema(EVENTS)
ID = StructType([StructField("id", LongType())])


def rows_of(reader: Any, parts: Any) -> list[int]:
    """As Spark: the reader and its parts are pickled to the tasks."""
    reader, parts = pickle.loads(pickle.dumps((reader, list(parts))))
    return [one for part in parts for batch in reader.read(part) for one in batch.column("id").to_pylist()]


def read(directory: Path, schema: StructType = ALL, **options: str) -> list[int]:
    reader = TableReader({"path": str(directory), **options}, schema)
    return rows_of(reader, reader.partitions())


def table_of(directory: Path, count: int = 3, **options: Any) -> Table:
    table = Table.create(directory, EVENTS, **options)
    for first in range(0, count * 10, 10):
        append(table, first, first + 10)
    return table


def test_rows_come_as_spark_wants_them(tmp_path: Path) -> None:
    table_of(tmp_path, partition_by=["day"])
    assert TableDataSource({"path": str(tmp_path)}).schema() == ALL
    reader = TableReader({"path": str(tmp_path)}, ALL)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = pa.Table.from_batches(batches).sort_by("id")
    assert found.equals(events(0, 30))


def test_names_in_other_letters(tmp_path: Path) -> None:
    table_of(tmp_path, 1)
    reader = TableReader({"path": str(tmp_path)}, StructType([StructField("ID", LongType())]))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert pa.Table.from_batches(batches).column("ID").to_pylist() == list(range(10))


def test_only_the_wanted_columns(tmp_path: Path) -> None:
    table_of(tmp_path)
    wanted = StructType([StructField("more", StringType()), StructField("id", LongType())])
    reader = TableReader({"path": str(tmp_path)}, wanted)
    batch = next(iter(reader.read(reader.partitions()[0])))
    assert batch.slice(0, 1).to_pylist() == [{"more": None, "id": 0}]
    wrong = TableReader({"path": str(tmp_path)}, StructType([StructField("name", LongType())]))
    with pytest.raises(SchemaMismatch, match="column name cannot be read as int64"):
        list(wrong.read(wrong.partitions()[0]))


def test_versions_and_times(tmp_path: Path) -> None:
    table_of(tmp_path)
    assert read(tmp_path, versionAsOf="1") == list(range(10))
    now = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    assert read(tmp_path, timestampAsOf=now) == list(range(30))
    with pytest.raises(NoTable, match="has versions 0 to 3, not 7"):
        read(tmp_path, versionAsOf="7")
    with pytest.raises(InvalidOption, match="give one of them"):
        read(tmp_path, versionAsOf="1", timestampAsOf=now)
    with pytest.raises(InvalidOption, match="write a time as 2026"):
        read(tmp_path, timestampAsOf="yesterday")


def test_a_table_that_is_not_there_yet(tmp_path: Path) -> None:
    with pytest.raises(NoTable, match="there is no table"):
        TableDataSource({"path": str(tmp_path / "none")}).schema()
    assert read(tmp_path / "none") == []  # the columns are known, so somebody expects it


@pytest.mark.parametrize(
    ("pushed", "ids"),
    [
        (GreaterThan(("id",), 19), range(20, 30)),
        (GreaterThanOrEqual(("id",), 19), range(10, 30)),
        (LessThan(("id",), 10), range(10)),
        (AtMost(("id",), 10), range(20)),
        (EqualTo(("name",), "event 7"), range(10)),
        (EqualTo(("name",), "zzz"), ()),
        (In(("id",), (3, 25)), (*range(10), *range(20, 30))),
        (EqualTo(("at",), datetime(2026, 2, 1, 12, tzinfo=UTC)), range(10, 20)),
        (GreaterThan(("day",), date(2026, 2, 1)), range(20, 30)),
        (EqualTo(("id",), None), range(30)),
        (IsNotNull(("id",)), range(30)),
        (EqualTo(("other",), 1), range(30)),
    ],
)
def test_files_that_filters_exclude_are_not_read(tmp_path: Path, pushed: Filter, ids: Any) -> None:
    table_of(tmp_path)
    reader = TableReader({"path": str(tmp_path), "filterPushdown": "true"}, ALL)
    assert list(reader.pushFilters([pushed])) == [pushed]  # Spark applies it to the rows
    assert rows_of(reader, reader.partitions()) == list(ids)


def test_partitions_that_filters_exclude_are_not_read(tmp_path: Path) -> None:
    table_of(tmp_path, partition_by=["day"])
    reader = TableReader({"path": str(tmp_path), "filterPushdown": "true"}, ALL)
    reader.pushFilters([EqualTo(("day",), date(2026, 1, 31))])
    assert rows_of(reader, reader.partitions()) == [0, 1]


def test_filters_are_taken_only_on_demand(tmp_path: Path) -> None:
    """Spark keeps what was planned with them for other queries on the same DataFrame."""
    table_of(tmp_path)
    reader = TableReader({"path": str(tmp_path)}, ALL)
    assert list(reader.pushFilters([LessThan(("id",), 10)])) == [LessThan(("id",), 10)]
    assert rows_of(reader, reader.partitions()) == list(range(30))


# -- streams ------------------------------------------------------------------------------


class Query:
    """A streaming query with a checkpoint."""

    def __init__(self, directory: Path, **options: str) -> None:
        self._options = {"path": str(directory), **options}
        self.offset: dict[str, Any] | None = None

    def run(self) -> list[int]:
        """As Spark with Trigger.AvailableNow, in a new process."""
        reader = TableStreamReader(self._options, ID)
        start = self.offset or reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
        found = rows_of(reader, reader.partitions(start, end))
        self.offset = end
        return found


def test_a_stream_begins_with_all_rows_and_goes_on_with_new_ones(tmp_path: Path) -> None:
    query = Query(tmp_path)
    assert query.run() == []  # nobody has made the table yet
    table = table_of(tmp_path)
    assert query.run() == list(range(30))
    assert query.run() == []
    append(table, 30, 35)
    table.compact(is_thorough=True)
    append(table, 35, 40)
    assert query.run() == list(range(30, 40))


def test_where_a_stream_begins(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    later, from_two = Query(tmp_path, startingVersion="latest"), Query(tmp_path, startingVersion="2")
    assert (later.run(), from_two.run()) == ([], list(range(10, 30)))
    append(table, 30, 31)
    assert (later.run(), from_two.run()) == ([30], [30])
    with pytest.raises(TableStreamFailed, match=r"'startingVersion' is 99, and the newest version .* is 4"):
        Query(tmp_path, startingVersion="99").run()


def test_a_batch_that_is_repeated_has_the_same_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    reader = TableStreamReader({"path": str(tmp_path)}, ID)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    append(table, 30, 40)
    table.compact(is_thorough=True)
    assert rows_of(reader, reader.partitions(start, end)) == list(range(30))


def test_changed_rows_are_no_new_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    query, skipping = Query(tmp_path), Query(tmp_path, skipChangeCommits="true")
    query.run()
    skipping.run()
    table.replace(events(0, 2))
    append(table, 30, 31)
    with pytest.raises(TableStreamFailed, match=r"version 4 of .* changed or removed rows"):
        query.run()
    assert skipping.run() == [30]


def test_a_table_that_was_emptied_and_filled_again(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    query, ignoring = Query(tmp_path), Query(tmp_path, ignoreDeletes="true")
    query.run()
    ignoring.run()
    table.replace([])
    append(table, 30, 31)
    assert ignoring.run() == [30]
    with pytest.raises(TableStreamFailed, match="changed or removed rows"):
        query.run()
    table.replace(events(0, 1))
    with pytest.raises(TableStreamFailed, match="changed or removed rows"):
        ignoring.run()


def test_a_stream_that_came_too_late(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    query = Query(tmp_path)
    query.run()
    append(table, 30, 40)
    append(table, 40, 50)
    table.expire(timedelta(0))
    with pytest.raises(TableStreamFailed, match=r"version 4 has expired, and this query has read .* version 3 only"):
        query.run()


def test_another_table_in_the_same_place(tmp_path: Path) -> None:
    table_of(tmp_path / "t")
    query = Query(tmp_path / "t")
    query.run()
    (tmp_path / "t").rename(tmp_path / "old")
    table_of(tmp_path / "t", count=9)
    with pytest.raises(TableStreamFailed, match="is not the table that this query has read before"):
        query.run()
