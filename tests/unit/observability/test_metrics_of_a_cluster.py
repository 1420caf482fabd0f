"""Metrics of a cluster from its brokers, while it is well and while it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.core.metadata.requests import Reassignment
from penstock.model.new_topic import NewTopic
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.broker import SimBroker
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld

Labels = tuple[str, ...]
Page = dict[str, dict[Labels, float]]
MANAGER = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
PARTITIONS = 6


async def page(cluster: SimCluster, number: int) -> Page:
    """By family, by the values of the labels."""
    node = cluster.nodes[number]
    text = (await cluster.machines[number].run(node.metrics_page())).decode()
    families = text_string_to_metric_families(text)
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples} for family in families
    }


def controller(cluster: SimCluster) -> SimBroker:
    [active] = [node for node in cluster.living.values() if node.controller.is_active]
    return active


async def total(cluster: SimCluster, name: str) -> float:
    return sum([(await page(cluster, number))[name][()] for number in cluster.living])


def play(story: Callable[[SimWorld, SimCluster], Coroutine[Any, Any, None]]) -> None:
    with SimWorld(3) as world:

        async def main() -> None:
            cluster = SimCluster(world, 3)
            await asyncio.gather(*(cluster.bring_up(number) for number in cluster.voters))
            active = controller(cluster)
            topic = active.controller.topics.create_topic(NewTopic("t", PARTITIONS, 3))
            await cluster.machines[active.config.node_id].run(topic)
            await asyncio.sleep(1)
            await story(world, cluster)

        world.run(main(), timeout_s=600)


def test_sums_over_the_brokers_are_right() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        pages = [await page(cluster, number) for number in cluster.voters]
        led = [each["kafka_topic_partition_leader"] for each in pages]
        assert sum(map(len, led)) == PARTITIONS, "each partition is told of once, by its leader"
        assert sum(each["kafka_topic_partitions"][("t",)] for each in pages) == PARTITIONS
        for name, expected in {
            MANAGER + "leadercount": PARTITIONS,
            MANAGER + "partitioncount": 3 * PARTITIONS,
            MANAGER + "underreplicatedpartitions": 0,
            MANAGER + "underminisrpartitioncount": 0,
            MANAGER + "atminisrpartitioncount": 0,
            MANAGER + "offlinereplicacount": 0,
            CONTROLLER + "activecontrollercount": 1,
            CONTROLLER + "activebrokercount": 3,
            CONTROLLER + "fencedbrokercount": 0,
            CONTROLLER + "globaltopiccount": 1,
            CONTROLLER + "globalpartitioncount": PARTITIONS,
            CONTROLLER + "offlinepartitionscount": 0,
        }.items():
            assert sum(each[name][()] for each in pages) == expected, name

    play(story)


def test_the_standing_of_each_member() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        active = controller(cluster).config.node_id
        for number in cluster.voters:
            found = await page(cluster, number)
            role = "leader" if number == active else "follower"
            assert [key for key, value in found["penstock_quorum_role"].items() if value] == [(role,)]
            assert found["penstock_quorum_leader"][()] == active
            assert found["penstock_quorum_is_voter"][()] == 1
            assert found["penstock_quorum_applied_index"][()] == found["penstock_quorum_commit_index"][()] > 0
            assert found["penstock_metadata_log_bytes"][()] > 0
            assert found["penstock_heartbeat_age_seconds"][()] < 1
            peers = {(str(other),): 1.0 for other in cluster.voters if other != number}
            assert found["penstock_peer_connected"] == peers
            assert bool(found["penstock_quorum_member_lag"]) is (number == active)
            assert ("penstock_broker_leaders" in found) is (number == active)
        found = await page(cluster, active)
        assert sum(found["penstock_broker_leaders"].values()) == PARTITIONS
        assert found["penstock_broker_replicas"] == {(str(number),): PARTITIONS for number in cluster.voters}
        assert found["penstock_metadata_proposal_seconds"][()] > 0

    play(story)


def test_a_broker_that_died() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        active = controller(cluster).config.node_id
        victim = next(number for number in cluster.voters if number != active)
        led = (await page(cluster, victim))[MANAGER + "leadercount"][()]
        assert led > 0
        cluster.kill(victim)
        await asyncio.sleep(3)
        assert await total(cluster, MANAGER + "underreplicatedpartitions") == PARTITIONS
        assert await total(cluster, MANAGER + "atminisrpartitioncount") == PARTITIONS
        assert await total(cluster, MANAGER + "underminisrpartitioncount") == 0
        assert await total(cluster, MANAGER + "leadercount") == PARTITIONS
        assert await total(cluster, CONTROLLER + "fencedbrokercount") == 1
        assert await total(cluster, CONTROLLER + "activebrokercount") == 2
        found = await page(cluster, active)
        assert found["kafka_brokers"][()] == 2
        assert found["penstock_leader_elections"][()] == led
        assert found["kafka_controller_controllerstats_uncleanleaderelections"][()] == 0
        assert found["penstock_peer_connected"][(str(victim),)] == 0
        assert found["penstock_peer_connections_lost"][()] == 1
        assert found["penstock_broker_silence_seconds"][(str(victim),)] > 2
        shrinks = await total(cluster, MANAGER + "isrshrinks")
        assert shrinks == PARTITIONS - led, "those that got a new leader began without it"
        lags = [(await page(cluster, number))["penstock_out_of_sync_replica_lag"] for number in cluster.living]
        assert {replica for each in lags for *_, replica in each} == {str(victim)}

        await cluster.bring_up(victim)
        await asyncio.sleep(5)
        assert await total(cluster, MANAGER + "underreplicatedpartitions") == 0
        assert await total(cluster, MANAGER + "isrexpands") == PARTITIONS
        assert await total(cluster, CONTROLLER + "fencedbrokercount") == 0
        assert await total(cluster, CONTROLLER + "preferredreplicaimbalancecount") == led

    play(story)


def test_partitions_that_nobody_leads() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        active = controller(cluster)
        number = active.config.node_id
        victim = next(one for one in cluster.voters if one != number)
        await cluster.machines[number].run(
            active.controller.topics.create_topic(NewTopic("alone", assignments={0: [victim], 1: [victim]}))
        )
        await asyncio.sleep(1)
        cluster.kill(victim)
        await asyncio.sleep(2)
        found = await page(cluster, number)
        assert found[CONTROLLER + "offlinepartitionscount"][()] == 2
        leaders = found["kafka_topic_partition_leader"]
        assert [leaders["alone", "0"], leaders["alone", "1"]] == [-1, -1]
        other = next(one for one in cluster.living if one != number)
        assert (await page(cluster, other))[CONTROLLER + "offlinepartitionscount"][()] == 0, "told of once"

    play(story)


def test_replication_and_reassignment_in_bytes() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:

        active = controller(cluster)
        number = active.config.node_id
        new = next(one for one in cluster.voters if one != number)

        async def fill() -> None:
            await active.controller.topics.create_topic(NewTopic("big", assignments={0: [number]}))
            partition = active.partitions.get("big", 0)
            data = build_batch([Record(b"k", b"v" * 1000, timestamp_ms=active.clock.now_ms())] * 100)
            for _ in range(10):
                partition.append(read_header(data), data, active.clock.now_ms())

        await cluster.machines[number].run(fill())
        size = active.partitions.get("big", 0).log.size_bytes
        cluster.kill(new)  # the new replica cannot fetch yet
        await asyncio.sleep(1)
        move = active.controller.partitions.alter_reassignments([Reassignment("big", 0, (new, number))])
        await cluster.machines[number].run(move)
        await asyncio.sleep(0.5)
        found = await page(cluster, number)
        assert found[MANAGER + "reassigningpartitions"][()] == 1
        assert found[CONTROLLER + "reassigningpartitions"][()] == 1
        assert found["penstock_reassignment_left_bytes"][()] == size
        assert found[MANAGER + "underreplicatedpartitions"][()] <= PARTITIONS, "the new one need not be in sync yet"
        assert found["kafka_topic_partition_under_replicated_partition"]["big", "0"] == 0
        before = found["kafka_server_brokertopicmetrics_replicationbytesout"][()]

        await cluster.bring_up(new)
        await asyncio.sleep(5)
        found = await page(cluster, number)
        assert found[CONTROLLER + "reassigningpartitions"][()] == 0
        assert found["penstock_reassignment_left_bytes"][()] == 0
        assert found["kafka_server_brokertopicmetrics_replicationbytesout"][()] - before >= size
        fetched = await page(cluster, new)
        assert fetched["kafka_server_brokertopicmetrics_replicationbytesin"][()] >= size
        assert fetched["kafka_server_replicafetchermanager_maxlag"][()] == 0

    play(story)
