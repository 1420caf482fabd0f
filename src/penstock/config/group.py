"""Group settings: the key table, and the limits a broker sets for them.

Must not know: which groups exist. A group without members or offsets has settings too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from penstock.config.group_keys import GROUP_ROWS, GROUP_SYNONYMS
from penstock.config.keys import ConfigKey, ConfigValue, KeyTable
from penstock.config.settings import Settings
from penstock.model.errors import ConfigError

GROUP_KEYS = KeyTable("group", (GROUP_ROWS,), GROUP_SYNONYMS)

# Each must lie between group.<kind>.min.<rest> and group.<kind>.max.<rest>.
_LIMITED = (
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
)


def group_value(key: ConfigKey, overrides: Mapping[str, str], settings: Settings) -> ConfigValue:
    text = overrides.get(key.name)
    if text is not None:
        return key.parse(text)
    return settings.first_value(key.synonyms, unit=key.unit) if key.synonyms else key.default_value


def validate_group_overrides(overrides: Mapping[str, str], settings: Settings) -> None:
    """Raise ConfigError with Kafka's message for the first invalid name or value."""
    for name, text in overrides.items():
        GROUP_KEYS.parse(name, text)
    for name in _LIMITED:
        if name not in overrides:
            continue
        value = cast(int, GROUP_KEYS.parse(name, overrides[name]))
        kind, _, rest = name.partition(".")
        low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        if value < cast(int, settings.value(low)):
            raise ConfigError(f"{name} must be greater than or equal to {low}")
        if value > cast(int, settings.value(high)):
            raise ConfigError(f"{name} must be less than or equal to {high}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if session not in overrides and heartbeat not in overrides:
            continue
        values = [cast(int, group_value(GROUP_KEYS[name], overrides, settings)) for name in (session, heartbeat)]
        if values[0] <= values[1]:
            raise ConfigError(f"{session} must be greater than {heartbeat}")
