from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.properties import format_properties, parse_properties
from penstock.model.errors import ConfigError

# What java.util.Properties makes of the same text.
CASES = [
    ("a=1", {"a": "1"}),
    ("a:1", {"a": "1"}),
    ("a 1", {"a": "1"}),
    ("a\t1", {"a": "1"}),
    ("a = 1", {"a": "1"}),
    ("a : 1", {"a": "1"}),
    ("a  =  = 1", {"a": "= 1"}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("  a=1", {"a": "1"}),
    ("a=1  ", {"a": "1  "}),
    ("# c\n! d\n\n  # e\na=1", {"a": "1"}),
    ("a=#no comment", {"a": "#no comment"}),
    ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=x,\\\n   y,\\\n   z", {"a": "x,y,z"}),
    ("a=x\\\n# y", {"a": "x# y"}),
    ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
    ("a=x\\\n\nb=2", {"a": "x", "b": "2"}),
    ("a=x\\", {"a": "x"}),
    ("\\\n\nb=2", {"b": "2"}),
    ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
    ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
    ("a=\\ud83d\\ude00", {"a": "😀"}),
    ("a=C\\:\\\\data", {"a": "C:\\data"}),
    ("=1", {"": "1"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "properties"), CASES)
def test_parse(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@pytest.mark.parametrize("text", ["b=1\na=\\u12", "b=1\na=\\u12g4"])
def test_a_broken_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^line 2: "):
        parse_properties(text)


def test_format() -> None:
    text = format_properties({"log.dirs": "/a b", " key": " v", "é": "x=y", "cluster.id": "abc"})
    assert text == "log.dirs=/a b\n\\ key=\\ v\n\\u00e9=x\\=y\ncluster.id=abc\n"


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_reads_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties
