"""Which option names a reader or writer takes; any other is refused by name, with the one that was likely meant.

Spark hands names over in lower case, so they are compared by their letters alone and shown as documented. Must not
know: what an option means.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.spark.positions import InvalidOption

logger = logging.getLogger(__name__)

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.")
PREFIX = "kafka."
LIKENESS = 0.75


@dataclass(frozen=True, slots=True)
class KnownOptions:
    of: str
    """source or sink"""
    client: str
    """consumer or producer"""
    options: tuple[str, ...]
    passed_over: frozenset[str]
    """Of others; in lower case."""
    settings: frozenset[str]
    """Kafka's, given with the prefix; those of security need not be among them."""
    without_effect: frozenset[str]
    refused: dict[str, str]
    """Settings that cannot be followed, and what to do instead."""

    def refuse_others(self, names: Iterable[str]) -> None:
        """`names` are in lower case. Raises InvalidOption."""
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
            hint = hint or f": there are {', '.join(self.options)} and kafka.*"
            raise InvalidOption(f"option '{name}' is not known to the penstock {self.of}{hint}")

    def _is_setting(self, setting: str) -> bool:
        return setting in self.settings or setting in self.without_effect or setting.startswith(SECURITY_PREFIXES)

    def _nearest(self, setting: str) -> str | None:
        """As it is to be written. A setting that lacks its prefix is that setting, whatever else looks like it."""
        if self._is_setting(setting):
            return PREFIX + setting
        spellings = {_letters(name): PREFIX + name for name in sorted(self.settings | self.without_effect)}
        spellings |= {_letters(name): name for name in self.options}
        found = difflib.get_close_matches(_letters(setting), spellings, 1, LIKENESS)
        return spellings[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
