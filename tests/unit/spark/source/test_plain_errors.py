"""What Spark's workers say of an error in a source or sink."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from penstock.arrow.encode.columns import UnsuitableRows
from penstock.model.errors import PenstockError
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options.known import InvalidOption
from penstock.spark.plain_errors import PYSPARKS_VARIABLE, VARIABLE, plain_errors
from penstock.spark.source.stream_reader import PenstockStreamReader


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(PYSPARKS_VARIABLE, "")
    monkeypatch.delenv(PYSPARKS_VARIABLE)  # removed again after the test
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    os.environ.pop(PYSPARKS_VARIABLE, None)


@plain_errors
class Reader:
    def partitions(self, start: int, end: int) -> list[int]:
        raise InvalidOption(f"{start} is after {end}")

    def read(self, rows: int) -> Iterator[int]:
        yield from range(rows)
        raise UnsuitableRows("row 3 is unsuitable")

    def bug(self) -> None:
        raise ValueError("a bug")

    def fine(self) -> int:
        return 7


def said(call: Callable[[], Any]) -> str:
    """What a worker sends to the JVM."""
    out = io.BytesIO()
    try:
        call()
    except BaseException as error:
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()


def test_our_errors_are_a_sentence() -> None:
    assert said(lambda: Reader().partitions(5, 2)) == "penstock.spark.options.known.InvalidOption: 5 is after 2\n"


def test_also_those_in_the_midst_of_rows() -> None:
    rows = Reader().read(2)
    assert [next(rows), next(rows)] == [0, 1]
    assert said(lambda: next(rows)) == "penstock.arrow.encode.columns.UnsuitableRows: row 3 is unsuitable\n"


def test_other_errors_keep_their_traceback() -> None:
    told = said(Reader().bug)
    assert told.startswith("Traceback (most recent call last)")
    assert told.endswith("ValueError: a bug\n")


def test_a_traceback_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert said(lambda: Reader().partitions(5, 2)).startswith("Traceback (most recent call last)")


def test_what_spark_looks_at_is_unchanged() -> None:
    assert Reader().fine() == 7
    assert list(inspect.signature(Reader().partitions).parameters) == ["start", "end"]
    assert list(inspect.signature(PenstockStreamReader.latestOffset).parameters) == ["self", "start", "limit"]
    assert PenstockDataSource.name() == "penstock"


def test_options_of_a_source_and_of_a_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    source = PenstockDataSource({"subscribe": "a", "no.such": "b"})
    for call in (
        lambda: source.streamReader(schema=StructType()),
        lambda: source.reader(schema=StructType()),
        lambda: source.writer(schema=StructType(), overwrite=False),
        lambda: source.streamWriter(schema=StructType(), overwrite=False),
    ):
        (line,) = said(call).splitlines()
        assert line.startswith("penstock.spark.options.known.InvalidOption: option 'no.such' is not known")
    assert issubclass(UnsuitableRows, PenstockError)
