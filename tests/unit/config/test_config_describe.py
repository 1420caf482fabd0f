"""Expected answers are those of Apache Kafka 4.3 to the same settings."""

from __future__ import annotations

from penstock.config.broker import BrokerConfig
from penstock.config.broker_keys import PENSTOCK_ROWS
from penstock.config.describe import (
    ConfigEntry,
    Source,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from penstock.config.keys import ConfigType
from penstock.config.settings import NOTHING_SET, Settings

GIVEN = Settings(
    broker_dynamic={"message.max.bytes": "500000"},
    cluster_dynamic={"log.retention.ms": "5000000"},
    static={
        "node.id": "1",
        "log.retention.hours": "24",
        "log.roll.hours": "5",
        "log.segment.bytes": "6000000",
        "ssl.keystore.password": "hunter2",
        "listener.name.plaintext.max.connections": "77",
    },
)


def by_name(entries: list[ConfigEntry]) -> dict[str, ConfigEntry]:
    named = {entry.name: entry for entry in entries}
    assert len(named) == len(entries)
    return named


def test_a_topic_lists_every_setting_once() -> None:
    entries = by_name(describe_topic({}, NOTHING_SET))
    assert len(entries) == 33
    assert "internal.segment.bytes" not in entries
    assert all(not entry.read_only and not entry.sensitive for entry in entries.values())
    assert all(entry.source is Source.DEFAULT_CONFIG for entry in entries.values())


def test_a_topic_override_comes_before_the_brokers_layers() -> None:
    entry = by_name(describe_topic({"retention.ms": " 777777"}, GIVEN))["retention.ms"]
    assert entry.value == "777777"
    assert entry.source is Source.DYNAMIC_TOPIC_CONFIG
    assert entry.type is ConfigType.LONG
    assert entry.synonyms == (
        ("retention.ms", "777777", Source.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "5000000", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", "24", Source.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", Source.DEFAULT_CONFIG),
    )


def test_a_topic_default_from_the_broker() -> None:
    entries = by_name(describe_topic({}, GIVEN))
    assert entries["max.message.bytes"].value == "500000"
    assert entries["max.message.bytes"].source is Source.DYNAMIC_BROKER_CONFIG
    assert entries["segment.bytes"].synonyms == (
        ("log.segment.bytes", "6000000", Source.STATIC_BROKER_CONFIG),
        ("log.segment.bytes", "1073741824", Source.DEFAULT_CONFIG),
    )
    # Kafka hides a coarser unit behind a name that is not set itself.
    assert entries["segment.ms"].value == "18000000"
    assert entries["segment.ms"].source is Source.DEFAULT_CONFIG
    assert entries["segment.ms"].synonyms == ()


def test_internal_topic_settings_show_when_set() -> None:
    entries = by_name(describe_topic({"internal.segment.bytes": "5000"}, NOTHING_SET))
    assert entries["internal.segment.bytes"].value == "5000"
    assert entries["internal.segment.bytes"].source is Source.DYNAMIC_TOPIC_CONFIG


def test_names_choose() -> None:
    entries = describe_topic({}, NOTHING_SET, ["retention.ms", "no.such.name"])
    assert [entry.name for entry in entries] == ["retention.ms"]
    assert [entry.name for entry in describe_broker(GIVEN, ["node.id"])] == ["node.id"]
    assert describe_topic({}, NOTHING_SET, []) == []


def test_a_broker() -> None:
    entries = by_name(describe_broker(GIVEN))
    assert len(entries) == 340 + len(PENSTOCK_ROWS) + 1
    assert entries["node.id"][1:4] == ("1", True, Source.STATIC_BROKER_CONFIG)
    assert entries["num.partitions"][1:4] == ("1", True, Source.DEFAULT_CONFIG)
    assert entries["message.max.bytes"][1:4] == ("500000", False, Source.DYNAMIC_BROKER_CONFIG)
    assert entries["log.retention.ms"].value == "5000000"
    assert entries["log.retention.ms"].synonyms == (
        ("log.retention.ms", "5000000", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", "24", Source.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", Source.DEFAULT_CONFIG),
    )
    assert entries["log.retention.hours"].value == "24"
    assert entries["log.roll.ms"][1:4] == (None, False, Source.DEFAULT_CONFIG)
    assert entries["log.roll.ms"].synonyms == ()
    assert entries["unclean.leader.election.enable"].type is ConfigType.BOOLEAN


def test_passwords_are_never_shown() -> None:
    entry = by_name(describe_broker(GIVEN))["ssl.keystore.password"]
    assert entry.value is None
    assert entry.sensitive
    assert entry.synonyms == (("ssl.keystore.password", None, Source.STATIC_BROKER_CONFIG),)
    assert "hunter2" not in repr(describe_broker(GIVEN))


def test_a_listeners_own_setting() -> None:
    entry = by_name(describe_broker(GIVEN))["listener.name.plaintext.max.connections"]
    assert entry.value == "77"
    assert entry.synonyms == (
        ("listener.name.plaintext.max.connections", "77", Source.STATIC_BROKER_CONFIG),
        ("max.connections", "2147483647", Source.DEFAULT_CONFIG),
    )


def test_broker_defaults_are_only_what_was_set() -> None:
    assert describe_broker_defaults(NOTHING_SET) == []
    (entry,) = describe_broker_defaults(GIVEN)
    assert entry[:4] == ("log.retention.ms", "5000000", False, Source.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_a_group() -> None:
    entries = by_name(describe_group({"consumer.session.timeout.ms": "50000"}, NOTHING_SET))
    assert len(entries) == 17
    assert entries["consumer.session.timeout.ms"].source is Source.GROUP_CONFIG
    assert entries["consumer.session.timeout.ms"].synonyms == (
        ("consumer.session.timeout.ms", "50000", Source.GROUP_CONFIG),
        ("group.consumer.session.timeout.ms", "45000", Source.DEFAULT_CONFIG),
    )
    assert entries["share.auto.offset.reset"].value == "latest"
    assert entries["share.auto.offset.reset"].synonyms == (
        ("share.auto.offset.reset", "latest", Source.DEFAULT_CONFIG),
    )


def test_a_loaded_broker_tells_where_it_runs() -> None:
    config, _ = BrokerConfig.load(None, {}, environ={"XDG_DATA_HOME": "/d"})
    entries = by_name(describe_broker(config.settings))
    assert entries["log.dirs"].value == "/d/penstock"
    assert entries["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert entries["broker.id"].value == "1"
