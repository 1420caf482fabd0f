"""The option names of a reader or writer. Any other option is refused by name, with a suggestion.

Spark passes names in lower case, so only their letters are compared, and they are shown as documented. Must not know:
the meaning of options.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.model.errors import ConfigError

logger = logging.getLogger(__name__)

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.")
PREFIX = "kafka."
LIKENESS = 0.75
# Added by Spark for catalog tables and for queries; readers and writers ignore them.
FROM_SPARK = frozenset(("path", "serialization.format", "queryname", "checkpointlocation"))


class InvalidOption(ConfigError):
    """An unusable option of a reader or writer. The message has the option, its value, and what to write instead."""


@dataclass(frozen=True, slots=True)
class KnownOptions:
    of: str
    """source or sink"""
    client: str
    """consumer or producer"""
    options: tuple[str, ...]
    passed_over: frozenset[str]
    """Options of other readers or writers, in lower case."""
    settings: frozenset[str]
    """Kafka's settings, given with the prefix; security settings need not be listed."""
    without_effect: frozenset[str]
    refused: dict[str, str]
    """Settings that are not supported, and what to do instead."""

    def refuse_others(self, names: Iterable[str]) -> None:
        """Refuses other options. `names` are in lower case. Raises InvalidOption."""
        taken = self.passed_over.union(map(str.lower, self.options))
        for name in sorted(names):
            if name not in taken:
                self._check_setting(name, name.removeprefix(PREFIX))

    def _check_setting(self, name: str, setting: str) -> None:
        if setting in self.refused:
            raise InvalidOption(f"option '{name}' is not supported: {self.refused[setting]}")
        is_prefixed = setting != name
        if is_prefixed and setting in self.without_effect:
            logger.info("option '%s' has no effect on the penstock %s", name, self.of)
        elif not is_prefixed or not self._is_setting(setting):
            near = self._nearest(setting)
            hint = f": did you mean '{near}'?" if near else ""
            if is_prefixed:
                raise InvalidOption(
                    f"option '{name}' is not a {self.client} setting that the penstock {self.of} knows{hint}"
                )
            hint = hint or f": the options are {', '.join(self.options)} and kafka.*"
            raise InvalidOption(f"option '{name}' is not known to the penstock {self.of}{hint}")

    def _is_setting(self, setting: str) -> bool:
        return setting in self.settings or setting in self.without_effect or setting.startswith(SECURITY_PREFIXES)

    def _nearest(self, setting: str) -> str | None:
        """The name that was probably meant, as documented. A client setting without its prefix matches that setting
        first.
        """
        if self._is_setting(setting):
            return PREFIX + setting
        spellings = {_letters(name): PREFIX + name for name in sorted(self.settings | self.without_effect)}
        spellings |= {_letters(name): name for name in self.options}
        found = difflib.get_close_matches(_letters(setting), spellings, 1, LIKENESS)
        return spellings[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def to_flag(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise InvalidOption(f"option '{name}' is '{text}': write true or false")
    return value == "true"
