"""Expected answers are those of Apache Kafka 4.3 to the same operations."""

from __future__ import annotations

import pytest

from penstock.config.alter import (
    Alteration,
    Operation,
    alter_broker,
    alter_group,
    alter_topic,
    apply_incremental,
)
from penstock.config.settings import NOTHING_SET, Settings
from penstock.config.topic import TOPIC_KEYS
from penstock.model.errors import ApiError, ConfigError, ErrorCode

SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.mark.parametrize(
    ("current", "operation", "value", "expected"),
    [
        ({}, SET, "compact", "compact"),
        ({"cleanup.policy": "delete"}, SET, "compact", "compact"),
        ({}, SET, "", ""),
        ({"cleanup.policy": "compact"}, DELETE, None, None),
        ({}, DELETE, "", None),
        ({}, APPEND, "compact", "delete,compact"),
        ({"cleanup.policy": "delete,compact"}, APPEND, "compact,compact", "delete,compact"),
        ({"cleanup.policy": ""}, APPEND, "compact", "compact"),
        ({"cleanup.policy": "delete,compact"}, SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact"}, SUBTRACT, "compact", ""),
        ({"cleanup.policy": "compact"}, SUBTRACT, "zzz", "compact"),
        ({}, SUBTRACT, "delete", ""),
    ],
)
def test_operations_on_a_list(
    current: dict[str, str], operation: Operation, value: str | None, expected: str | None
) -> None:
    before = dict(current)
    after = alter_topic(current, [Alteration("cleanup.policy", operation, value)], NOTHING_SET)
    assert after == ({} if expected is None else {"cleanup.policy": expected})
    assert current == before


def test_append_starts_from_the_brokers_default() -> None:
    settings = Settings({}, {}, {"log.cleanup.policy": "compact"})
    assert alter_topic({}, [Alteration("cleanup.policy", APPEND, "delete")], settings) == {
        "cleanup.policy": "compact,delete"
    }
    assert apply_incremental({}, [Alteration("cleanup.policy", APPEND, "compact")], TOPIC_KEYS) == {
        "cleanup.policy": "delete,compact"
    }


@pytest.mark.parametrize(
    ("alterations", "sentence"),
    [
        ([("nope", SET, "1")], "Unknown topic config name: nope"),
        ([("nope", APPEND, "1")], "Unknown topic config name: nope"),
        ([("retention.ms", APPEND, "1")], "Can't APPEND to key retention.ms because its type is not LIST."),
        ([("retention.ms", SUBTRACT, "1")], "Can't SUBTRACT to key retention.ms because its type is not LIST."),
        ([("retention.ms", SET, "")], "Invalid value  for configuration retention.ms: Not a number of type LONG"),
        (
            [("cleanup.policy", APPEND, "bogus")],
            "Invalid value bogus for configuration cleanup.policy: String must be one of: compact, delete",
        ),
    ],
)
def test_bad_topic_settings(alterations: list[tuple[str, Operation, str]], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        alter_topic({}, [Alteration(*alteration) for alteration in alterations], NOTHING_SET)
    assert str(caught.value) == sentence


def test_deleting_an_unknown_name_is_no_error() -> None:
    assert alter_topic({"retention.ms": "5"}, [Alteration("nope", DELETE, None)], NOTHING_SET) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("alterations", "sentence"),
    [
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], "Error due to duplicate config keys"),
        ([("retention.ms", SET, None), ("flush.ms", SET, "1")], "Null value not supported for : retention.ms"),
        ([("retention.ms", 9, "1")], "Unknown operation type 9 for config retention.ms"),
    ],
)
def test_requests_that_contradict_themselves(
    alterations: list[tuple[str, Operation, str | None]], sentence: str
) -> None:
    with pytest.raises(ApiError) as caught:
        alter_topic({}, [Alteration(*alteration) for alteration in alterations], NOTHING_SET)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message == sentence


def test_broker_settings_that_can_change() -> None:
    changed = alter_broker({}, [Alteration("message.max.bytes", SET, "5")], NOTHING_SET, cluster_wide=True)
    assert changed == {"message.max.bytes": "5"}
    changed = alter_broker(
        {}, [Alteration("listener.name.plaintext.max.connections", SET, "50")], NOTHING_SET, cluster_wide=False
    )
    assert changed == {"listener.name.plaintext.max.connections": "50"}
    changed = alter_broker({}, [Alteration("log.cleanup.policy", APPEND, "compact")], NOTHING_SET, cluster_wide=False)
    assert changed == {"log.cleanup.policy": "delete,compact"}
    changed = alter_broker({}, [Alteration("ssl.keystore.type", SET, "JKS")], NOTHING_SET, cluster_wide=False)
    assert changed == {"ssl.keystore.type": "JKS"}


@pytest.mark.parametrize(
    ("name", "operation", "value", "cluster_wide", "sentence"),
    [
        ("num.partitions", SET, "4", False, "Cannot update these configs dynamically: [num.partitions]"),
        (
            "ssl.keystore.type",
            SET,
            "JKS",
            True,
            "Cannot update these configs at default cluster level, broker id must be specified: [ssl.keystore.type]",
        ),
        ("made.up", SET, "4", False, "Unknown broker config name: made.up"),
        (
            "message.max.bytes",
            SET,
            "-5",
            False,
            "Invalid value -5 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            "message.max.bytes",
            APPEND,
            "5",
            False,
            "Can't APPEND to key message.max.bytes because its type is not LIST.",
        ),
    ],
)
def test_broker_settings_that_cannot(
    name: str, operation: Operation, value: str, cluster_wide: bool, sentence: str
) -> None:
    with pytest.raises(ApiError) as caught:
        alter_broker({}, [Alteration(name, operation, value)], NOTHING_SET, cluster_wide=cluster_wide)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message == sentence


def test_group_settings() -> None:
    changed = alter_group({}, [Alteration("consumer.session.timeout.ms", SET, "50000")], NOTHING_SET)
    assert changed == {"consumer.session.timeout.ms": "50000"}
    assert alter_group(changed, [Alteration("consumer.session.timeout.ms", DELETE, None)], NOTHING_SET) == {}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("nope", "5", "Unknown group config name: nope"),
        (
            "consumer.session.timeout.ms",
            "5",
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            "consumer.session.timeout.ms",
            "60001",
            "consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            "consumer.session.timeout.ms",
            "-1",
            "Invalid value -1 for configuration consumer.session.timeout.ms: Value must be at least 1",
        ),
    ],
)
def test_bad_group_settings(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        alter_group({}, [Alteration(name, SET, value)], NOTHING_SET)
    assert str(caught.value) == sentence


def test_a_session_must_outlast_a_heartbeat() -> None:
    settings = Settings({}, {}, {"group.consumer.max.heartbeat.interval.ms": "50000"})
    with pytest.raises(ConfigError, match=r"^consumer\.session\.timeout\.ms must be greater than consumer\.heartbeat"):
        alter_group({}, [Alteration("consumer.heartbeat.interval.ms", SET, "45000")], settings)
