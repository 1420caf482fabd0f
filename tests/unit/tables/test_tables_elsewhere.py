"""What `make tables-elsewhere` compares, without its older Spark: DuckDB and Polars read what Penstock reads."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from bench.elsewhere.__main__ import compared, difference, table_of
from bench.elsewhere.plain import plain
from bench.elsewhere.readers import by_penstock, each, present
from bench.elsewhere.stages import Story

from penstock.tables import Table


def test_others_read_the_same_rows_after_every_change(tmp_path: Path) -> None:
    names, directories = zip(*Story(tmp_path).stages(), strict=True)
    wanted = [by_penstock(directory) for directory in directories]
    found = compared(present(), directories, wanted)
    assert [reader.partition(" ")[0] for reader in found] == ["Polars", "DuckDB"]
    assert found == {reader: [""] * len(names) for reader in found}
    # The changes are what their names say.
    assert all(wanted[number] != wanted[number - 1] for number in range(1, len(names)))
    merged = Table.open(directories[names.index("compacted")])
    assert merged.files == len(set(merged.at().arrow().column("day").to_pylist())) < Table.open(directories[0]).files
    assert Table.open(directories[names.index("old versions gone")]).oldest_version > 0
    assert table_of(names, wanted, found)[1].split()[-2:] == ["same", "same"]


def test_a_reader_that_misses_rows_is_found(tmp_path: Path) -> None:
    (_, first), *_ = Story(tmp_path).stages()
    wanted = by_penstock(first)
    bad = each(lambda directory: by_penstock(directory)[1:])
    found = compared({"bad": bad}, [first], [wanted])
    assert found["bad"][0].startswith("1 rows missing, such as ")
    assert table_of(["appended"], [wanted], found)[1].split()[-1] == "differs"
    assert difference(["a"], ["a", "a"]) == "1 rows too many, such as ['a']"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ("1", 1),
        (b"\x01", "01"),
        (Decimal("1.10"), Decimal("1.1")),
        (date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
        ([1], [1, 1]),
        (None, ""),
    ],
)
def test_values_that_differ(one: object, other: object) -> None:
    assert plain(one) != plain(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=1)))),
        ([("k", 1)], [{"key": "k", "value": 1}]),
        (b"\x01", bytearray(b"\x01")),
    ],
)
def test_values_that_are_the_same(one: object, other: object) -> None:
    assert plain(one) == plain(other)
