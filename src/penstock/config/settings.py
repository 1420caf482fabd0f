"""Which layer a broker setting comes from: given at run time, in the file, or by default.

Knows the broker's key table and nothing of what the values mean. Invariant: a name the
table does not have never gets in, and every text in a layer parses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from penstock.config.broker_keys import BROKER_SYNONYMS, LOG_ROWS, NODE_ROWS, PENSTOCK_ROWS
from penstock.config.broker_keys_cluster import CLUSTER_ROWS
from penstock.config.broker_keys_coordination import COORDINATION_ROWS
from penstock.config.broker_keys_security import SECURITY_ROWS
from penstock.config.keys import ConfigKey, ConfigValue, KeyTable

BROKER_KEYS = KeyTable(
    "broker", (NODE_ROWS, LOG_ROWS, CLUSTER_ROWS, COORDINATION_ROWS, SECURITY_ROWS, PENSTOCK_ROWS), BROKER_SYNONYMS
)

MIN_ISR = "min.insync.replicas"
FLUSH_MESSAGES = "log.flush.interval.messages"
AGREED_ON = (MIN_ISR, FLUSH_MESSAGES)
"""All brokers of a cluster must mean the same by these: they decide who may lead, and what a replica holds."""
_LISTENER_PREFIX = "listener.name."
_FACTORS_MS = ((".hours", 3_600_000), (".minutes", 60_000))


@dataclass(frozen=True, slots=True)
class Settings:
    """Texts by layer; of two layers the earlier one named here wins."""

    broker_dynamic: Mapping[str, str]
    cluster_dynamic: Mapping[str, str]
    static: Mapping[str, str]
    _values: dict[str, ConfigValue] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was parsed already: thousands of topics ask for the same defaults."""

    def __post_init__(self) -> None:
        for layer in (self.broker_dynamic, self.cluster_dynamic, self.static):
            for name, text in layer.items():
                broker_key(name).parse(text)

    def value(self, name: str) -> ConfigValue:
        if name not in self._values:
            for layer in (self.broker_dynamic, self.cluster_dynamic, self.static):
                text = layer.get(name)
                if text is not None:
                    self._values[name] = BROKER_KEYS.key(name).parse(text)
                    break
            else:
                self._values[name] = _default(name)
        return self._values[name]

    def first_value(self, names: Iterable[str], *, unit: str) -> ConfigValue:
        """The first of `names` that has a value, in milliseconds where `unit` says ms and the name a longer one."""
        for name in names:
            value = self.value(name)
            if value is None:
                continue
            if unit == "ms" and isinstance(value, int):
                for suffix, factor in _FACTORS_MS:
                    if name.endswith(suffix):
                        # Minus one means "never" in every unit.
                        return value * factor if value >= 0 else -1
            return value
        return None


@cache
def _default(name: str) -> ConfigValue:
    """The same in all settings: every change of one makes new ones."""
    return BROKER_KEYS.key(name).default_value


NOTHING_SET = Settings({}, {}, {})


def listener_override(name: str) -> str | None:
    """The key behind listener.name.<listener>.<key>, if it is one."""
    if name.startswith(_LISTENER_PREFIX):
        _, _, key = name.removeprefix(_LISTENER_PREFIX).partition(".")
        while key and key not in BROKER_KEYS:
            # SASL keys carry the mechanism as well: listener.name.<listener>.<mechanism>.<key>.
            _, _, key = key.partition(".")
        return key or None
    return None


def broker_key(name: str) -> ConfigKey:
    """The key of a broker setting, with or without a listener's prefix."""
    return BROKER_KEYS.key(listener_override(name) or name)
