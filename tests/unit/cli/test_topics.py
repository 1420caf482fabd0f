"""Topic and cluster commands against a real broker; the seed's are word for word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from penstock.cli.topics import LOST_WITH
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.sdk import BlockingAdmin, TopicPartition
from penstock.testing import Broker
from support.processes.command_line import CommandLine

PARTITION = re.compile(r"Partition (\d+): Leader=(\d+), ISR=\[\d+(?:,\d+)*\]")


def test_create_describe_alter_as_in_the_seed(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_broker_factory().bootstrap_servers)
    assert cli("topics", "create", "--name", "events", "--partitions", "3").lines == [
        "Created topic events with 3 partitions, replication factor 1."
    ]
    described = cli("topics", "describe", "--name", "events").lines
    assert described == [f"Partition {number}: Leader=1, ISR=[1]" for number in range(3)]
    assert all(map(PARTITION.fullmatch, described))
    assert cli("topics", "alter", "--name", "events", "--partitions", "6").lines == [
        "Topic events now has 6 partitions (before: 3)."
    ]
    assert len(cli("topics", "describe", "--name", "events").lines) == 6
    assert cli("topics", "list").lines == ["TOPIC   PARTITIONS  REPLICATION", "events           6            1"]


def test_a_topic_of_the_system_is_deleted_only_by_force(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(LOST_WITH) == INTERNAL_TOPICS
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_broker_factory().bootstrap_servers)
    cli("topics", "create", "--name", "events")
    assert cli("groups", "reset-offsets", "--group", "g", "--topic", "events", "--to-earliest").code == 0
    ran = cli("topics", "delete", "--name", "__consumer_offsets")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("penstock: __consumer_offsets is an internal topic: all groups and their committed")
    assert "--force" in ran.err
    assert cli("groups", "list").lines[1].split()[0] == "g"
    assert cli("topics", "delete", "--name", "__consumer_offsets", "--force").code == 0


def test_three_replicas_need_three_brokers(cli: CommandLine, topic: str) -> None:
    ran = cli("topics", "create", "--name", topic, "--partitions", "3", "--replication-factor", "3")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith(f"penstock: cannot create topic {topic}: ")
    assert "INVALID_REPLICATION_FACTOR" in ran.err
    assert "as many brokers as replicas" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_partitions_never_decrease(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "3")
    ran = cli("topics", "alter", "--name", topic, "--partitions", "2")
    assert ran.code == 1
    assert f"cannot increase topic {topic} to 2 partitions" in ran.err
    assert "INVALID_PARTITIONS" in ran.err


def test_create_twice_and_delete(cli: CommandLine, topic: str) -> None:
    assert cli("topics", "create", "--name", topic, "--partitions", "1").code == 0
    again = cli("topics", "create", "--name", topic)
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert "already exists" in cli("topics", "create", "--name", topic, "--if-not-exists").lines[0]
    assert cli("topics", "delete", "--name", topic).lines == [f"Deleted topic {topic}."]
    gone = cli("topics", "delete", "--name", topic)
    assert gone.code == 1
    assert topic in gone.err
    assert cli("topics", "delete", "--name", topic, "--if-exists").lines == [f"There is no topic {topic}."]


def test_describing_what_is_not_there_creates_nothing(cli: CommandLine, topic: str) -> None:
    ran = cli("topics", "describe", "--name", topic)
    assert ran.code == 1
    assert ran.err.startswith(f"penstock: topic {topic}: ")
    assert topic not in cli("topics", "list", "--internal").out


def test_details_and_json(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1", "--config", "retention.ms=60000")
    cli("produce", "--topic", topic, stdin=b"a\nb\n")
    assert cli("topics", "describe", "--name", topic, "--details").lines == [
        "PARTITION  LEADER  REPLICAS  ISR  ELR  START  END",
        "        0       1  [1]       [1]  []       0    2",
        "retention.ms=60000",
    ]
    assert json.loads(cli("topics", "describe", "--name", topic, "--json").out) == {
        "topic": topic,
        "partitions": [
            {
                "partition": 0,
                "leader": 1,
                "replicas": [1],
                "isr": [1],
                "elr": [],
                "log_start_offset": 0,
                "log_end_offset": 2,
            }
        ],
        "configs": {"retention.ms": "60000"},
    }
    listed = json.loads(cli("topics", "list", "--json").out)
    assert {"topic": topic, "partitions": 1, "replication_factor": 1, "under_replicated": 0} in listed


def test_cluster_status_as_in_the_seed(cli: CommandLine, penstock_broker: Broker, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "2")
    lines = cli("cluster", "status").lines
    assert lines[0].startswith("Cluster:    ")
    assert lines[1] == "Status:     healthy"
    assert re.fullmatch(r"Partitions: \d+ \(0 under-replicated, 0 offline\)", lines[3])
    assert lines[4].split() == ["BROKER", "ADDRESS", "LEADS", "ROLE"]
    broker_id, address, _, role = lines[5].split()
    assert (broker_id, address, role) == ("1", penstock_broker.bootstrap_servers, "controller")
    status = json.loads(cli("cluster", "status", "--json").out)
    assert status["status"] == "healthy"
    assert status["brokers"] == [{"id": 1, "host": "127.0.0.1", "port": penstock_broker.port, "rack": None}]


def test_cluster_under_replicated_as_in_the_seed(cli: CommandLine) -> None:
    ran = cli("cluster", "under-replicated")
    assert (ran.code, ran.out, ran.err) == (0, "", "No under-replicated partitions.\n")
    assert json.loads(cli("cluster", "under-replicated", "--json").out) == []


def test_configs(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    assert "retention.ms" not in cli("configs", "describe", "--topic", topic).out
    assert cli("configs", "set", "--topic", topic, "retention.ms=1000", "segment.bytes=2000000").lines == [
        f"topic {topic}: retention.ms=1000",
        f"topic {topic}: segment.bytes=2000000",
    ]
    described = [line.split() for line in cli("configs", "describe", "--topic", topic).lines]
    assert described[0] == ["NAME", "VALUE", "SET", "BY"]
    assert [words for words in described if words[-1] == "topic"] == [
        ["retention.ms", "1000", "topic"],
        ["segment.bytes", "2000000", "topic"],
    ]
    assert cli("configs", "delete", "--topic", topic, "retention.ms").lines == [
        f"topic {topic}: retention.ms is back at 604800000"
    ]
    refused = cli("configs", "set", "--topic", topic, "retention.ms=soon")
    assert refused.code == 1
    assert "retention.ms" in refused.err
    every = json.loads(cli("configs", "describe", "--broker", "1", "--all", "--json").out)
    assert {"log.dirs", "num.partitions"} <= {one["name"] for one in every}
    refused = cli("configs", "delete", "--topic", topic, "segment.bytes", "foo.bar")
    assert (refused.code, refused.err) == (2, "penstock: a topic has no setting foo.bar: nothing was changed\n")
    assert "segment.bytes" in cli("configs", "describe", "--topic", topic).out
    told = cli("configs", "set", "--topic", topic, "retention.ms=7", "--json").out
    assert json.loads(told) == {"topic": topic, "set": {"retention.ms": "7"}}
    told = cli("configs", "delete", "--topic", topic, "retention.ms", "--json").out
    assert json.loads(told) == {"topic": topic, "deleted": {"retention.ms": "604800000"}}
    assert cli("configs", "set", "--topic", topic, "nothing").code == 2
    assert cli("configs", "describe").code == 2
    assert "there is no broker 7; the brokers are: 1" in cli("configs", "describe", "--broker", "7").err


def test_a_name_that_is_no_setting(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    for words, meant, listed in (
        (("configs", "set", "--topic", topic, "retention.mss=5"), "retention.ms", f"--topic {topic}"),
        (("topics", "create", "--name", "other", "--config", "retentionms=5"), "retention.ms", "--topic NAME"),
        (("configs", "set", "--broker", "1", "log.retention.mss=5"), "log.retention.ms", "--broker 1"),
        (("configs", "set", "--all-brokers", "log.retention.mss=5"), "log.retention.ms", "--broker ID"),
    ):
        ran = cli(*words)
        assert (ran.code, ran.out) == (1, "")
        assert len(ran.err.splitlines()) == 1
        assert f"did you mean {meant}? `penstock configs describe {listed} --all` shows all names\n" in ran.err
    strange = cli("configs", "set", "--topic", topic, "xyzzy=5").err
    assert strange.endswith(f"; `penstock configs describe --topic {topic} --all` shows all names\n")
    assert "did you mean" not in strange
    assert "shows all names" not in cli("configs", "set", "--topic", topic, "retention.ms=x").err


def test_configs_of_all_brokers(cli: CommandLine) -> None:
    nothing = cli("configs", "describe", "--all-brokers")
    assert (nothing.code, nothing.err) == (0, "No settings are set for all brokers.\n")
    assert cli("configs", "set", "--all-brokers", "log.cleaner.backoff.ms=16000").lines == [
        "all brokers: log.cleaner.backoff.ms=16000"
    ]
    try:
        assert [line.split() for line in cli("configs", "describe", "--all-brokers").lines] == [
            ["NAME", "VALUE", "SET", "BY"],
            ["log.cleaner.backoff.ms", "16000", "cluster"],
        ]
        described = json.loads(cli("configs", "describe", "--broker", "1", "--json").out)
        assert {"log.cleaner.backoff.ms": "cluster"}.items() <= {
            one["name"]: one["source"] for one in described
        }.items()
        refused = cli("configs", "set", "--all-brokers", "log.cleaner.backoff.ms=soon")
        assert refused.code == 1
        assert "log.cleaner.backoff.ms" in refused.err
        refused = cli("configs", "delete", "--all-brokers", "log.cleaner.backoff.ms", "log.retention.ms")
        assert (refused.code, refused.err) == (
            2,
            "penstock: log.retention.ms: not set for all brokers; nothing was changed\n",
        )
    finally:
        deleted = cli("configs", "delete", "--all-brokers", "log.cleaner.backoff.ms")
    assert deleted.lines == ["all brokers: log.cleaner.backoff.ms is back at the value in each broker's file"]
    assert json.loads(cli("configs", "describe", "--all-brokers", "--json").out) == []
    told = cli("configs", "set", "--all-brokers", "log.cleaner.backoff.ms=15000", "--json").out
    assert json.loads(told) == {"all_brokers": True, "set": {"log.cleaner.backoff.ms": "15000"}}
    told = cli("configs", "delete", "--all-brokers", "log.cleaner.backoff.ms", "--json").out
    assert json.loads(told) == {"all_brokers": True, "deleted": {"log.cleaner.backoff.ms": None}}
    assert cli("configs", "describe", "--all-brokers", "--broker", "1").code == 2
    assert cli("configs", "describe", "--all-brokers", "--all").code == 2


def test_topics_of_the_system(cli: CommandLine, penstock_broker: Broker, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    with BlockingAdmin(penstock_broker.bootstrap_servers) as admin:
        admin.set_group_offsets(f"group-of-{topic}", {TopicPartition(topic, 0): 0})
    assert "__consumer_offsets" not in cli("topics", "list").out
    assert "__consumer_offsets" in cli("topics", "list", "--internal").out
    assert "__consumer_offsets" in cli("topics", "list", "--all").out
    found = json.loads(cli("cluster", "status", "--json").out)
    assert found["internal_topics"] == 1
    assert f"Topics:     {found['topics']} (1 internal)" in cli("cluster", "status").lines


def test_more_partitions_than_a_topic_may_have(cli: CommandLine, topic: str) -> None:
    refused = cli("topics", "create", "--name", topic, "--partitions", "1000000")
    assert refused.code == 2
    assert "Invalid value for '--partitions': '1000000' is not a number from 1 to 100000." in refused.err


def test_a_topic_by_its_name_alone(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "2")
    by_option = cli("topics", "describe", "--name", topic).lines
    assert len(by_option) == 2
    assert cli("topics", "describe", topic).lines == by_option
    for words, sentence in (
        ((topic, "--name", topic), "name the topic once: TOPIC or --name TOPIC"),
        ((), "name the topic: TOPIC or --name TOPIC"),
    ):
        ran = cli("topics", "describe", *words)
        assert (ran.code, ran.out) == (2, "")
        assert sentence in ran.err


@pytest.mark.parametrize("whose", [("--broker", "1"), ("--all-brokers",)])
def test_a_setting_of_files_alone(cli: CommandLine, whose: tuple[str, ...]) -> None:
    ran = cli("configs", "set", *whose, "num.partitions=5")
    assert (ran.code, ran.out) == (1, "")
    assert "Cannot update these configs dynamically: [num.partitions]" in ran.err
    assert ran.err.endswith("; change the brokers' files and restart the brokers one by one\n")
