from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TOPIC_KEYS, TopicConfig, validate_topic_overrides
from penstock.model.errors import ConfigError


def broker(**static: str) -> BrokerConfig:
    return BrokerConfig.load(
        None, {name.replace("_", "."): text for name, text in static.items()}, environ={"HOME": "/h"}
    )[0]


def test_defaults_are_kafkas_except_for_the_flush() -> None:
    config = TopicConfig.resolve({})
    assert config == TopicConfig.resolve({}, broker())
    assert config.flush_messages == 1
    assert config.flush_ms == 2**63 - 1
    assert config.segment_bytes == 1 << 30
    assert config.segment_ms == config.retention_ms == 7 * 24 * 3_600_000
    assert config.cleanup_policy == frozenset({"delete"})
    assert config.max_message_bytes == 1_048_588
    assert config.min_insync_replicas == 1
    assert not config.log_append_time


def test_overrides_win() -> None:
    config = TopicConfig.resolve(
        {"retention.ms": "5", "cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
        broker(log_retention_ms="7"),
    )
    assert config.retention_ms == 5
    assert config.cleanup_policy == frozenset({"compact", "delete"})
    assert config.log_append_time


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log_retention_hours": "24"}, 86_400_000),
        ({"log_retention_hours": "24", "log_retention_minutes": "3"}, 180_000),
        ({"log_retention_hours": "24", "log_retention_minutes": "3", "log_retention_ms": "9"}, 9),
        ({"log_retention_hours": "-1"}, -1),
        ({"log_retention_minutes": "-1"}, -1),
        ({"log_retention_ms": "-5"}, -1),
    ],
)
def test_retention_comes_from_the_nearest_of_its_synonyms(static: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig.resolve({}, broker(**static)).retention_ms == retention_ms


@pytest.mark.parametrize(
    ("field", "static", "value"),
    [
        ("segment_ms", {"log_roll_hours": "5"}, 18_000_000),
        ("segment_ms", {"log_roll_hours": "5", "log_roll_ms": "6"}, 6),
        ("segment_jitter_ms", {"log_roll_jitter_hours": "1"}, 3_600_000),
        ("flush_ms", {"log_flush_scheduler_interval_ms": "7000"}, 7000),
        ("flush_ms", {"log_flush_scheduler_interval_ms": "7000", "log_flush_interval_ms": "8"}, 8),
        ("flush_messages", {"log_flush_interval_messages": "100"}, 100),
        ("segment_bytes", {"log_segment_bytes": "1048576"}, 1_048_576),
        ("segment_index_bytes", {"log_index_size_max_bytes": "80"}, 80),
        ("max_message_bytes", {"message_max_bytes": "99"}, 99),
        ("cleanup_policy", {"log_cleanup_policy": "compact"}, frozenset({"compact"})),
        ("min_cleanable_dirty_ratio", {"log_cleaner_min_cleanable_ratio": "0.1"}, 0.1),
        ("preallocate", {"log_preallocate": "true"}, True),
        ("min_insync_replicas", {"min_insync_replicas": "2"}, 2),
    ],
)
def test_broker_settings_supply_defaults(field: str, static: dict[str, str], value: object) -> None:
    assert getattr(TopicConfig.resolve({}, broker(**static)), field) == value


def test_dynamic_broker_settings_supply_defaults() -> None:
    changed = broker(log_retention_hours="24").with_dynamic(cluster={"log.retention.ms": "5"}, broker={})
    assert TopicConfig.resolve({}, changed).retention_ms == 5


def test_internal_segment_bytes_allows_tiny_segments() -> None:
    overrides = {"internal.segment.bytes": "500", "segment.bytes": "2000000"}
    validate_topic_overrides(overrides)
    assert TopicConfig.resolve(overrides).segment_bytes == 500


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"nope": "1"}, "Unknown topic config name: nope"),
        ({"num.partitions": "1"}, "Unknown topic config name: num.partitions"),
        ({"flush.messages": "0"}, "Invalid value 0 for configuration flush.messages: Value must be at least 1"),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
    ],
)
def test_overrides_are_refused_with_kafkas_sentence(overrides: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_overrides(overrides)
    assert str(caught.value) == sentence


def test_overrides_that_kafka_takes() -> None:
    validate_topic_overrides({})
    validate_topic_overrides({"cleanup.policy": "", "local.retention.ms": "999999999999", "retention.ms": "-1"})


def test_every_key_with_an_effect_is_a_field() -> None:
    fields = {field.replace("_", ".") for field in TopicConfig._fields} | {"internal.segment.bytes"}
    assert {name for name, key in TOPIC_KEYS.items() if key.effective} <= fields
