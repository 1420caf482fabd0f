"""`--filter`: which records are printed.

FIELD=TEXT, FIELD!=TEXT, FIELD~REGEX, FIELD!~REGEX with the fields of templates (key, value, header.NAME, json.PATH,
partition, ...). A filter without an operator is a regular expression on the value. If a record repeats a header, one of
its values must match; with !, none may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.cli.records.lines import FIELDS, field_texts
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sdk import Record

Test: TypeAlias = "Callable[[Record], bool]"
_FILTER = re.compile(rf"({'|'.join(FIELDS)}|header\.[^=!~]+|json\.[^=!~]+)(!=|!~|=|~)(.*)", re.DOTALL)
_LIKE_A_FILTER = re.compile(r"([A-Za-z_][\w.-]*)(?:!=|!~|=|~)")


def parse_filters(texts: Sequence[str]) -> Test:
    """A test that a record passes if it matches all filters."""
    tests = [_parse(text) for text in texts]
    return lambda record: all(test(record) for test in tests)


def _parse(text: str) -> Test:
    found = _FILTER.fullmatch(text)
    unknown = None if found else _LIKE_A_FILTER.match(text)
    if unknown:
        raise ConfigError(
            f"--filter {text!r}: unknown field {unknown[1]}, use {', '.join(FIELDS)}, header.NAME or json.PATH "
            f"(for a regular expression on the value: value~{text})"
        )
    name, operator, wanted = found.groups() if found else ("value", "~", text)
    is_wanted = not operator.startswith("!")
    if operator in ("=", "!="):
        return lambda record: (wanted in field_texts(record, name)) is is_wanted
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise ConfigError(f"--filter {text!r} is not a regular expression: {error}") from error
    return lambda record: any(map(pattern.search, field_texts(record, name))) is is_wanted
