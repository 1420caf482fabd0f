"""Brokers that are stopped and killed in the middle of transactions; the same producers go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from group_processes import create_topic
from transactional_clients import LIBRARIES, committed_offset, producing, read

from penstock.coordination.shard_host import partition_of
from penstock.core.txn.shard import TRANSACTION_STATE_TOPIC
from penstock.testing import Cluster
from support.processes.broker import BrokerProcess

PATIENCE_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        yield running
    assert "Traceback" not in running.log(), running.log()


def end_it(broker: BrokerProcess, how: str) -> None:
    if how == "kill -9":
        broker.kill()
    else:
        assert broker.terminate() == 0
    broker.start()


ends = pytest.mark.parametrize("how", ["kill -9", "stop"])


@ends
@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_transaction_goes_on_over_a_restart_of_the_broker(broker: BrokerProcess, library: str, how: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, "t", 1)
    with producing(library, servers, "id") as producer:
        producer.begin()
        producer.send("t", b"before")
        producer.send_offset("g", "t", 7)
        end_it(broker, how)
        producer.send("t", b"after")
        assert read(library, servers, "t", committed=True) == []
        producer.commit()
        assert read(library, servers, "t", committed=True) == [b"before", b"after"]
        assert committed_offset(servers, "g", "t") == 7
        producer.begin()
        producer.send("t", b"the next")
        producer.commit()
    assert read(library, servers, "t", committed=True) == [b"before", b"after", b"the next"]


@ends
@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_what_was_committed_stays_so(broker: BrokerProcess, library: str, how: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, "t", 1)
    with producing(library, servers, "id") as producer:
        producer.begin()
        producer.send("t", b"row")
        producer.send_offset("g", "t", 7)
        producer.commit()
    end_it(broker, how)
    assert read(library, servers, "t", committed=True) == [b"row"]
    assert committed_offset(servers, "g", "t") == 7


@ends
def test_a_producer_that_comes_after_the_restart_fences_the_one_before(broker: BrokerProcess, how: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, "t", 1)
    with producing("confluent", servers, "id") as first:
        first.begin()
        first.send("t", b"of the first")
        end_it(broker, how)
        with producing("confluent", servers, "id") as second:
            with pytest.raises(first.refused):
                first.commit()
            second.begin()
            second.send("t", b"of the second")
            second.commit()
    assert read("confluent", servers, "t", committed=False) == [b"of the first", b"of the second"]


# -- three brokers ----------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}
    with Cluster(settings) as running:
        yield running
        for node_id in (1, 2, 3):
            assert "Traceback" not in running.log(node_id), running.log(node_id)


def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}).list_topics(topic, 30)
    return {index: partition.leader for index, partition in found.topics[topic].partitions.items()}


def led_by(cluster: Cluster, topic: str, index: int) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while (leader := leaders(cluster, topic).get(index, -1)) not in cluster.node_ids:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return leader


def id_led_by(cluster: Cluster, node_id: int) -> str:
    """A transactional id with this coordinator."""
    with producing("confluent", cluster.bootstrap_servers, "the first makes the topic"):
        pass
    led = leaders(cluster, TRANSACTION_STATE_TOPIC)
    return next(name for name in map(str, range(1000)) if led[partition_of(name, len(led))] == node_id)


def bring_back(cluster: Cluster, node_id: int) -> None:
    cluster.start(node_id)
    cluster.wait_in_sync(PATIENCE_S)


def leader_of_rows(cluster: Cluster, name: str) -> int:
    return led_by(cluster, "t", 0)


def coordinator_of(cluster: Cluster, name: str) -> int:
    return led_by(cluster, TRANSACTION_STATE_TOPIC, partition_of(name, 3))


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_leaders_are_killed_between_rows_and_commit(cluster: Cluster, library: str) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 1)
    leader = led_by(cluster, "t", 0)
    name = id_led_by(cluster, next(node_id for node_id in cluster.node_ids if node_id != leader))
    cluster.wait_in_sync(PATIENCE_S)
    with producing(library, servers, name) as producer:
        victims: list[Callable[[Cluster, str], int]] = [leader_of_rows]
        # kafka-python 3.0.12 forgets its EndTxn for good where the coordinator refuses the connection.
        if library != "kafka-python":
            victims.append(coordinator_of)
        for number, whose in enumerate(victims):
            producer.begin()
            producer.send("t", b"%d before" % number)
            producer.send_offset("g", "t", number + 1)
            victim = whose(cluster, name)
            cluster.kill(victim)
            producer.commit()
            assert read(library, servers, "t", committed=True)[-1:] == [b"%d before" % number]
            bring_back(cluster, victim)
        assert committed_offset(servers, "g", "t") == len(victims)
    assert read(library, servers, "t", committed=True) == [b"%d before" % number for number in range(len(victims))]


def test_whoever_leads_both_is_killed_between_rows_and_commit(cluster: Cluster) -> None:
    """Decided by one coordinator, and its markers written by another one to another leader."""
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 1)
    name = id_led_by(cluster, led_by(cluster, "t", 0))
    cluster.wait_in_sync(PATIENCE_S)
    with producing("confluent", servers, name) as producer:
        for number in range(3):
            producer.begin()
            producer.send("t", b"%d before" % number)
            victim = led_by(cluster, "t", 0)
            cluster.kill(victim)
            producer.send("t", b"%d after" % number)
            producer.commit()
            bring_back(cluster, victim)
    expected = [b"%d %s" % (number, when) for number in range(3) for when in (b"before", b"after")]
    assert read("confluent", servers, "t", committed=True) == expected
