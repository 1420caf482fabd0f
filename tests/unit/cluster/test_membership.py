"""Nodes in their cluster, each the production node in a simulated world: how they find, lose and leave each other."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from penstock.api.handler import Handler
from penstock.cluster.broker_lifecycle import BrokerLifecycle
from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import RESOURCE_BROKER
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic
from penstock.node.membership import Membership, _raft_settings
from penstock.node.node import Node, no_supervisor
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.broker import CLUSTER_ID, PORT, SimBroker, broker, broker_config
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import ConnectionLost

SESSION_S = 2.0
Story = Callable[[SimWorld, SimCluster], Coroutine[Any, Any, None]]


def play(story: Story, size: int = 3, *, joins: int = 0, seed: int = 5, **settings: str) -> None:
    with SimWorld(seed) as world:

        async def main() -> None:
            given = {name.replace("_", "."): value for name, value in settings.items()}
            cluster = SimCluster(world, size, joins=joins, settings=given)
            await asyncio.gather(*(cluster.bring_up(number) for number in cluster.voters))
            await story(world, cluster)

        world.run(main(), timeout_s=900)


def active(cluster: SimCluster) -> int:
    [number] = [number for number, node in cluster.living.items() if node.controller.is_active]
    return number


def another(cluster: SimCluster, *than: int) -> int:
    return next(number for number in cluster.living if number not in than)


async def create(cluster: SimCluster, name: str, replicas: list[int]) -> None:
    number = active(cluster)
    work = cluster.nodes[number].controller.topics.create_topic(NewTopic(name, assignments={0: replicas}))
    await cluster.machines[number].run(work)
    await asyncio.sleep(0.5)


def leader_of(cluster: SimCluster, seen_by: int, topic: str) -> int:
    return cluster.nodes[seen_by].image.topics[topic].partitions[0].leader


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.02)


def test_a_new_cluster_agrees_on_its_id_and_knows_its_brokers() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        images = [node.image for node in cluster.nodes.values()]
        await until(lambda: [image.live_brokers() for image in images] == [[1, 2, 3]] * 3)
        assert [image.cluster_id for image in images] == [CLUSTER_ID] * 3
        for node in cluster.nodes.values():
            assert node.membership.neighbours.voter_addresses() == {
                number: (host_of(number), PORT) for number in (1, 2, 3)
            }
            assert node.membership.suspects() == []

    play(story)


def test_a_node_without_an_id_takes_that_of_the_cluster() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        node = cluster.nodes[1]
        node.directory.cluster_id = node.membership.links.cluster_id = ""
        node.membership._adopt("n" * 22)
        assert node.directory.cluster_id == node.membership.links.cluster_id == "n" * 22
        node.membership._adopt("m" * 22)
        assert node.directory.cluster_id == "n" * 22, "once"

    play(story)


def test_a_node_of_another_cluster_stays_outside() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        stranger = world.machine("node-9")

        async def serve(ports: SimPorts) -> SimBroker:
            voters = ",".join(f"{number}@{host_of(number)}:{PORT}" for number in (1, 2, 3))
            settings = {"penstock.cluster.id": "o" * 22, "controller.quorum.voters": voters}
            node = SimBroker(broker_config("node-9", 9, settings), ports, no_supervisor)
            await node.start()
            return node

        starting = stranger.start(serve)
        await asyncio.sleep(20)
        assert not starting.done()
        assert all(9 not in node.image.brokers for node in cluster.nodes.values())

    play(story)


def test_a_second_node_of_a_running_ones_id_stays_outside() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        await cluster.bring_up(4)
        double = world.machine("node-9")

        async def serve(ports: SimPorts) -> SimBroker:
            voters = ",".join(f"{number}@{host_of(number)}:{PORT}" for number in (1, 2, 3))
            node = SimBroker(broker_config("node-9", 4, {"controller.quorum.voters": voters}), ports, no_supervisor)
            await node.start()
            return node

        image = cluster.nodes[active(cluster)].image
        epoch = image.brokers[4].epoch
        starting = double.start(serve)
        await asyncio.sleep(10)
        assert not starting.done()
        assert image.brokers[4].epoch == epoch
        assert image.brokers[4].endpoints == {"PLAINTEXT": (host_of(4), PORT)}
        cluster.kill(4)  # whoever is left is let in
        await starting
        assert image.brokers[4].endpoints == {"PLAINTEXT": ("node-9", PORT)}

    play(story, joins=1)


def test_an_observer_joins_hears_of_everything_and_leaves() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        await cluster.bring_up(4)
        assert cluster.nodes[4].image.live_brokers() == [1, 2, 3, 4]
        status = cluster.nodes[active(cluster)].membership.quorum.status
        await until(lambda: 4 in cluster.nodes[active(cluster)].membership.quorum.status.configuration.observers)
        assert 4 not in status.configuration.voters
        await create(cluster, "t", [4, 1, 2])
        await until(lambda: "t" in cluster.nodes[4].image.topics)
        await cluster.stop(4)
        number = active(cluster)
        await until(lambda: leader_of(cluster, number, "t") in (1, 2))

    play(story, joins=1)


def test_old_voter_sets_are_not_told_again_at_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    line = "the metadata quorum has voters"

    async def story(world: SimWorld, cluster: SimCluster) -> None:
        await cluster.bring_up(4)
        await until(lambda: caplog.text.count(line) == 4)  # every node says once who observes now
        restarted = another(cluster, active(cluster), 4)
        cluster.kill(restarted)
        caplog.clear()
        await cluster.bring_up(restarted)
        await asyncio.sleep(1)
        assert line not in caplog.text

    with caplog.at_level("INFO"):
        play(story, joins=1)


def test_a_killed_broker_loses_its_leadership_well_within_its_session() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        victim = another(cluster, controller)
        await create(cluster, "t", [victim, *(one for one in (1, 2, 3) if one != victim)])
        cluster.kill(victim)
        began_s = world.loop.time()
        await until(lambda: leader_of(cluster, controller, "t") != victim)
        assert world.loop.time() - began_s < SESSION_S / 2
        assert not cluster.nodes[controller].image.is_live(victim)

    play(story)


def test_a_killed_controller_is_succeeded_and_given_up() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        victim = active(cluster)
        await create(cluster, "t", [victim, *(one for one in (1, 2, 3) if one != victim)])
        cluster.kill(victim)
        rest = list(cluster.living)
        await until(lambda: any(cluster.nodes[one].controller.is_active for one in rest))
        await until(lambda: all(leader_of(cluster, one, "t") in rest for one in rest))
        await cluster.bring_up(victim)
        await until(lambda: cluster.nodes[active(cluster)].image.live_brokers() == [1, 2, 3])

    play(story)


def test_a_paused_broker_is_fenced_for_its_silence_and_comes_back() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        image = cluster.nodes[controller].image
        victim = another(cluster, controller)
        epoch = image.brokers[victim].epoch
        cluster.machines[victim].pause()
        await asyncio.sleep(SESSION_S / 2)
        assert image.is_live(victim), "its kernel keeps the connections"
        await until(lambda: not image.is_live(victim))
        cluster.machines[victim].resume()
        await until(lambda: image.is_live(victim))
        assert image.brokers[victim].epoch == epoch, "the same life"

    play(story)


def test_a_broker_cut_off_does_not_lead_when_another_may() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        victim = another(cluster, controller)
        await create(cluster, "t", [victim, *(one for one in (1, 2, 3) if one != victim)])
        lonely = cluster.nodes[victim].membership.lifecycle
        assert lonely.may_lead()
        world.network.isolate(host_of(victim))
        await until(lambda: leader_of(cluster, controller, "t") != victim)
        assert leader_of(cluster, victim, "t") == victim, "it has not heard"
        await until(lambda: not lonely.may_lead(), within_s=2 * SESSION_S)
        data = build_batch([Record(b"k", b"v", timestamp_ms=1)])
        with pytest.raises(ApiError) as caught:
            cluster.nodes[victim].partitions.get("t", 0).append(read_header(data), data, 1)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.network.heal()
        await until(lonely.may_lead)
        await until(lambda: leader_of(cluster, victim, "t") != victim)

    play(story)


def test_a_broker_restarted_at_once_is_let_in_at_once() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        image = cluster.nodes[controller].image
        victim = another(cluster, controller)
        epoch = image.brokers[victim].epoch
        cluster.kill(victim)
        began_s = world.loop.time()
        await cluster.bring_up(victim)
        assert world.loop.time() - began_s < SESSION_S
        assert image.brokers[victim].epoch > epoch
        assert image.is_live(victim)

    play(story)


@pytest.mark.parametrize("seed", range(1, 7))
def test_leaders_move_before_a_broker_stops(seed: int) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        victim = another(cluster, controller)
        await create(cluster, "t", [victim, *(one for one in (1, 2, 3) if one != victim)])
        node = cluster.nodes[victim]
        partition = node.partitions.get("t", 0)
        close, was_leading = node._close_listeners, []

        async def close_listeners() -> None:
            was_leading.append(partition.is_leader)
            await close()

        node._undo[node._undo.index(close)] = node._close_listeners = close_listeners  # type: ignore[method-assign]
        await cluster.stop(victim)
        assert was_leading == [False], "it has heard of its successor while it still served"
        assert leader_of(cluster, controller, "t") not in (victim, -1)

    play(story, seed=seed)


def test_a_whole_cluster_stops_and_starts_with_what_it_had() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        await create(cluster, "t", [1, 2, 3])
        began_s = world.loop.time()
        await asyncio.gather(*(cluster.stop(number) for number in (1, 2, 3)))
        assert world.loop.time() - began_s < 20, "nobody waits for those that are gone"
        await asyncio.gather(*(cluster.bring_up(number) for number in (1, 2, 3)))
        number = active(cluster)
        await until(lambda: leader_of(cluster, number, "t") != -1)
        assert cluster.nodes[number].image.live_brokers() == [1, 2, 3]

    play(story)


def test_broken_connections_to_the_controller_are_made_again() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        other = another(cluster, controller)
        node = cluster.nodes[other]
        for _ in range(5):
            world.network.reset(host_of(controller), host_of(other))
            await cluster.machines[other].run(node.membership.access.allocate_producer_id())
        failed = node.membership.lifecycle.heartbeats_failed
        await asyncio.sleep(SESSION_S)
        assert node.membership.lifecycle.may_lead()
        assert node.membership.lifecycle.heartbeats_failed <= failed + 1

    play(story)


def test_what_a_broker_asks_for_outlives_its_controller() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        controller = active(cluster)
        other = another(cluster, controller)
        node = cluster.nodes[other]
        cluster.kill(controller)
        work = node.membership.access.create_topic(NewTopic("t", 1, 2))
        await cluster.machines[other].run(work)
        assert "t" in cluster.nodes[active(cluster)].image.topics

    play(story)


def test_clients_are_turned_away_until_the_node_is_part_of_the_cluster() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        for number in (1, 2, 3):
            cluster.kill(number)
        starting = cluster.start(1)  # alone of three: no majority
        await asyncio.sleep(3)
        assert not starting.done()
        versions, metadata = (ApiVersionsRequest(), ApiVersionsResponse), (MetadataRequest(), MetadataResponse)
        connection = await AsyncConnection.open(host_of(1), PORT, "client", 1.0)
        before = await connection.call(Api.API_VERSIONS, *versions)
        with pytest.raises(ConnectionLost):
            await connection.call(Api.METADATA, *metadata)
        await cluster.bring_up(2)
        await starting
        connection = await AsyncConnection.open(host_of(1), PORT, "client", 1.0)
        after = await connection.call(Api.API_VERSIONS, *versions)
        assert before.api_keys == after.api_keys
        assert (await connection.call(Api.METADATA, *metadata)).brokers
        connection.close()

    play(story)


def config(**settings: str) -> BrokerConfig:
    return broker_config("node-1", 1, {name.replace("_", "."): value for name, value in settings.items()})


@pytest.mark.parametrize("timeout_ms", [0, 1, 49, 100, 150, 1000, 60_000])
def test_every_election_timeout_makes_a_working_quorum(timeout_ms: int) -> None:
    settings = _raft_settings(config(controller_quorum_election_timeout_ms=str(timeout_ms)))
    assert settings.election_timeout_ms == max(timeout_ms, 50)
    assert settings.heartbeat_interval_ms * 4 < settings.election_timeout_ms


def test_a_quorum_with_the_shortest_timeout() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        await create(cluster, "t", [1, 2, 3])

    play(story, controller_quorum_election_timeout_ms="60")


def test_a_node_that_knows_no_voter_by_name_answers_whoever_introduces_himself() -> None:
    """It finds the cluster by bootstrap servers, so it has no address of the leader's; the leader has one of it."""
    voters = {"controller.quorum.voters": "1@node-1:9092,2@node-2:9092"}
    for seed in range(8):
        with SimWorld(seed) as world:

            async def main(world: SimWorld = world) -> None:
                first = world.machine("node-1").start(broker(1, {}))
                await first
                world.machine("node-1").kill()
                await world.machine("node-1").start(broker(1, voters))
                second = world.machine("node-2").start(
                    broker(2, {"controller.quorum.bootstrap.servers": "node-1:9092"})
                )
                node = await asyncio.wait_for(second, 60)
                assert node.image.live_brokers() == [1, 2]

            world.run(main(), timeout_s=120)


