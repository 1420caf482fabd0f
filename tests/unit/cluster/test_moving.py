"""Nodes that come up under another address, each the production node in a simulated world: others find them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.node.neighbours import SETTLED_S
from penstock.node.node import no_supervisor
from penstock.sim import broker
from penstock.sim.broker import PORT, SimBroker, SimDirectory, broker_config
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.world import SimPorts, SimWorld

NEW_PORT = 9192
OTHER_PORT = 9292
NO_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": str(20 << 20)}
"""As ever in production, but for days of work."""
Story = Callable[[SimCluster], Coroutine[Any, Any, None]]


def play(
    story: Story, size: int = 3, *, joins: int = 0, seed: int = 5, settings: Mapping[str, str] | None = None
) -> None:
    with SimWorld(seed) as world:

        async def main() -> None:
            cluster = SimCluster(world, size, joins=joins, settings=settings)
            await asyncio.gather(*map(cluster.bring_up, cluster.voters))
            await story(cluster)

        world.run(main(), timeout_s=900)


def active(cluster: SimCluster) -> int:
    [number] = [number for number, node in cluster.living.items() if node.controller.is_active]
    return number


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.02)


async def bring_up_at(cluster: SimCluster, number: int, port: int, *, is_in_file: bool = True) -> None:
    """With a file of its own: where it listens, and its own entry among the voters."""
    shared = dict(cluster._settings)
    own, moved = f"{number}@{host_of(number)}:{PORT}", f"{number}@{host_of(number)}:{port}"
    cluster._settings["listeners"] = f"PLAINTEXT://{host_of(number)}:{port}"
    if is_in_file:
        cluster._settings["controller.quorum.voters"] = shared["controller.quorum.voters"].replace(own, moved)
    coming = asyncio.ensure_future(cluster.bring_up(number))
    await asyncio.sleep(0.05)  # it has read its file
    cluster._settings.clear()
    cluster._settings.update(shared)
    async with asyncio.timeout(20):
        await coming


def give_another_disk(cluster: SimCluster, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.machines[number].disk = SimDisk(cluster.world.random("another disk"))

    def directory(path: str, cluster_id: str, machine: str) -> SimDirectory:
        return SimDirectory(path, cluster_id, "other" if machine == host_of(number) else machine)

    monkeypatch.setattr(broker, "SimDirectory", directory)


async def decide(cluster: SimCluster, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
    await decide_at(cluster, active(cluster), work)


async def decide_at(cluster: SimCluster, number: int, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
    await cluster.machines[number].run(work(cluster.nodes[number].controller))


def all_say(cluster: SimCluster, number: int, port: int) -> Callable[[], bool]:
    def says(node: SimBroker) -> bool:
        return node.membership.neighbours.voter_addresses().get(number) == (host_of(number), port)

    return lambda: all(map(says, cluster.living.values()))


def all_connected(cluster: SimCluster) -> bool:
    living = cluster.living
    return all(node.membership.links.is_up(other) for own, node in living.items() for other in living if other != own)


@pytest.mark.parametrize("is_in_file", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_voter_that_moves_is_found_and_the_quorum_takes_its_address_over(
    seed: int, is_in_file: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: SimCluster) -> None:
        mover = next(number for number in cluster.voters if number != active(cluster)) if seed else active(cluster)
        other = next(number for number in cluster.voters if number != mover)
        await cluster.stop(mover)
        await bring_up_at(cluster, mover, NEW_PORT, is_in_file=is_in_file)
        await until(all_say(cluster, mover, NEW_PORT))
        await until(lambda: all_connected(cluster))
        assert "still waiting" not in caplog.text
        caplog.clear()
        await cluster.stop(other)
        await cluster.bring_up(other)  # whose file has not changed: what it says is overruled, and that is said
        written, said = f"{host_of(mover)}:{PORT}", f"{host_of(mover)}:{NEW_PORT}"
        warning = f"names {mover}@{written}, but the quorum has node {mover} at {said}, which is used instead"
        await until(lambda: warning in caplog.text)
        await until(lambda: all_connected(cluster))
        assert all_say(cluster, mover, NEW_PORT)()

    play(story, seed=seed)


def test_a_whole_cluster_moves_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has all of them elsewhere, and nobody can change it before they have found each other by their files."""

    async def story(cluster: SimCluster) -> None:
        for number in range(40):  # a snapshot or two

            def topic(controller: Any, name: str = f"t{number}") -> Coroutine[Any, Any, Any]:
                return controller.topics.create_topic(NewTopic(name, assignments={0: [1, 2, 3]}))  # type: ignore[no-any-return]

            await decide(cluster, topic)
        await asyncio.gather(*map(cluster.stop, cluster.voters))
        voters = cluster._settings["controller.quorum.voters"].replace(f":{PORT}", f":{NEW_PORT}")
        cluster._settings["controller.quorum.voters"] = voters
        cluster._settings["listeners"] = f"PLAINTEXT://:{NEW_PORT}"
        async with asyncio.timeout(60):
            await asyncio.gather(*map(cluster.bring_up, cluster.voters))
        for number in cluster.voters:
            await until(all_say(cluster, number, NEW_PORT))
        await until(lambda: all_connected(cluster))
        assert any(node.membership.quorum.snapshot_bytes for node in cluster.living.values())
        await asyncio.sleep(2 * SETTLED_S)
        assert "which is used instead" not in caplog.text, "every file is right"

    play(story)


