"""Warnings of a `min.insync.replicas` above the number of replicas, and who is missed where too few are in sync."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from penstock.cli.cluster.min_insync import NAMED
from penstock.testing import Broker, Cluster
from support.processes.command_line import CommandLine


def test_a_topic_that_asks_for_more_than_it_has(cli: CommandLine, topic: str) -> None:
    ran = cli("topics", "create", "--name", topic, "--partitions", "2", "--config", "min.insync.replicas=2")
    assert ran.lines == [f"Created topic {topic} with 2 partitions, replication factor 1."]
    assert ran.err == (
        f"penstock: warning: min.insync.replicas=2, but {topic} has 1 replica: the effective value is 1, and acks=all "
        "waits for no more\n"
    )
    assert cli("produce", "--topic", topic, stdin=b"a\n").code == 0
    lowered = cli("configs", "set", "--topic", topic, "min.insync.replicas=1")
    assert (lowered.lines, lowered.err) == ([f"topic {topic}: min.insync.replicas=1"], "")
    assert cli("produce", "--topic", topic, stdin=b"a\n").code == 0
    raised = cli("configs", "set", "--topic", topic, "retention.ms=5", "min.insync.replicas=3", "--json")
    assert (raised.code, json.loads(raised.out)["topic"]) == (0, topic)
    assert raised.err.startswith(f"penstock: warning: min.insync.replicas=3, but {topic} has 1 replica: ")
    assert cli("configs", "set", "--topic", topic, "retention.ms=6").err == ""
    assert cli("configs", "delete", "--topic", topic, "min.insync.replicas").err == ""


def test_what_the_brokers_ask_for_counts(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = penstock_broker_factory({"min.insync.replicas": "2"})
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    ran = cli("topics", "create", "--name", "events", "--partitions", "1")
    assert ran.lines == ["Created topic events with 1 partition, replication factor 1."]
    assert ran.err.startswith(
        "penstock: warning: min.insync.replicas=2 (the brokers' setting), but events has 1 replica: "
    )
    assert cli("topics", "create", "--name", "own", "--config", "min.insync.replicas=1").err == ""
    deleted = cli("configs", "delete", "--topic", "own", "min.insync.replicas")
    assert deleted.lines == ["topic own: min.insync.replicas is back at 2"]
    assert "(the brokers' setting), but own has 1 replica" in deleted.err
    for whose in (("--all-brokers",), ("--broker", "1")):
        changed = cli("configs", "set", *whose, "min.insync.replicas=3")
        assert changed.code == 0
        assert changed.err == (
            "penstock: warning: min.insync.replicas=3, but events, own have fewer replicas: the effective value is "
            "the number of replicas, and acks=all waits for no more\n"
        )
    assert cli("configs", "set", "--all-brokers", "min.insync.replicas=1").err == ""
    for number in range(NAMED):
        cli("topics", "create", "--name", f"more-{number}", "--config", "min.insync.replicas=1")
    many = cli("configs", "set", "--all-brokers", "min.insync.replicas=2")
    assert "but events, more-0, more-1, more-2, more-3 and 2 more have fewer replicas" in many.err


def test_a_producer_that_waits_in_vain_is_told_who_is_missing(
    cli: CommandLine, penstock_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_cluster.bootstrap_servers)
    cli("topics", "create", "--name", "t", "--partitions", "2", "--config", "min.insync.replicas=3")
    penstock_cluster.stop(2)
    refused = cli("produce", "--topic", "t", "--timeout", "3", stdin=b"a\n")
    assert refused.code == 1
    assert refused.err == (
        "penstock: 1 of 1 record not delivered, the first from standard input, line 1: t-0 has 2 in-sync replicas, but "
        "min.insync.replicas is 3 (and the same for 1 more partition). Writes with acks=all are refused: start broker "
        "2 again (`penstock cluster under-replicated`)\n"
    )
    alone = cli("produce", "--topic", "t", "--timeout", "3", "--partition", "1", stdin=b"a\n")
    assert ": t-1 has 2 in-sync replicas, but min.insync.replicas is 3. Writes " in alone.err
