"""Topic settings: the key table, and the effective settings of one topic.

`TopicConfig` is what the log and the partition see: typed, frozen, all defaults resolved.
Must not know: which topics exist. Invariants: a value comes from the topic's own overrides,
else from the first of its broker settings that has a value, else from the table; each
field is named after its key, with _ for the dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

from penstock.config.keys import ConfigKey, ConfigValue, KeyTable
from penstock.config.settings import NOTHING_SET, Settings
from penstock.config.topic_keys import TOPIC_ROWS, TOPIC_SYNONYMS
from penstock.model.errors import ConfigError

TOPIC_KEYS = KeyTable("topic", (TOPIC_ROWS,), TOPIC_SYNONYMS)


class Configured(Protocol):
    """The part of `BrokerConfig` that a topic needs."""

    @property
    def settings(self) -> Settings: ...


class TopicConfig(NamedTuple):
    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: Configured | None = None) -> TopicConfig:
        """`overrides` have passed `validate_topic_overrides`. Without a broker, the defaults apply."""
        settings = NOTHING_SET if broker is None else broker.settings
        fields: dict[str, Any] = {}
        for field in cls._fields:
            fields[field] = topic_value(_key(field), overrides, settings)
        fields["cleanup_policy"] = frozenset(fields["cleanup_policy"])
        # A negative broker default means "never", as in Kafka.
        fields["retention_ms"] = max(fields["retention_ms"], -1)
        segment_bytes = overrides.get("internal.segment.bytes")
        if segment_bytes is not None:
            fields["segment_bytes"] = TOPIC_KEYS.parse("internal.segment.bytes", segment_bytes)
        return cls(**fields)


@cache
def _key(field: str) -> ConfigKey:
    return TOPIC_KEYS[field.replace("_", ".")]


def topic_value(key: ConfigKey, overrides: Mapping[str, str], settings: Settings) -> ConfigValue:
    text = overrides.get(key.name)
    if text is not None:
        return key.parse(text)
    if key.synonyms:
        return settings.first_value(key.synonyms, unit=key.unit)
    return key.default_value


def validate_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raise ConfigError with Kafka's message for the first invalid name or value."""
    for name, text in overrides.items():
        value = TOPIC_KEYS.parse(name, text)
        if name == "remote.storage.enable" and value:
            raise ConfigError(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
    lags = [
        cast(int, TOPIC_KEYS.parse(name, overrides[name]) if name in overrides else TOPIC_KEYS[name].default_value)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    ]
    if lags[0] > lags[1]:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({lags[0]}) > max.compaction.lag.ms ({lags[1]})"
        )