def test_voters_that_no_file_names_find_each_other_after_a_restart_of_all() -> None:
    """Nobody can say how much of the log is committed before they have."""

    async def story(cluster: SimCluster) -> None:
        for old in (1, 2, 3):
            new = old + 3
            await cluster.bring_up(new)
            await decide(cluster, lambda controller, new=new: controller.voters.add_voter(new, b"", host_of(new), PORT))
            await decide(cluster, lambda controller, old=old: controller.voters.remove_voter(old, b""))
        await asyncio.gather(*map(cluster.stop, (1, 2, 3, 4, 5, 6)))
        async with asyncio.timeout(60):
            await asyncio.gather(*map(cluster.bring_up, (4, 5, 6)))
        assert active(cluster) in (4, 5, 6)
        assert not any(node.membership.quorum.snapshot_bytes for node in cluster.living.values())

    play(story, joins=3, settings=NO_SNAPSHOTS)


def test_voters_that_have_moved_one_by_one_find_each_other_after_a_restart_of_all() -> None:
    """Each file has the new address of its own node only."""

    async def story(cluster: SimCluster) -> None:
        for mover in (2, 3):
            await cluster.stop(mover)
            await bring_up_at(cluster, mover, NEW_PORT)
            await until(all_say(cluster, mover, NEW_PORT))
        await asyncio.gather(*map(cluster.stop, cluster.voters))
        first = asyncio.ensure_future(cluster.bring_up(1))
        await asyncio.sleep(0.1)
        third = asyncio.ensure_future(bring_up_at(cluster, 3, NEW_PORT))
        async with asyncio.timeout(30):  # node 2 is still down
            await asyncio.gather(first, third)
        cluster.kill(1)
        second = asyncio.ensure_future(bring_up_at(cluster, 2, NEW_PORT))
        async with asyncio.timeout(30):
            await second
        await until(lambda: any(node.controller.is_active for node in cluster.living.values()))
        await until(lambda: all_connected(cluster))

    play(story, settings=NO_SNAPSHOTS)


def test_an_id_that_voted_once_may_come_back_anywhere() -> None:
    async def story(cluster: SimCluster) -> None:
        await cluster.bring_up(4)
        await decide(cluster, lambda controller: controller.voters.add_voter(4, b"", host_of(4), PORT))
        await until(all_say(cluster, 4, PORT))
        await decide(cluster, lambda controller: controller.voters.remove_voter(4, b""))
        await cluster.stop(4)
        await bring_up_at(cluster, 4, NEW_PORT)
        await until(lambda: all_connected(cluster))
        await cluster.stop(4)
        await until(lambda: cluster.nodes[active(cluster)].image.brokers[4].is_fenced)
        await decide(cluster, lambda controller: controller.registry.unregister_broker(4))
        await until(lambda: all(4 not in node.membership.links.peers for node in cluster.living.values()))
        await bring_up_at(cluster, 4, OTHER_PORT)
        await decide(cluster, lambda controller: controller.voters.add_voter(4, b"", host_of(4), OTHER_PORT))
        await until(all_say(cluster, 4, OTHER_PORT))

    play(story, joins=1)


