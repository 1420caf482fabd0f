"""Builds DescribeConfigs answers: every setting of a resource with its value, source and synonyms.

Pure functions from settings to entries; must not know: the wire. Sources, synonyms and
their order are Kafka's. As in Kafka, a chain of synonyms starts at the first entry with
the requested name, so `log.retention.ms` shows `log.retention.hours` only when it is set
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from penstock.config.group import GROUP_KEYS, group_value
from penstock.config.keys import ConfigKey, ConfigType, ConfigValue, Dynamic, KeyTable
from penstock.config.settings import BROKER_KEYS, Settings, broker_key, listener_override
from penstock.config.topic import TOPIC_KEYS, topic_value


class Source(IntEnum):
    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    """None if there is no value or if it is secret."""
    read_only: bool
    source: Source
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str


def describe_topic(
    overrides: Mapping[str, str], settings: Settings, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    return _describe_overridable(TOPIC_KEYS, topic_value, Source.DYNAMIC_TOPIC_CONFIG, overrides, settings, names)


def describe_group(
    overrides: Mapping[str, str], settings: Settings, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    return _describe_overridable(GROUP_KEYS, group_value, Source.GROUP_CONFIG, overrides, settings, names)


def describe_broker(settings: Settings, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """One broker, by id: all settings it uses."""
    layers = (settings.broker_dynamic, settings.cluster_dynamic, settings.static)
    given = {name for layer in layers for name in layer}
    listed = [name for name in BROKER_KEYS if name in given or not BROKER_KEYS[name].internal]
    listed += sorted(name for name in given if name not in BROKER_KEYS)
    entries: list[ConfigEntry] = []
    for name in _chosen(listed, names):
        key = broker_key(name)
        synonyms = _broker_synonyms(name, settings)
        shown = synonyms[0].value if synonyms and synonyms[0].name == name else _shown(key, key.default_value)
        entries.append(_entry(key, name, shown, synonyms, read_only=key.dynamic is Dynamic.READ_ONLY))
    return entries


def describe_broker_defaults(settings: Settings, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The broker resource without an id: only the dynamic cluster-wide settings."""
    entries: list[ConfigEntry] = []
    for name in _chosen(sorted(settings.cluster_dynamic), names):
        key = broker_key(name)
        shown = _shown(key, key.parse(settings.cluster_dynamic[name]))
        synonyms = (Synonym(name, shown, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),)
        entries.append(_entry(key, name, shown, synonyms, read_only=False))
    return entries


def _describe_overridable(
    keys: KeyTable,
    value_of: Callable[[ConfigKey, Mapping[str, str], Settings], ConfigValue],
    source: Source,
    overrides: Mapping[str, str],
    settings: Settings,
    names: Collection[str] | None,
) -> list[ConfigEntry]:
    listed = [name for name in keys if name in overrides or not keys[name].internal]
    entries: list[ConfigEntry] = []
    for name in _chosen(listed, names):
        key = keys[name]
        shown = _shown(key, value_of(key, overrides, settings))
        synonyms = _broker_synonyms(key.synonyms[0], settings) if key.synonyms else ()
        if not key.synonyms and source is Source.GROUP_CONFIG:
            synonyms = (Synonym(name, key.default, Source.DEFAULT_CONFIG),)
        if name in overrides:
            synonyms = (Synonym(name, shown, source), *synonyms)
        entries.append(_entry(key, name, shown, synonyms, read_only=False))
    return entries


def _chosen(listed: Iterable[str], names: Collection[str] | None) -> list[str]:
    return [name for name in listed if names is None or name in names]


def _shown(key: ConfigKey, value: ConfigValue) -> str | None:
    return None if key.sensitive else key.format(value)


def _entry(
    key: ConfigKey, name: str, shown: str | None, synonyms: tuple[Synonym, ...], *, read_only: bool
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
    return ConfigEntry(name, shown, read_only, source, key.sensitive, synonyms, key.type, key.doc)


def _broker_synonyms(name: str, settings: Settings) -> tuple[Synonym, ...]:
    base = listener_override(name)
    candidates = (name, base) if base else (name, *BROKER_KEYS[name].synonyms)
    found: list[Synonym] = []
    for layer, source in (
        (settings.broker_dynamic, Source.DYNAMIC_BROKER_CONFIG),
        (settings.cluster_dynamic, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (settings.static, Source.STATIC_BROKER_CONFIG),
    ):
        for candidate in candidates:
            if candidate in layer:
                key = broker_key(candidate)
                found.append(Synonym(candidate, _shown(key, key.parse(layer[candidate])), source))
    for candidate in candidates:
        if candidate in BROKER_KEYS and BROKER_KEYS[candidate].default is not None:
            found.append(Synonym(candidate, BROKER_KEYS[candidate].default, Source.DEFAULT_CONFIG))
    first = next((position for position, synonym in enumerate(found) if synonym.name == name), len(found))
    return tuple(found[first:])
