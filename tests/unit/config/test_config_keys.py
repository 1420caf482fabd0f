from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.group import GROUP_KEYS
from penstock.config.keys import ConfigType, Dynamic, KeyTable
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS
from penstock.model.errors import ConfigError

ALL_TABLES = (TOPIC_KEYS, BROKER_KEYS, GROUP_KEYS)

# The sentences of Apache Kafka 4.3 for the same values.
REFUSED = [
    (TOPIC_KEYS, "retention.ms", "abc", "Not a number of type LONG"),
    (TOPIC_KEYS, "retention.ms", "", "Not a number of type LONG"),
    (TOPIC_KEYS, "retention.ms", "-5", "Value must be at least -1"),
    (TOPIC_KEYS, "retention.ms", "1_000", "Not a number of type LONG"),
    (TOPIC_KEYS, "segment.bytes", "5", "Value must be at least 1048576"),
    (TOPIC_KEYS, "segment.bytes", "99999999999", "Not a number of type INT"),
    (TOPIC_KEYS, "segment.bytes", "1e7", "Not a number of type INT"),
    (TOPIC_KEYS, "preallocate", "yes", "Expected value to be either true or false"),
    (TOPIC_KEYS, "min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
    (TOPIC_KEYS, "min.cleanable.dirty.ratio", "half", "Not a number of type DOUBLE"),
    (TOPIC_KEYS, "compression.lz4.level", "18", "Value must be no more than 17"),
    (TOPIC_KEYS, "compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    (TOPIC_KEYS, "cleanup.policy", "bogus", "String must be one of: compact, delete"),
    (TOPIC_KEYS, "message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    (
        TOPIC_KEYS,
        "compression.type",
        "brotli",
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    (BROKER_KEYS, "num.partitions", "-5", "Value must be at least 1"),
    (BROKER_KEYS, "sasl.login.refresh.buffer.seconds", "32768", "Not a number of type SHORT"),
    (
        BROKER_KEYS,
        "group.consumer.migration.policy",
        "sideways",
        "String must be one of (case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL",
    ),
    (BROKER_KEYS, "remote.log.storage.manager.impl.prefix", "", "String must be non-empty"),
    (GROUP_KEYS, "share.isolation.level", "zz", "String must be one of: read_committed, read_uncommitted"),
]


@pytest.mark.parametrize(("table", "name", "text", "reason"), REFUSED)
def test_a_bad_value_is_refused_with_kafkas_sentence(table: KeyTable, name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        table.parse(name, text)
    assert str(caught.value) == f"Invalid value {text} for configuration {name}: {reason}"


def test_throttled_replicas() -> None:
    name = "follower.replication.throttled.replicas"
    assert TOPIC_KEYS.parse(name, "*") == ("*",)
    assert TOPIC_KEYS.parse(name, "0:1,1:2") == ("0:1", "1:2")
    assert TOPIC_KEYS.parse(name, "") == ()
    with pytest.raises(ConfigError, match=r"Invalid value \[x\] for .*must be the literal '\*' or a list"):
        TOPIC_KEYS.parse(name, "x")


def test_offset_reset() -> None:
    for text in ("earliest", "latest", "by_duration:PT1H"):
        assert GROUP_KEYS.parse("share.auto.offset.reset", text) == text
    for text in ("zz", "by_duration:", "by_duration:P"):
        with pytest.raises(ConfigError):
            GROUP_KEYS.parse("share.auto.offset.reset", text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " 50000 ", 50000),
        ("retention.ms", "+7", 7),
        ("retention.bytes", "-9223372036854775808", -(2**63)),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", " compact , delete ", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("compression.type", "zstd ", "zstd"),
    ],
)
def test_parse(name: str, text: str, value: object) -> None:
    parsed = TOPIC_KEYS.parse(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.kind)
def test_every_default_is_allowed_and_prints_as_it_is_written(table: KeyTable) -> None:
    for key in table.values():
        if key.default is not None:
            assert key.format(key.parse(key.default)) == key.default, key.name


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.kind)
def test_every_key_has_one_sentence_and_synonyms_that_exist(table: KeyTable) -> None:
    for name, key in table.items():
        assert key.name == name
        assert key.doc.endswith(".")
        assert "  " not in key.doc
        assert all(synonym in BROKER_KEYS for synonym in key.synonyms), name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (-2.5e300, "-2.5E300"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles_print_as_java_prints_them(value: float, text: str) -> None:
    assert BROKER_KEYS["log.cleaner.io.max.bytes.per.second"].format(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_reads_back(value: float) -> None:
    key = BROKER_KEYS["log.cleaner.io.max.bytes.per.second"]
    text = key.format(value)
    assert text is not None
    assert key.parse(text) == value


def test_units_dynamics_and_sensitivity() -> None:
    assert BROKER_KEYS["log.retention.hours"].unit == "hours"
    assert BROKER_KEYS["log.cleaner.io.max.bytes.per.second"].unit == "bytes/s"
    assert BROKER_KEYS["delegation.token.expiry.time.ms"].unit == "ms"
    assert BROKER_KEYS["num.partitions"].unit == ""
    assert BROKER_KEYS["num.partitions"].dynamic is Dynamic.READ_ONLY
    assert BROKER_KEYS["message.max.bytes"].dynamic is Dynamic.CLUSTER_WIDE
    assert BROKER_KEYS["ssl.keystore.password"].dynamic is Dynamic.PER_BROKER
    assert BROKER_KEYS["ssl.keystore.password"].sensitive
    assert BROKER_KEYS["ssl.keystore.password"].type is ConfigType.PASSWORD
    assert not BROKER_KEYS["ssl.keystore.type"].sensitive


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"^Unknown topic config name: nope$"):
        TOPIC_KEYS.parse("nope", "1")
    assert "nope" not in TOPIC_KEYS
