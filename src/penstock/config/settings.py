"""Layers of broker settings: dynamic, from the file, and defaults.

Must not know: what the values mean. Invariant: every name in a layer is in the broker's key
table, and every text in a layer parses.
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
"""All brokers of a cluster must agree on these: they decide which replica may lead and what a replica holds."""
_LISTENER_PREFIX = "listener.name."
_FACTORS_MS = ((".hours", 3_600_000), (".minutes", 60_000))


@dataclass(frozen=True, slots=True)
class Settings:
    """Texts by layer. The first layer with a value wins, in the order of the fields."""

    broker_dynamic: Mapping[str, str]
    cluster_dynamic: Mapping[str, str]
    static: Mapping[str, str]
    _values: dict[str, ConfigValue] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Values already parsed: thousands of topics use the same defaults."""

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
        """The first value among `names`, converted to milliseconds if `unit` is ms and the name has a longer unit."""
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
    """Cached for all `Settings`, because every change of a setting makes a new object."""
    return BROKER_KEYS.key(name).default_value


NOTHING_SET = Settings({}, {}, {})


def listener_override(name: str) -> str | None:
    """The key in listener.name.<listener>.<key>; None for other names."""
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
