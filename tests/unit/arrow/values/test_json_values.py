"""JSON values as columns: every row keeps its place, and one that does not fit is null in all of them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.arrow.values import JsonValues, json_columns, json_values, parse_schema
from penstock.arrow.values.json_values import NO_VALUE
from penstock.model.errors import ConfigError

SCHEMA = parse_schema("id long not null, user struct<country: string not null>, price decimal(5, 2), at timestamp")


def test_rows_keep_their_places() -> None:
    values = [b'{"id": 1, "user": {"country": "NO"}}', b"no json", b'{"id": 2, "price": 123456.7}', None, b'{"id": 3}']
    columns, misfits = JsonValues(SCHEMA).decode(values)
    assert [column.to_pylist() for column in columns] == [
        [1, None, None, None, 3],
        [{"country": "NO"}, None, None, None, None],
        [None] * 5,
        [None] * 5,
    ]
    assert [column.type for column in columns] == SCHEMA.types
    assert [misfit.at for misfit in misfits] == [1, 2, 3]
    assert misfits[1].reason.startswith("field 'price': ")
    assert misfits[2].reason == NO_VALUE


def test_columns_have_the_types_that_are_asked_for() -> None:
    """A reader may want other names within lists and maps, and everything nullable."""
    types = [pa.int64(), pa.struct([("country", pa.string())]), pa.decimal128(5, 2), pa.timestamp("us", "UTC")]
    columns, misfits = JsonValues(SCHEMA, types).decode([b'{"id": 1, "user": {"country": "NO"}}', b'{"user": {}}'])
    assert [column.type for column in columns] == types
    assert [misfit.reason for misfit in misfits] == ["Object missing required field `country` - at `$.user`"]


def test_nothing_to_decode() -> None:
    columns, misfits = JsonValues(SCHEMA).decode([])
    assert ([len(column) for column in columns], misfits) == ([0, 0, 0, 0], [])


def test_names_within_structs_may_be_any_text() -> None:
    schema = parse_schema("größe struct<`tiefe in m`: double, 日本: string, `a\\nb`: int, n: int>")
    values = [
        '{"größe": {"tiefe in m": 1.5, "日本": "x"}}'.encode(),
        '{"größe": {"a\\nb": 1, "n": 2}}'.encode(),  # a line feed, which the schema does not have
        '{"größe": {"n": 3, "a\\\\nb": 4}}'.encode(),
    ]
    nothing = {"tiefe in m": None, "日本": None, "a\\nb": None, "n": None}
    for columns, misfits in (JsonValues(schema).decode(values), JsonValues(schema).decode_array(pa.array(values))):
        assert columns[0].to_pylist() == [
            nothing | {"tiefe in m": 1.5, "日本": "x"},
            nothing | {"n": 2},
            nothing | {"n": 3, "a\\nb": 4},
        ]
        assert misfits == []
    with pytest.raises(ConfigError, match=r"column 'q\"q': a name may have neither quotes, backslashes nor control"):
        JsonValues(parse_schema('`q"q` int'))


def test_null_in_place_of_bytes() -> None:
    """Arrow lets a null have bytes. They are no value."""
    values = pa.array([b'{"id": 1}', b'{"id": 2}'])
    buffers = values.buffers()
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x01"), *buffers[1:]])
    columns, misfits = JsonValues(SCHEMA).decode_array(hidden)
    assert columns[0].to_pylist() == [1, None]
    assert misfits == [(1, NO_VALUE)]


def test_the_ways_are_mixed_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain rows, rows that only the careful way takes, and rows that do not fit."""
    values = [b'{"id": 1}', b'{"id": 1, "id": 2}', b"{", None, b'{"id": 3, "price": "1.5"}', b'{"id": 4}', b'{"id": 5}']
    values = [*values, b'{"id": 6, "price": 123456.7}', b'{"id": 7, "at": 0}', b'{"id": 8}', b'{"id": 9}']
    found = JsonValues(SCHEMA).decode_array(pa.array(values))
    assert found.columns[0].to_pylist() == [1, 2, None, None, 3, 4, 5, None, 7, 8, 9]
    assert [misfit.at for misfit in found.misfits] == [2, 3, 7]
    assert found == JsonValues(SCHEMA).decode(values)
    # Too much for one block of memory, and without numba.
    with monkeypatch.context() as patch:
        patch.setattr(json_columns, "MAX_TEXT", 8)
        assert found == JsonValues(SCHEMA).decode_array(pa.array(values))
    monkeypatch.setattr(json_values, "kernels_of", lambda package: None)
    assert found == JsonValues(SCHEMA).decode_array(pa.array(values))


@pytest.mark.parametrize("kind", ["decimal(10, 2)", "array<decimal(10, 2)>", "map<string, decimal(10, 2)>"])
@pytest.mark.parametrize("digits", ["1e-99999999", '"1e-99999999"', "0." + "0" * 50 + "1", "1e99999999", '"NaN"'])
def test_decimals_with_too_many_fractional_digits(kind: str, digits: str) -> None:
    """Arrow reads beyond a table for them, which may end the process."""
    form = {"a": "[%s]", "m": '{"x": %s}'}.get(kind[0], "%s")
    values = [f'{{"price": {form % each}}}'.encode() for each in ("1.5", digits, "2")]
    decoder = JsonValues(parse_schema(f"price {kind}"))
    for columns, misfits in (decoder.decode(values), decoder.decode_array(pa.array(values))):
        assert [cell is None for cell in columns[0].to_pylist()] == [False, True, False]
        assert [misfit.at for misfit in misfits] == [1]
        assert misfits[0].reason.startswith("field 'price': ")


def test_decimals_within_structs() -> None:
    decoder = JsonValues(parse_schema("o struct<n: int, p: decimal(38, 38)>"))
    values = pa.array([b'{"o": {"p": 1e-39}}', b'{"o": {"n": 1, "p": 1e-38}}', b'{"o": null}'])
    columns, misfits = decoder.decode_array(values)
    assert columns[0].to_pylist() == [None, {"n": 1, "p": Decimal("1e-38")}, None]
    assert misfits == [(0, "field 'o': a decimal has 39 fractional digits, more than 38")]
