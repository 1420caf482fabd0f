"""KEY=VALUE on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.errors import ConfigError


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    return dict(parse_pair(option, text) for text in texts)


def parse_pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} {text!r}: write KEY=VALUE")
    return name.strip(), value.strip()
