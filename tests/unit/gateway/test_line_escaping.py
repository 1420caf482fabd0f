from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.line.escaping import escape_key, escape_value, unescape


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"hello world", b"hello world"),
        ("grüß".encode(), "grüß".encode()),
        (b"two\nlines\r\t", rb"two\nlines\r\t"),
        (rb"C:\new", rb"C:\\new"),
        (b"\xff\x00A", rb"\xff\x00A"),
        ("\u2028".encode(), rb"\xe2\x80\xa8"),
        (b"", b""),
        (None, rb"\N"),
        (rb"\N", rb"\\N"),
    ],
)
def test_values(value: bytes | None, shown: bytes) -> None:
    assert escape_value(value) == shown


@pytest.mark.parametrize(("key", "shown"), [(None, b"-"), (b"-", rb"\-"), (b"a b", rb"a\sb"), (b"--", b"--")])
def test_keys(key: bytes | None, shown: bytes) -> None:
    assert escape_key(key) == shown


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_come_back_and_stay_on_one_line(data: bytes) -> None:
    for shown in (escape_value(data), escape_key(data)):
        assert len(shown.splitlines()) <= 1
        shown.decode("utf-8")
        assert unescape(shown) == data
    assert b" " not in escape_key(data)
