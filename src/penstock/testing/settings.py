"""Broker settings as a test gives them: numbers and bools instead of text."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.gateway import CLOSED
from penstock.model.errors import ConfigError

Given = Mapping[str, str | int | float | bool]


def texts_of(settings: Given, *, durable: bool) -> dict[str, str]:
    """The settings as in a properties file, with defaults for tests. Raises ConfigError."""
    if "log.dirs" in settings or "log.dir" in settings:
        raise ConfigError("log.dirs is in settings: give the directory as data=...")
    texts = dict(CLOSED)
    if not durable:
        texts["log.flush.interval.messages"] = str(2**63 - 1)
    for name, value in settings.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{name} in settings is {value!r}: give a string, a number or a bool")
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts
