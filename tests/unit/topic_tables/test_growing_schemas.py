"""A schema that grows with the values of a topic; what breaks it is a dead letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values import parse_schema, schema_text
from penstock.model.errors import ConfigError
from penstock.tables import Table
from penstock.testing import Broker
from penstock.topic_tables import growth, inference
from penstock.topic_tables.growth import GrowingShape
from penstock.topic_tables.json_rows import OF_RECORD
from support.tables.topics import FilledTopic, earliest


@pytest.fixture
def topic(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


def records(*values: str | None) -> Any:
    rows = [{"partition": 0, "offset": at, "timestamp": 0, "value": value} for at, value in enumerate(values)]
    names = ("partition", "offset", "timestamp", "key", "value", "headers")
    schema = pa.schema([KAFKA_SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_pylist(
        [{**row, "key": None, "headers": None, "value": row["value"] and str(row["value"]).encode()} for row in rows],
        schema,
    )


def grown(schema: str, *values: str | None) -> tuple[str, dict[int, str]]:
    shape = GrowingShape(parse_schema(schema), ())
    shaped = shape.shape(records(*values))
    fields = pa.schema([field for field in shape.schema if field.name not in OF_RECORD])
    assert shaped.rows.num_rows + len(shaped.misfits) == len(values)
    return schema_text(fields), {misfit.at: misfit.reason for misfit in shaped.misfits}


@pytest.mark.parametrize(
    ("schema", "values", "wanted"),
    [
        ("id int", ['{"id": 1, "name": "a"}', '{"more": true}'], "id int, name string, more boolean"),
        ("id byte", ['{"id": 200}', '{"id": -40000}'], "id int"),
        ("id byte", ['{"id": 5000000000}'], "id long"),
        ("id int", ['{"n": 1}', '{"n": 1.5}', '{"n": 2}'], "id int, n double"),
        ("id int", ['{"a": null}', '{"a": []}', '{"a": {}}'], "id int"),
        ("u struct<id: int>", ['{"u": {"id": 3000000000, "x": "y"}}'], "u struct<id: long, x: string>"),
        ("a array<struct<x: int>>", ['{"a": [{"x": 1}, {"y": 2}]}'], "a array<struct<x: int, y: long>>"),
        ("m map<string, byte>", ['{"m": {"a": 1, "b": 1000}}'], "m map<string, short>"),
        ("id int", ['{"u": {"a": 1, "A": 2, " b": 3, "": 4, "_key": 5}}'], "id int, u struct<a: long, _key: long>"),
        ("id int", ['{"ID": 1}', '{"_key": 1}', '{"": 1}', '{" x": 1}'], "id int"),
    ],
)
def test_what_a_schema_becomes(schema: str, values: list[str], wanted: str) -> None:
    assert grown(schema, *values) == (wanted, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"id": "1", "more": 1}', "Expected `int | null`, got `str` - at `$.id`"),
        ('{"id": 1.5, "more": 1}', "Expected `int | null`, got `float` - at `$.id`"),
        ('{"id": 1e300}', "Expected `int | null`, got `float` - at `$.id`"),
        ('{"more": [1, "a"]}', "field 'more[]' is long in some values and string in others"),
        ('{"more": ' + "[" * 65 + "1" + "]" * 65 + "}", "there are values within more than 64 objects and arrays"),
        (None, "the record has no value"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_what_breaks_it(value: str | None, reason: str) -> None:
    assert grown("id int", '{"id": 1}', value, '{"id": 2}') == ("id int", {1: reason})


def test_names_that_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MAX_FIELDS", 3)
    schema, misfits = grown("id int", '{"a": 1}', '{"b": 1}', '{"c": 1}', '{"a": 2}')
    assert (schema, misfits) == ("id int, a long, b long", {2: "field 'c' is one more than 3 fields"})


def test_names_that_are_data_within_a_new_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_FIELDS", 2)
    schema, misfits = grown("id int", '{"u": {"a": 1, "b": 1, "c": 1}}', '{"u": {"a": 1, "b": 1}}')
    assert (schema, misfits) == (
        "id int, u struct<a: long, b: long>",
        {0: "field 'u.c' is one more than 2 fields"},
    )


def test_a_value_that_changes_nothing_makes_no_schema() -> None:
    shape = GrowingShape(parse_schema("m map<string, int>, a array<struct<x: int>>, u struct<m: map<string, int>>"), ())
    before = shape.schema
    shape.shape(records('{"m": {"k": 1}, "a": [{"x": 1}], "u": {"m": {"k": 1}}}'))
    assert shape.schema is before


def test_levels_do_not_add_up() -> None:
    def nested(leaf: str, levels: int) -> str:
        return '{"a": ' * levels + leaf + "}" * levels

    _, misfits = grown("id int", nested("1", 64), nested(nested('{"b": 1}', 60), 60), nested("1", 64))
    assert misfits.keys() == {1}


def test_a_table_grows_with_its_topic(tmp_path: Path, topic: FilledTopic) -> None:
    topic.send(['{"id": 1}'])
    topic.follow(tmp_path, mode="json", schema=parse_schema("id int"), evolve=True, partition_by=("date",))
    topic.send([f'{{"id": {2**40}, "more": "x", "date": 1}}', '{"id": "x", "other": 1}'])
    done = topic.follow(tmp_path, evolve=True)
    assert (done.records, done.evolutions, done.dead_letters) == (2, 1, 1)
    rows = Table.open(tmp_path).at().arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["more"]) for row in rows] == [(1, None), (2**40, "x")]
    topic.send(['{"id": 3, "another": 1}'])
    assert topic.follow(tmp_path).evolutions == 0
    assert Table.open(tmp_path).schema.names == ["id", *OF_RECORD, "date", "more"]
    with pytest.raises(ConfigError, match="--evolve is for --mode json"):
        topic.follow(tmp_path / "raw", evolve=True)


def test_keys_get_wider(tmp_path: Path, topic: FilledTopic) -> None:
    topic.send(['{"id": 1}', '{"id": 2}'], key=b"k")
    options = {"mode": "json", "key": ("id",), "evolve": True}
    topic.follow(tmp_path, schema=parse_schema("id int"), **options)
    topic.send(['{"id": 1, "name": "a"}'], key=b"k")
    topic.send([f'{{"id": {2**40}, "more": 1}}'], key=b"k")
    topic.follow(tmp_path, **options)
    rows = Table.open(tmp_path).at().arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row["more"]) for row in rows] == [
        (1, "a", None),
        (2, None, None),
        (2**40, None, 1),
    ]


@pytest.mark.parametrize("dies_in", ["_table", "_dead_letters"])
def test_a_crash_after_the_schema_has_grown(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    """Each record is in one of the tables, once, also if the values come in smaller portions afterwards."""
    options = {"mode": "json", "schema": parse_schema("id int"), "evolve": True}
    values = ['{"id": 1, "n": 1}', '{"id": 2, "n": 1.5}', '{"id": "bad"}', '{"id": 3, "n": "x"}']
    topic.send(values, partition=0)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, topic.follower(tmp_path, **options) as follower:
        follower._add({0: 0, 1: 0})
        patch.setattr(getattr(follower, dies_in), "append", dies)
        with pytest.raises(KeyboardInterrupt):
            follower.run(earliest)
    assert "n" in Table.open(tmp_path).schema.names
    plain = GrowingShape.shape

    def one_by_one(shape: GrowingShape, batch: Any) -> Any:
        for at in range(batch.num_rows):
            plain(shape, batch.slice(at, 1))
        return plain(shape, batch)

    monkeypatch.setattr(GrowingShape, "shape", one_by_one)
    topic.follow(tmp_path, **options)
    assert sorted(Table.open(tmp_path).at().arrow().column("n").to_pylist()) == [1.0, 1.5]
    dead = Table.open(tmp_path / "_dead_letters").at().arrow()
    assert sorted(dead.column("offset").to_pylist()) == [2, 3]