def test_what_the_cluster_agreed_on_holds_before_a_node_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the active controller by then, and decide by it who is eligible to lead."""
    seen: list[int] = []
    register, join = BrokerLifecycle.register, Membership.join
    memberships: dict[BrokerLifecycle, Membership] = {}

    async def joining(self: Membership, for_clients: Sequence[type[Handler]]) -> None:
        memberships[self.lifecycle] = self
        await join(self, for_clients)

    async def registering(self: BrokerLifecycle) -> None:
        membership = memberships[self]
        agreed = membership.image.configs
        await until(lambda: agreed.get((RESOURCE_BROKER, ""), {}).get("min.insync.replicas") == "1")
        seen.append(TopicConfig.resolve({}, membership.running.current).min_insync_replicas)
        await register(self)

    async def story(world: SimWorld, cluster: SimCluster) -> None:
        number = active(cluster)
        await until(lambda: bool(cluster.nodes[number].image.live_brokers()))
        agree = cluster.nodes[number].controller.topics.change_config(
            RESOURCE_BROKER, "", lambda _: {"min.insync.replicas": "1"}, validate_only=False
        )
        await cluster.machines[number].run(agree)
        back = another(cluster, number)
        assert TopicConfig.resolve({}, cluster.nodes[back].config).min_insync_replicas == 2, "in its file"
        cluster.kill(back)
        monkeypatch.setattr(Membership, "join", joining)
        monkeypatch.setattr(BrokerLifecycle, "register", registering)
        await cluster.bring_up(back)
        assert seen == [1]

    play(story)


def test_a_node_whose_metadata_log_failed_while_it_started_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        back = another(cluster, active(cluster))
        cluster.kill(back)

        async def fail(self: Node) -> None:
            self.membership.quorum._driver.give_up(OSError(errno.EIO, "the disk is broken"))
            await open_partitions(self)

        open_partitions = Node._open_partitions
        monkeypatch.setattr(Node, "_open_partitions", fail)
        with pytest.raises(StorageError, match="the disk is broken"):
            await cluster.start(back)

    play(story)


def test_a_node_whose_metadata_log_failed_while_it_joins_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        back = another(cluster, active(cluster))
        cluster.kill(back)
        join = Membership.join

        async def fail(self: Membership, for_clients: Sequence[type[Handler]]) -> None:
            self.quorum._driver.give_up(OSError(errno.EIO, "the disk is broken"))
            await join(self, for_clients)

        monkeypatch.setattr(Membership, "join", fail)
        with pytest.raises(StorageError, match="the disk is broken"):
            await asyncio.wait_for(cluster.start(back), 30)

    play(story)


def test_a_controller_that_takes_long_to_open_its_logs_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        slow = active(cluster)
        cluster.kill(slow)
        await until(lambda: any(node.controller.is_active for node in cluster.living.values()))
        open_partitions = Node._open_partitions

        async def open_slowly(self: Node) -> None:
            await asyncio.sleep(20)
            await open_partitions(self)

        monkeypatch.setattr(Node, "_open_partitions", open_slowly)
        starting = cluster.start(slow)
        await until(lambda: slow in cluster.nodes and slow in cluster.nodes[active(cluster)].image.brokers)
        await asyncio.sleep(1)
        before = active(cluster)
        await cluster.machines[before].run(cluster.nodes[before].membership.quorum.hand_over([slow]))
        await until(lambda: cluster.nodes[slow].controller.is_active)
        others = [node for number, node in cluster.nodes.items() if number != slow]
        await until(lambda: any(node.controller.is_active for node in others), within_s=10)
        assert not starting.done()
        await starting

    play(story)
