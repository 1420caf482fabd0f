"""Three servers that run Raft and nothing else, over the simulated network and disks: elections, faults, membership."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from random import Random

import pytest

from penstock.cluster.proposals import ProposalRefused
from penstock.cluster.quorum import Quorum
from penstock.core.raft.exchange import Change, Refusal
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.sim.machine.world import ProcessDied, SimMachine
from support.raft.cluster import PORT, Cluster, cluster, host_of

SEEDS = range(1, 6)


def others(servers: Cluster, node: int) -> list[int]:
    return [other for other in servers.running if other != node]


# ---- one server


def test_an_only_voter_leads_when_start_returns_and_keeps_what_it_had() -> None:
    with cluster(1, voters=[1]) as servers:

        async def main() -> None:
            await servers.start()
            only = servers.servers[1]
            assert only.quorum.is_active
            assert only.events == ["leader 1 1", "active 1"]
            assert [await servers.propose(1, data) for data in (b"a", b"b")] == [2, 3]
            assert await servers.call(1, only.quorum.wait_applied(3, 1.0))
            servers.crash(1)
            await servers.start()
            only = servers.servers[1]
            assert only.quorum.is_active
            assert only.quorum.term == 2
            assert only.history.data == [b"a", b"b"]
            await servers.call(1, only.quorum.stop())
            assert only.events[-1] == "inactive"
            with pytest.raises(ApiError):
                await servers.propose(1, b"too late")

        servers.world.run(main(), timeout_s=60)


def test_an_only_voter_that_is_idle_does_nothing() -> None:
    with cluster(1, voters=[1]) as servers:

        async def main() -> None:
            await servers.start()
            await asyncio.sleep(1)
            before = servers.world.loop.steps
            await asyncio.sleep(100)
            assert servers.world.loop.steps - before < 200  # the listener looks for idle connections once a second

        servers.world.run(main(), timeout_s=200)


def test_settings_that_name_other_voters_do_not_change_a_quorum_that_exists(caplog: pytest.LogCaptureFixture) -> None:
    with cluster(1, voters=[1]) as servers:

        async def main() -> None:
            await servers.start()
            await servers.propose(1, b"a")
            servers.kill(1)
            await servers.start(1, voters=[1, 2, 3])
            assert servers.servers[1].quorum.is_active
            assert servers.servers[1].history.data == [b"a"]

        servers.world.run(main(), timeout_s=60)
    assert "the quorum began with [1]" in caplog.text


# ---- elections


@pytest.mark.parametrize("seed", SEEDS)
def test_three_servers_elect_one_and_agree(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active(within_s=3)
            indexes = [await servers.propose(leader, b"%d" % number) for number in range(10)]
            assert indexes == sorted(indexes)
            assert await servers.until_equal() == [b"%d" % number for number in range(10)]
            other = others(servers, leader)[0]
            with pytest.raises(ProposalRefused) as refused:
                await servers.propose(other, b"not here")
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
            assert refused.value.leader == leader
            assert servers.servers[other].quorum.leader_id == leader
            assert not await servers.call(other, servers.servers[other].quorum.wait_applied(1000, 0.5))

        servers.world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", range(1, 21))
def test_a_killed_leader_is_replaced_within_about_a_second(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await servers.propose(leader, b"before")
            await asyncio.sleep(1)
            servers.kill(leader)
            successor = await servers.until_active(within_s=1.2)
            await servers.propose(successor, b"after")
            assert await servers.until_equal() == [b"before", b"after"]
            await servers.start(leader)
            assert await servers.until_equal(within_s=5) == [b"before", b"after"]

        servers.world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_is_restarted_at_once_does_not_hold_up_an_election(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await asyncio.sleep(1)
            servers.kill(leader)
            await asyncio.sleep(0.05)
            await servers.start(leader)
            await servers.until_active(within_s=1.2)

        servers.world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_isolated_leader_steps_down_and_takes_over_what_the_others_decided(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await servers.propose(leader, b"before")
            servers.world.network.isolate(host_of(leader))
            lost = servers.propose(leader, b"lost")
            successor = await servers.until_active(within_s=6, among=others(servers, leader))
            with pytest.raises(ApiError) as unknown:
                await lost
            assert unknown.value.code is ErrorCode.NOT_CONTROLLER
            assert not servers.servers[leader].quorum.is_active
            await servers.propose(successor, b"after")
            servers.world.network.heal()
            assert await servers.until_equal() == [b"before", b"after"]
            assert await servers.until_active() == successor

        servers.world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", SEEDS)
def test_connections_that_fall_silent_are_replaced(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            network = servers.world.network
            for other in others(servers, leader):
                network.hang(host_of(leader), host_of(other))
                network.hang(host_of(other), host_of(leader))
            await asyncio.sleep(6)
            again = await servers.until_active(within_s=10)
            await servers.propose(again, b"after")
            assert await servers.until_equal(within_s=10) == [b"after"]

        servers.world.run(main(), timeout_s=60)


# ---- catching up


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_away_for_long_gets_a_snapshot(seed: int) -> None:
    with cluster(seed, snapshot_every=2000) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            away = others(servers, leader)[0]
            servers.crash(away)
            data = [b"%03d" % number * 10 for number in range(300)]
            for each in data:
                await servers.propose(leader, each)
            await servers.start(away)
            assert await servers.until_equal() == data
            assert servers.servers[away].history.restores == 1
            servers.crash(away)
            await servers.start(away)
            assert await servers.until_equal() == data

        servers.world.run(main(), timeout_s=120)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_takes_turns_with_entries_and_is_of_the_moment_it_was_begun(seed: int) -> None:
    with cluster(seed, voters=[1], snapshot_every=2000) as servers:

        async def main() -> None:
            await servers.start()
            only = servers.servers[1]
            data = [b"%03d" % number * 10 for number in range(300)]
            between = 0
            for first in range(0, 300, 10):
                await asyncio.gather(*(servers.propose(1, each) for each in data[first : first + 10]))
                between += only.quorum._applied._taking is not None
            assert between, "entries are applied while a snapshot is being taken"
            assert only.quorum.snapshots_taken > 1
            await asyncio.sleep(1)
            servers.crash(1)
            await servers.start()
            assert servers.servers[1].history.restores == 1
            assert servers.servers[1].history.data == data

        servers.world.run(main(), timeout_s=120)


@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_crashes_at_once_and_nothing_is_forgotten(seed: int) -> None:
    with cluster(seed, snapshot_every=3000) as servers:

        async def main() -> None:
            await servers.start()
            data: list[bytes] = []
            for _ in range(4):
                leader = await servers.until_active()
                for _ in range(30):
                    data.append(b"%d" % len(data))
                    await servers.propose(leader, data[-1])
                for node in list(servers.servers):
                    servers.crash(node)
                await servers.start()
                await servers.until_active()
                assert await servers.until_equal() == data

        servers.world.run(main(), timeout_s=120)


# ---- membership


async def introduce(quorum: Quorum) -> None:
    quorum.set_address(4, host_of(4), PORT)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fourth_server_joins_and_the_first_leader_leaves(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            quorum = servers.servers[leader].quorum
            await servers.propose(leader, b"before")
            await servers.start(4)  # named by nobody: it waits until the leader finds it
            await asyncio.sleep(1)
            assert servers.servers[4].history.data == []
            for node in (1, 2, 3):
                await servers.call(node, introduce(servers.servers[node].quorum))
            await servers.call(leader, quorum.change_membership(Change.ADD_OBSERVER, 4))
            assert await servers.until_equal() == [b"before"]
            with pytest.raises(ProposalRefused) as refused:
                await servers.call(leader, quorum.change_membership(Change.ADD_OBSERVER, 4))
            assert refused.value.refusal is Refusal.ALREADY_A_MEMBER
            assert 4 in servers.servers[leader].links.peers
            await servers.call(leader, quorum.change_membership(Change.ADD_VOTER, 4))
            await servers.call(leader, quorum.change_membership(Change.REMOVE_VOTER, leader))
            successor = await servers.until_active(within_s=3, among=others(servers, leader))
            assert successor != leader
            await servers.propose(successor, b"after")
            remove = servers.servers[successor].quorum.change_membership(Change.REMOVE_OBSERVER, leader)
            await servers.call(successor, remove)
            assert leader not in servers.servers[successor].links.peers
            servers.kill(leader)
            servers.kill(successor)
            third = await servers.until_active(within_s=3)
            await servers.propose(third, b"two of three")
            assert await servers.until_equal() == [b"before", b"after", b"two of three"]
            assert servers.servers[third].quorum.status.configuration.members == tuple(
                node for node in (1, 2, 3, 4) if node != leader
            )

        servers.world.run(main(), timeout_s=120)


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_is_handed_over(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            heir = others(servers, leader)[0]
            await servers.call(leader, servers.servers[leader].quorum.transfer_leadership(heir))
            assert await servers.until_active(within_s=0.5, among=[heir]) == heir
            with pytest.raises(ProposalRefused):
                await servers.call(leader, servers.servers[leader].quorum.transfer_leadership(None))
            await servers.call(heir, servers.servers[heir].quorum.stop())
            servers.kill(heir)
            await servers.until_active(within_s=0.5)

        servers.world.run(main(), timeout_s=60)


def test_an_observer_that_never_catches_up_does_not_become_a_voter() -> None:
    with cluster(2) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            quorum = servers.servers[leader].quorum
            await servers.call(leader, quorum.change_membership(Change.ADD_OBSERVER, 4))
            with pytest.raises(ProposalRefused) as refused:
                await servers.call(leader, quorum.change_membership(Change.ADD_VOTER, 4))
            assert refused.value.refusal is Refusal.NOT_CAUGHT_UP
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT

        servers.world.run(main(), timeout_s=60)


# ---- strangers


def test_another_cluster_is_refused_and_both_say_so(caplog: pytest.LogCaptureFixture) -> None:
    with cluster(3) as servers:

        async def main() -> None:
            await servers.start(1, 2)
            servers.cluster_id = "another-cluster"
            await servers.start(3)
            await servers.until_active(among=[1, 2])
            await asyncio.sleep(5)
            assert servers.servers[3].quorum.leader_id is None
            assert not servers.servers[3].links.is_up(1)

        servers.world.run(main(), timeout_s=60)
    assert "it belongs to cluster another-cluster, this is cluster a-cluster" in caplog.text
    assert "refuses this node: it belongs to cluster a-cluster, this is cluster another-cluster" in caplog.text


# ---- disks that fail


def test_a_server_whose_disk_fails_leaves_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with cluster(4) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await servers.propose(leader, b"before")
            servers.machine(leader).disk.fail_sync = lambda path: True
            with pytest.raises(StorageError):
                await servers.propose(leader, b"perhaps")
            assert not servers.servers[leader].quorum.is_active
            with pytest.raises(StorageError):
                await servers.propose(leader, b"never")
            assert servers.servers[leader].events[-1].startswith("failed: ")
            successor = await servers.until_active(within_s=3, among=others(servers, leader))
            await servers.propose(successor, b"after")
            data = servers.servers[successor].history.data
            assert data in ([b"before", b"after"], [b"before", b"perhaps", b"after"])
            before = servers.world.loop.steps
            await asyncio.sleep(20)
            assert servers.world.loop.steps - before < 20_000
            servers.machine(leader).disk.fail_sync = None
            servers.crash(leader)
            await servers.start(leader)
            assert await servers.until_equal() == data

        servers.world.run(main(), timeout_s=120)
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert "leaves the metadata quorum until it is restarted" in critical[0].getMessage()


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_whose_disk_is_full_hands_over_and_is_back_when_there_is_room(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await servers.propose(leader, b"before")
            disk = servers.machine(leader).disk
            disk.capacity = 0
            disk.capacity = -disk.free_bytes()
            with pytest.raises(StorageError):
                await servers.propose(leader, b"refused")
            others = [node for node in servers.voters if node != leader]
            successor = await servers.until_active(within_s=10.0, among=others)
            await servers.propose(successor, b"after")
            assert not servers.servers[leader].quorum.is_leader
            assert servers.servers[leader].quorum.failure is None
            disk.capacity = None
            applied = await servers.until_equal()
            assert [data for data in applied if data != b"refused"] == [b"before", b"after"]

        servers.world.run(main())


def test_what_a_hung_disk_holds_back_does_not_grow_with_every_heartbeat() -> None:
    with cluster(3) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            sick = others(servers, leader)[0]
            servers.machine(sick).disk_times.is_hung = True
            for number in range(5):
                await servers.propose(leader, b"%d" % number)
            await asyncio.sleep(60)
            quorum = servers.servers[sick].quorum
            assert quorum.leader_id == leader
            assert len(quorum._driver._held_back) <= 10
            servers.machine(sick).disk_times.is_hung = False
            await asyncio.sleep(1)
            assert not quorum._driver._held_back
            assert servers.servers[sick].history.data == [b"%d" % number for number in range(5)]
            matched = {each.node: each.match_index for each in servers.servers[leader].quorum.status.replicas}
            assert matched[sick] == matched[leader]

        servers.world.run(main(), timeout_s=120)


def test_a_state_machine_that_raises_ends_the_part_a_server_takes(caplog: pytest.LogCaptureFixture) -> None:
    with cluster(4) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            broken = others(servers, leader)[0]

            def fail(index: int, data: bytes) -> None:
                raise ValueError("a defect")

            servers.servers[broken].history.apply = fail  # type: ignore[method-assign]
            await servers.propose(leader, b"one")
            await asyncio.sleep(1)
            assert servers.servers[broken].quorum.failure is not None
            assert servers.servers[broken].quorum.leader_id is None
            await servers.propose(leader, b"two")

        servers.world.run(main(), timeout_s=60)
    assert caplog.text.count("leaves the metadata quorum until it is restarted: a defect") == 1


# ---- everything at once


@pytest.mark.parametrize("seed", range(1, 21))
def test_what_was_acknowledged_survives_crashes_kills_and_cuts(seed: int) -> None:
    random = Random(seed)
    with cluster(seed, snapshot_every=1500) as servers:
        acknowledged: list[bytes] = []
        unknown: list[bytes] = []

        async def write(number: int) -> None:
            data = b"%d" % number
            active = servers.active()
            if not active:
                await asyncio.sleep(0.1)
                return
            try:
                async with asyncio.timeout(5):
                    await servers.propose(active[-1], data)
                acknowledged.append(data)
            except (ApiError, ProcessDied, TimeoutError):
                unknown.append(data)

        async def resume(machine: SimMachine, after_s: float) -> None:
            await asyncio.sleep(after_s)
            machine.resume()

        async def disturb() -> None:
            node, network = random.choice([1, 2, 3]), servers.world.network
            machine = servers.machine(node)
            fault, other = random.randrange(9), host_of(node % 3 + 1)
            if not machine.is_running:
                with suppress(ProcessDied):  # it may lose power while it starts
                    await servers.start(node)
            elif fault == 0:
                servers.kill(node)
            elif fault == 1:
                servers.crash(node)
            elif fault == 2:
                machine.crash_after(random.randrange(1, 30))
            elif fault == 3:
                network.isolate(host_of(node))
            elif fault == 4:
                network.reset(host_of(node), other)
            elif fault == 5:
                network.hang(host_of(node), other)
            elif fault == 6:
                network.partition([host_of(node)], [other], one_way=True)
            elif fault == 7:
                machine.pause()
                servers.world.spawn("operator", resume(machine, random.random() * 3))
            else:
                network.heal()

        async def main() -> None:
            await servers.start()
            await servers.until_active()
            for number in range(120):
                await write(number)
                if random.random() < 0.15:
                    await disturb()
                if random.random() < 0.2:
                    await asyncio.sleep(random.random())
            servers.world.network.heal()
            for node in (1, 2, 3):
                servers.machine(node).disk.crash_after = None
                if not servers.machine(node).is_running:
                    await servers.start(node)
            await asyncio.sleep(8)  # hung connections are given up, paused processes resumed
            leader = await servers.until_active()
            await servers.propose(leader, b"the end")
            data = await servers.until_equal()
            assert len(set(data)) == len(data)
            kept = [each for each in data if each in acknowledged]
            assert kept == acknowledged
            assert all(each in acknowledged or each in unknown or each == b"the end" for each in data)
            assert acknowledged

        servers.world.run(main(), timeout_s=600)
