"""Secrets of a project: references in its settings, and keeping the values out of all that is written.

    ${env:NAME}     an environment variable
    ${file:PATH}    the content of a file, without a newline at its end; PATH is relative to the project
    $${env:NAME}    the text ${env:NAME} itself

A value is secret if its name says so (`options.secret_names`), wherever it comes from. A value with a reference is
secret, too, unless it is of a client setting that is known to be public, or a list of topics. `Secrets` knows all
values of a project, also former ones: a file may be replaced while the pipeline is served. What we write passes through
`hide`. For Spark's plans, events and pages there are settings, with names and with the values themselves. This module
does not know Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.spark.options.secret_names import (
    MORE_NAMES,
    REDACTED_OPTIONS,
    REDACTED_OPTIONS_DEFAULT,
    REDACTED_SETTINGS,
    REDACTED_SETTINGS_DEFAULT,
    REDACTED_TEXT,
    is_secret_name,
)

HIDDEN = "*****"
SHORTEST = 4
"""Shorter values are not hidden: they would be found all over the place."""
SHORTEST_LINE = 16
_REFERENCE = re.compile(r"(\$?)\$\{(env|file):([^}]*)\}")
_INNER_PASSWORD = re.compile(r"""password\s*=\s*(["'])(.+?)\1""", re.IGNORECASE)


class Unresolved(Exception):
    """A reference to something that is not there. The text says what."""


def has_reference(text: str) -> bool:
    return any(not found[1] for found in _REFERENCE.finditer(text))


class Secrets:
    def __init__(self) -> None:
        self._values: set[str] = set()
        self._names: set[str] = set()

    def note(self, name: str, value: str) -> None:
        """The value of this setting is secret."""
        self._names.add(name)
        self._values.update(part for part in _parts(value) if len(part) >= SHORTEST)

    def is_noted(self, name: str) -> bool:
        return name in self._names

    def hide(self, text: str) -> str:
        for value in self._longest_first():
            text = text.replace(value, HIDDEN)
        return text

    def hide_all(self, value: object) -> object:
        """The same for the strings in lists and dictionaries."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {name: self.hide_all(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(one) for one in value]
        return value

    def jvm_settings(self, configuration: Mapping[str, str]) -> dict[str, str]:
        """Spark's settings that hide the values in its list of settings and in event logs. Fixed when it starts."""
        own = configuration.get(REDACTED_SETTINGS, REDACTED_SETTINGS_DEFAULT)
        # The pattern with the values is itself a setting.
        return {REDACTED_SETTINGS: "|".join([own, MORE_NAMES, _literal_dots(REDACTED_TEXT), *self._name_patterns()])}

    def session_settings(self, configuration: Mapping[str, str]) -> dict[str, str]:
        """The same for the options of sources and sinks, and for plans and pages."""
        own = configuration.get(REDACTED_OPTIONS, REDACTED_OPTIONS_DEFAULT)
        found = {REDACTED_OPTIONS: "|".join([own, MORE_NAMES, _literal_dots(REDACTED_TEXT), *self._name_patterns()])}
        patterns = [configuration[REDACTED_TEXT]] if configuration.get(REDACTED_TEXT) else []
        patterns += map(re.escape, self._longest_first())
        return found | ({REDACTED_TEXT: "|".join(patterns)} if patterns else {})

    def _longest_first(self) -> list[str]:
        """One may be a part of another."""
        return sorted(self._values, key=lambda value: (-len(value), value))

    def _name_patterns(self) -> Iterator[str]:
        return map(_literal_dots, sorted(self._names))


def _literal_dots(name: str) -> str:
    return re.escape(name).replace(r"\.", "[.]")


def _parts(value: str) -> Iterator[str]:
    """The value as it may be printed. A key may be printed line by line, and a login by its password."""
    yield value
    for found in _INNER_PASSWORD.finditer(value):
        yield found[2]
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= SHORTEST_LINE and not line.startswith("-----"))


def resolved(name: str, text: str, root: Path, secrets: Secrets, *, is_public: bool = False) -> str:
    """The value of the setting. `is_public`: not secret in spite of a reference. Raises Unresolved."""
    is_secret = is_secret_name(name) or (has_reference(text) and not is_public)

    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        value = _env(found[3]) if found[2] == "env" else _file(root, found[3])
        if is_secret:
            secrets.note(name, value)
        return value

    value = _REFERENCE.sub(value_of, text)
    if is_secret:
        secrets.note(name, value)
    return value


def _env(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise Unresolved(f"the environment variable {name}, which is not set")
    return value


def _file(root: Path, name: str) -> str:
    path = root / name
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise Unresolved(f"the file {path}, which cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unresolved(f"the file {path}, which is not UTF-8") from error
