"""JSON to columns: the compiled kernel against the careful way, on sound, odd and damaged objects.

For every input both give the same columns and the same reasons. Bytes are handed to the kernel so that they end where
readable memory ends, and begin where it begins: a read out of bounds does not go unnoticed, it kills the process.

PENSTOCK_PROPERTY_EXAMPLES sets the number of inputs.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.arrow.values import JsonValues, json_values, parse_schema
from property.guarded_memory import Guarded

pytest.importorskip("numba")

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))

SCHEMA = (
    "id long not null, n byte, s short, i int, f float, d double, name string, ok boolean, at timestamp, day date, "
    "user struct<country: string, age: int not null, inner: struct<at: timestamp, x: double, `é`: string>>, "
    "tags array<string>, prices map<string, decimal(5, 2)>, price decimal(6, 3), raw binary, "
    "deep struct<names: array<string>, n: int>"
)
FIELDS = parse_schema(SCHEMA)
VALUES = JsonValues(FIELDS)

ints = st.one_of(
    st.integers(-300, 300),
    st.sampled_from([s * (2**b + d) for s in (1, -1) for b in (7, 15, 31, 53, 63, 64) for d in (-1, 0, 1)]),
    st.integers(-(10**20), 10**20),
)
doubles = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e6, 1e6).map(lambda x: round(x, 2)), ints
)
texts = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from('ab"\\/\n\té€😀\x00\x1f\x7f'), max_size=60),
    st.text("abc", min_size=28, max_size=70),
)
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.one_of(
    st.datetimes(timezones=st.just(UTC)).map(lambda t: t.isoformat().replace("+00:00", "Z")),
    st.datetimes(timezones=zones).map(lambda t: t.isoformat()),
    st.datetimes(timezones=st.just(UTC)).map(lambda t: t.strftime("%Y-%m-%d %H:%M:%SZ")),
    st.sampled_from(
        [
            "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2000-02-29T23:59:59.9Z",
            "2026-01-31T24:00:00Z", "2026-01-31T12:00:60Z", "2026-01-31T12:00:00", "2026-01-31T12:00:00.1234567Z",
            "2026-01-31T12:00:00.Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-1-31T12:00:00Z",
            "2026-01-31T12:00:00+0100", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "0000-01-01T00:00:00Z", "",
        ]
    ),
    st.integers(-(10**16), 10**16),
)  # fmt: skip
days = st.one_of(st.dates().map(str), st.sampled_from(["2026-02-30", "2026-01-31Z", "0000-01-01", "26-01-01", ""]))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), ints, doubles, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def some(fields: dict[str, Any]) -> Any:
    """An object with any of the fields, in any order, each null or wrong at times, and with other fields between."""
    names = sorted(fields)

    def kind(name: str) -> Any:
        return st.integers(0, 19).flatmap(lambda n: st.none() if n == 0 else anything if n == 1 else fields[name])

    chosen = st.lists(st.sampled_from(names), unique=True, max_size=len(names)).flatmap(
        lambda keys: st.fixed_dictionaries({key: kind(key) for key in keys})
    )
    return st.tuples(chosen, st.dictionaries(texts, anything, max_size=2)).map(lambda both: both[0] | both[1])


inners = some({"at": moments, "x": doubles, "é": texts})
users = some({"country": texts, "age": ints, "inner": inners}).map(lambda user: {"age": 7, **user})
objects = some(
    {
        "n": ints, "s": ints, "i": ints, "f": doubles, "d": doubles, "name": texts, "ok": st.booleans(), "at": moments,
        "day": days, "user": users, "tags": st.lists(st.one_of(texts, st.none()), max_size=3),
        "prices": st.dictionaries(texts, st.sampled_from([1.25, "2.5", 1000.5, None]), max_size=2),
        "price": st.sampled_from([1, 1.125, "1.5", 1e9, "x"]), "raw": st.sampled_from(["aGk=", "aGk", ""]),
        "deep": some({"names": st.lists(texts, max_size=2), "n": ints}),
    }
).flatmap(lambda found: st.booleans().map(lambda is_whole: {"id": 1, **found} if is_whole else found))  # fmt: skip
styles = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" \n,\t", "\r : ")]),
        "indent": st.sampled_from([None, 1]),
    }
)
documents = st.tuples(objects, styles).map(lambda both: json.dumps(both[0], **both[1]).encode("utf-8", "surrogatepass"))
cuts = st.tuples(documents, st.integers(0, 400), st.integers(0, 3), st.binary(max_size=3)).map(
    lambda cut: cut[0][: cut[1]] + cut[3] + cut[0][cut[1] + cut[2] :]
)
ODD: list[bytes] = [
    b"", b"{}", b" {} ", b"[]", b"null", b'{"id":1}x', b'{"id":1,}', b'{,"id":1}', b'{"id":1 "n":2}', b'{"id" 1}',
    b'{"id":01}', b'{"id":-0}', b'{"id":1.0}', b'{"id":1e2}', b'{"id":1,"id":2}', b'{"id":1,"n":null,"n":2}',
    b'{"id":1,"d":-0}', b'{"id":1,"d":-0.0}', b'{"id":1,"d":1e400}', b'{"id":1,"f":1e39}',
    b'{"id":1,"f":3.4028236e38}',
    b'{"id":1,"d":1.}', b'{"id":1,"d":.5}', b'{"id":1,"d":1e}', b'{"id":1,"d":00.5}', b'{"id":1,"d":+1}',
    b'{"id":1,"d":0.1234567890123456789012345}', b'{"id":1,"d":123456789012345678901234567890}',
    b'{"id":1,"d":9007199254740993}', b'{"id":1,"d":4.35e-310}', b'{"id":1,"d":1e22,"x":1e23}',
    b'{"i\\u0064":1}', b'{"id":1,"name":"\\ud83d\\ude00\\u00e9\\u0000"}', b'{"id":1,"name":"\\ud83d"}',
    b'{"id":1,"name":"\\ude00"}', b'{"id":1,"name":"\\x"}', b'{"id":1,"name":"\xff"}', b'{"id":1,"name":"\xc3"}',
    b'{"id":1,"name":"\xed\xa0\x80"}', b'{"id":1,"name":"\xc0\x80"}', b'{"id":1,"name":"\xf4\x90\x80\x80"}',
    b'{"id":1,"zz":"\xff"}', b'{"\xff":1,"id":1}', b'{"id":1,"name":"a\nb"}', b'{"id":1,"zz":"a\nb"}',
    b'{"id":1,"zz":1e999}', b'{"id":1,"zz":[1,]}', b'{"id":1,"zz":{"a":1,}}', b'{"id":1,"zz":[1 2]}',
    b'{"id":1,"zz":[}',
    b'{"id":1,"zz":' + b"[" * 31 + b"]" * 31 + b"}", b'{"id":1,"zz":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"id":1,"zz":' + b'{"a":[' * 100 + b"]}" * 100 + b"}", b'{"id":1,"zz":' + b"[" * 9000 + b"]" * 9000 + b"}",
    b'{"id":1,"ok":truex}', b'{"id":1,"ok":tru}', b'{"id":1,"ok":nul}', b'{"id":1,"ok":True}', b'{"id":1,"ok":1}',
    b'{"id":1,"at":1767225600000}', b'{"id":1,"at":1767225600000.5}', b'{"id":1,"user":{"age":1,"inner":{"at":1}}}',
    b'{"id":1,"user":{}}', b'{"id":1,"user":null}', b'{"id":1,"user":{"age":null}}', b'{"id":null}', b'{"id":1',
    b'\xef\xbb\xbf{"id":1}', b'{"id":1,"zz":nan}', b'{"id":1,"d":NaN}', b'{"id":1,"d":Infinity}', b'{"id":1}\x00',
]  # fmt: skip
PLAIN: list[bytes | None] = [
    b'{"id":1}',
    b' { "n" : -128 , "id" : -9223372036854775807, "s":32767,"i":-2147483648 } ',
    b'{"f":0.1,"d":1e-7,"id":0,"ok":true,"name":"plain"}',
    b'{"id":2,"d":0.30000000000000004,"f":1e38,"ok":false,"name":null}',
    '{"id":3,"name":"grün 😀 \\n \\ud83d\\ude00 \\u20ac","zz":{"a":[1,{"b":null}],"c":"\\t"},"user":null}'.encode(),
    b'{"id":4,"at":"2026-01-31T12:00:00.5+01:00","day":"2024-02-29","user":{"age":7,"inner":{"x":1}}}',
    b'{"id":5,"at":-1,"tags":["a",null,"\\u0061"],"prices":{"a":1.25,"b":"2.5"},"price":1.125,"raw":"aGk="}',
    b'{"id":6,"deep":{"names":[],"n":1},"user":{"inner":{"at":"1969-12-31T23:59:59.999999Z"},"country":"NO","age":1}}',
]
batches = st.lists(st.one_of(documents, documents, cuts, st.sampled_from(ODD), st.none()), min_size=1, max_size=12)


def array_of(given_values: list[bytes | None], *, at_the_end: bool) -> Any:
    data = b"".join(value or b"" for value in given_values)
    ends = np.cumsum([0, *(len(value or b"") for value in given_values)]).astype(np.int32)
    valid = np.packbits([value is not None for value in given_values], bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(Guarded(data, at_the_end=at_the_end).view)]
    return pa.Array.from_buffers(pa.binary(), len(given_values), buffers)


def check(given_values: list[bytes | None], *, at_the_end: bool = True) -> None:
    careful, quick = VALUES.decode(given_values), VALUES.decode_array(array_of(given_values, at_the_end=at_the_end))
    assert quick.misfits == careful.misfits
    for name, left, right in zip(FIELDS.names, quick.columns, careful.columns, strict=True):
        left.validate(full=True)
        assert left.equals(right), (name, left.to_pylist(), right.to_pylist())


@pytest.fixture(autouse=True)
def _both_ways_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "MOSTLY_REFUSED", 1.0)


@settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches, st.booleans())
def test_the_kernel_and_the_careful_way_agree(values: list[bytes | None], at_the_end: bool) -> None:
    check(values, at_the_end=at_the_end)


def test_odd_values_are_the_same_both_ways() -> None:
    for value in ODD:
        check([value])
        check([value], at_the_end=False)
    check([*ODD, None])


def test_the_kernel_takes_what_is_plain() -> None:
    """Otherwise the test above compares the careful way with itself."""
    kernel = VALUES._quick_columns()
    assert kernel is not None
    _, refused = kernel.decode(array_of(PLAIN, at_the_end=True))
    assert not refused.any()
    check(PLAIN)
