"""A batch read as it is planned: ranges, filters that narrow them, and columns."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeTime
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from penstock.model.errors import PenstockError
from penstock.spark.options.known import InvalidOption
from penstock.spark.source.batch_reader import PenstockBatchReader, plan
from penstock.spark.source.columns import check_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner
from penstock.spark.source.pushdown import Bounds

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVERYTHING = ["clicks-0[10, 100)", "clicks-1[0, 50)"]
SINCE_MS = int(SINCE.timestamp() * 1000)


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.create("clicks", 100, 50)
    made.log("clicks", 0).first = 10
    made.log("clicks", 0).timestamps_ms = [SINCE_MS - 30 + index for index in range(90)]
    made.log("clicks", 1).timestamps_ms = [SINCE_MS - 1000] * 50
    return made


def planned(cluster: FakeCluster, *filters: Filter, **options: str) -> list[str]:
    chosen = SourceOptions.for_batch({"subscribe": "clicks"} | options)
    bounds = Bounds()
    for pushed in filters:
        bounds.take(pushed)
    return [repr(split) for split in plan(chosen, OffsetPlanner(chosen, cluster, sleep=FakeTime().sleep), bounds)]


def test_ranges(cluster: FakeCluster) -> None:
    assert planned(cluster) == ["clicks-0[10, 100)", "clicks-1[0, 50)"]
    by_offsets = {"startingOffsets": '{"clicks":{"0":20,"1":-2}}', "endingOffsets": '{"clicks":{"0":-1,"1":0}}'}
    assert planned(cluster, **by_offsets) == ["clicks-0[20, 100)"]
    assert planned(cluster, endingTimestamp=str(SINCE_MS)) == ["clicks-0[10, 40)", "clicks-1[0, 50)"]
    assert planned(cluster, maxRecordsPerPartition="45") == [
        "clicks-0[10, 55)",
        "clicks-0[55, 100)",
        "clicks-1[0, 25)",
        "clicks-1[25, 50)",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": '{"clicks":{"0":9,"1":0}}'}, "partition 0 of 'clicks' no longer has offset 9"),
        (
            {"endingOffsets": '{"clicks":{"0":101,"1":0}}'},
            "gives 101 for partition 0 of 'clicks', whose log ends at 100",
        ),
        ({"startingOffsets": '{"clicks":{"0":10,"1":51}}'}, "would begin at offset 51, after its end at 50"),
        ({"subscribe": "views"}, "there is no topic 'views'"),
    ],
)
def test_ranges_that_are_not_there(cluster: FakeCluster, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(PenstockError, match=sentence):
        planned(cluster, **options)


def test_lost_records_are_left_out_if_that_is_asked_for(cluster: FakeCluster) -> None:
    start = '{"clicks":{"0":9,"1":0}}'
    # The reader skips to where the log begins.
    assert planned(cluster, startingOffsets=start, failOnDataLoss="false") == ["clicks-0[9, 100)", "clicks-1[0, 50)"]


@pytest.mark.parametrize(
    ("filters", "splits"),
    [
        ([EqualTo(("partition",), 1)], ["clicks-1[0, 50)"]),
        ([In(("partition",), [0, 7])], ["clicks-0[10, 100)"]),  # type: ignore[arg-type]
        ([GreaterThan(("partition",), 0)], ["clicks-1[0, 50)"]),
        ([EqualTo(("topic",), "views")], []),
        ([EqualTo(("offset",), 42)], ["clicks-0[42, 43)", "clicks-1[42, 43)"]),
        ([GreaterThanOrEqual(("offset",), 20), LessThan(("offset",), 60)], ["clicks-0[20, 60)", "clicks-1[20, 50)"]),
        ([GreaterThan(("offset",), 20), LessThanOrEqual(("offset",), 60)], ["clicks-0[21, 61)", "clicks-1[21, 50)"]),
        ([In(("offset",), [30, 12])], ["clicks-0[12, 31)", "clicks-1[12, 31)"]),  # type: ignore[arg-type]
        ([GreaterThan(("offset",), 1000)], []),
        ([GreaterThanOrEqual(("timestamp",), SINCE)], ["clicks-0[40, 100)"]),
        ([LessThan(("timestamp",), SINCE)], ["clicks-0[10, 100)", "clicks-1[0, 50)"]),
        # In milliseconds -1, -2, -3 and -4, which mean latest, earliest and more to brokers.
        *(
            ([GreaterThanOrEqual(("timestamp",), EPOCH - timedelta(milliseconds=ms))], EVERYTHING)
            for ms in (0, 1, 2, 3, 4, 86_400_000)
        ),
        ([GreaterThan(("timestamp",), datetime(1, 1, 1, tzinfo=UTC)), EqualTo(("partition",), 1)], EVERYTHING[1:]),
    ],
)
def test_filters_narrow_what_is_read(cluster: FakeCluster, filters: list[Filter], splits: list[str]) -> None:
    assert planned(cluster, *filters) == splits


@pytest.mark.parametrize(
    "pushed",
    [
        EqualTo(("partition",), 1),
        In(("topic",), ["a"]),  # type: ignore[arg-type]
        LessThan(("offset",), 5),
        IsNotNull(("timestamp",)),
    ],
)
def test_filters_that_are_exact_are_not_given_back(pushed: Filter) -> None:
    assert list(reader().pushFilters([pushed])) == []


@pytest.mark.parametrize(
    "pushed",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("partition",), "1"),
        EqualTo(("offset",), True),
        EqualNullSafe(("offset",), None),
        Not(EqualTo(("partition",), 1)),
        In(("offset",), [1, 2]),  # type: ignore[arg-type]
        In(("partition",), [1, None]),  # type: ignore[arg-type]
        GreaterThan(("timestamp",), SINCE),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
        IsNull(("offset",)),
        IsNotNull(("key",)),
        StringStartsWith(("topic",), "c"),
        EqualTo(("headers", "key"), "x"),
    ],
)
def test_other_filters_are_given_back(pushed: Filter) -> None:
    assert list(reader().pushFilters([pushed])) == [pushed]


def test_filters_are_taken_only_on_demand() -> None:
    """Spark keeps what was planned with them for other queries on the same DataFrame."""
    made = PenstockBatchReader({"subscribe": "clicks"}, source_schema(False))
    assert made.pushFilters([EqualTo(("partition",), 1)]) == [EqualTo(("partition",), 1)]
    assert made._bounds == Bounds()


def reader(**options: str) -> Any:
    given = {"subscribe": "clicks", "filterPushdown": "true"} | options
    return PenstockBatchReader(given, source_schema(False))


def test_spark_takes_the_reader_with_and_without_pushdown() -> None:
    made = reader()
    assert made.pushFilters.__func__ is DataSourceReader.pushFilters
    made.pushFilters([EqualTo(("offset",), 42)])
    copy = pickle.loads(pickle.dumps(made))
    assert copy._bounds.narrowed(0, 100) == (42, 43)
    assert copy.pushFilters.__func__ is DataSourceReader.pushFilters


def test_nothing_to_read() -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(reader().read(InputPartition(None))) == []


def test_columns() -> None:
    assert source_schema(False).names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source_schema(True).names[-1] == "headers"
    chosen = StructType([source_schema(True)["headers"], source_schema(True)["offset"]])
    assert check_schema(chosen) == chosen
    with pytest.raises(InvalidOption, match="has a column 'ofset', and the penstock source has only key, value, topic"):
        check_schema(StructType().add("ofset", "long"))
    with pytest.raises(InvalidOption, match="'offset' as int, and the penstock source reads it as bigint: cast it"):
        check_schema(StructType().add("offset", "integer"))
