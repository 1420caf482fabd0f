"""`--filter`: which records are worth a line.

FIELD=TEXT, FIELD!=TEXT, FIELD~REGEX, FIELD!~REGEX with the fields of templates (key, value, header.NAME, json.PATH,
partition, ...); a filter without an operator is a regular expression on the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.cli.record_lines import FIELDS, field_text
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.clients import Record

Test: TypeAlias = "Callable[[Record], bool]"
_FILTER = re.compile(rf"({'|'.join(FIELDS)}|header\.[^=!~]+|json\.[^=!~]+)(!=|!~|=|~)(.*)", re.DOTALL)


def parse_filters(texts: Sequence[str]) -> Test:
    """All must hold."""
    tests = [_parse(text) for text in texts]
    return lambda record: all(test(record) for test in tests)


def _parse(text: str) -> Test:
    found = _FILTER.fullmatch(text)
    name, operator, wanted = found.groups() if found else ("value", "~", text)
    if operator in ("=", "!="):
        return lambda record: (field_text(record, name) == wanted) is (operator == "=")
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise ConfigError(f"--filter {text!r} is no regular expression: {error}") from error
    return lambda record: (pattern.search(field_text(record, name)) is not None) is (operator == "~")