@pytest.mark.parametrize("seed", range(4))
def test_a_voter_with_another_disk_is_nobodys_voter(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The id of a voter, its file, another directory: together with one voter it would be a majority."""

    async def story(cluster: SimCluster) -> None:
        await until(lambda: all(node.image.live_brokers() == [1, 2, 3] for node in cluster.living.values()))
        leader = active(cluster)
        lost, last = (number for number in cluster.voters if number != leader)
        cluster.kill(lost)
        settings = dict(cluster._settings)
        twin = cluster.world.machine("node-9")
        voters = settings["controller.quorum.voters"].replace(f"{lost}@{host_of(lost)}", f"{lost}@node-9")

        async def serve(ports: SimPorts) -> None:
            mine = {**settings, "controller.quorum.voters": voters}
            await SimBroker(broker_config("node-9", lost, mine), ports, no_supervisor).start()

        starting = twin.start(serve)
        await asyncio.sleep(15)
        assert not starting.done()
        assert "this node is a voter, but its data directory is not the one that the quorum knows" in caplog.text
        cluster.kill(leader)
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not cluster.nodes[last].controller.is_active
        assert not cluster.nodes[last].membership.links.is_up(lost)
        cluster.kill(last)
        coming = asyncio.ensure_future(cluster.bring_up(last))  # it knows nothing but its disk then
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not cluster.nodes[last].controller.is_active
        twin.kill()
        await asyncio.gather(coming, cluster.bring_up(lost), return_exceptions=False)
        await until(lambda: any(node.controller.is_active for node in cluster.living.values()))
        starting.cancel()

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_voter_that_was_replaced_under_its_id_has_no_vote(seed: int) -> None:
    """Its connections are up all the time."""

    async def story(cluster: SimCluster) -> None:
        await until(lambda: all(node.image.live_brokers() == [1, 2, 3] for node in cluster.living.values()))
        leader = active(cluster)
        replaced, last = (number for number in cluster.voters if number != leader)
        cluster.world.network.partition([host_of(leader)], [host_of(replaced)])
        image = cluster.nodes[leader].image
        await until(lambda: image.brokers[replaced].is_fenced)
        await decide_at(cluster, leader, lambda controller: controller.voters.remove_voter(replaced, b""))
        successor = cluster.world.machine("node-9")
        settings = dict(cluster._settings)

        async def serve(ports: SimPorts) -> None:
            await SimBroker(broker_config("node-9", replaced, settings), ports, no_supervisor).start()

        await successor.start(serve)
        await decide_at(cluster, leader, lambda controller: controller.voters.add_voter(replaced, b"", "node-9", PORT))
        assert image.peers[replaced] == ("node-9", PORT)
        quorum = cluster.nodes[last].membership.quorum
        await until(lambda: quorum.voters == (1, 2, 3) and quorum.applied_index >= quorum.configuration_index)
        successor.kill()
        cluster.kill(leader)
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not any(node.membership.quorum.is_leader for node in cluster.living.values())

    play(story, seed=seed)


@pytest.mark.parametrize("settings", [NO_SNAPSHOTS, None])
@pytest.mark.parametrize("seed", range(3))
def test_an_emptied_voter_votes_with_nobody_that_has_been_restarted(
    seed: int, settings: Mapping[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its own address, where everybody looks for it."""

    async def story(cluster: SimCluster) -> None:
        await until(lambda: all(node.image.live_brokers() == [1, 2, 3] for node in cluster.living.values()))
        leader = active(cluster)
        lost, last = (number for number in cluster.voters if number != leader)
        for number in cluster.voters:
            cluster.kill(number)
        give_another_disk(cluster, lost, monkeypatch)
        coming = [asyncio.ensure_future(cluster.bring_up(number)) for number in (last, lost)]
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not any(node.controller.is_active for node in cluster.living.values())
            assert not any(node.membership.quorum.is_leader for node in cluster.living.values())
        assert not cluster.nodes[last].membership.links.is_up(lost)
        await cluster.bring_up(leader)
        await coming[0]
        await until(lambda: active(cluster) in (leader, last))
        coming[1].cancel()

    play(story, seed=seed, settings=settings)


def test_who_is_given_a_vote_is_asked_first() -> None:
    async def story(cluster: SimCluster) -> None:
        await cluster.bring_up(4)
        leader = active(cluster)
        other = next(number for number in cluster.voters if number != leader)
        before = cluster.nodes[leader].membership.quorum.last_index
        for host, port, says in (
            (host_of(other), PORT, f"says: this is node {other}, not node 4"),
            (host_of(leader), PORT, f"says: this is node {leader} itself, not node 4"),
            (host_of(4), NEW_PORT, "nothing listens at"),
        ):
            with pytest.raises(ApiError, match=says) as caught:
                await decide(
                    cluster, lambda controller, host=host, port=port: controller.voters.add_voter(4, b"", host, port)
                )
            assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert cluster.nodes[leader].membership.quorum.last_index == before
        assert all_connected(cluster)

    play(story, joins=1)
