"""Brokers that must become members of the metadata quorum although something came in between."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cluster.broker_lifecycle import READ_TIMEOUT_S
from penstock.core.raft.exchange import Change
from penstock.sim.broker import DATA, SimDirectory
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.world import SimWorld
from support.worlds.controller import ControllerWorld, play


def test_a_new_controller_adds_the_brokers_that_the_one_before_had_only_registered() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.register(4)
        there.quorum.changes.clear()
        there.quorum.observers = ()
        there.controller.deactivated()
        there.controller.activated()
        await asyncio.sleep(0.1)
        assert there.quorum.changes == [(Change.ADD_OBSERVER, 4)]

    play(story)


def test_a_new_controller_lets_nobody_in_who_lacks_what_was_decided_before() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.register(4)
        there.controller.deactivated()
        there.controller.activated()
        answer = await there.heartbeat(4, offset=there.quorum.index - 1)
        assert (answer.is_caught_up, answer.is_fenced) == (False, True)
        answer = await there.heartbeat(4)
        assert (answer.is_caught_up, answer.is_fenced) == (True, False)

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_is_removed_while_it_is_cut_off_comes_back(seed: int) -> None:
    with SimWorld(seed) as world:
        cluster = SimCluster(world, 3)

        async def main() -> None:
            await asyncio.gather(*map(cluster.bring_up, cluster.voters))
            leader = cluster.nodes[1].membership.quorum.leader_id
            assert leader is not None
            removed = next(node for node in cluster.voters if node != leader)
            controller = cluster.nodes[leader].membership.controller
            await cluster.machines[leader].run(controller.voters.remove_voter(removed, b""))
            world.network.isolate(host_of(removed))
            async with asyncio.timeout(30):
                while not controller.image.brokers[removed].is_fenced:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await cluster.machines[leader].run(controller.registry.unregister_broker(removed))
            world.network.heal()
            async with asyncio.timeout(30):
                while any(removed not in node.image.live_brokers() for node in cluster.living.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

        world.run(main(), timeout_s=120)


async def _empty(cluster: SimCluster) -> int:
    """A voter that does not lead loses everything on its disk, and is down."""
    await asyncio.gather(*map(cluster.bring_up, cluster.voters))
    leader = cluster.nodes[1].membership.quorum.leader_id
    emptied = next(node for node in cluster.voters if node != leader)
    await asyncio.sleep(1)
    cluster.kill(emptied)
    _wipe(cluster.machines[emptied].disk, DATA)
    return emptied


def test_a_voter_on_a_new_disk_says_what_to_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quorum knows it by its directory.id, which a new disk does not have."""
    with SimWorld(3) as world:
        cluster = SimCluster(world, 3)

        async def main() -> None:
            emptied = await _empty(cluster)
            begin = SimDirectory.__init__

            def begin_anew(self: SimDirectory, path: str, cluster_id: str, machine: str) -> None:
                begin(self, path, cluster_id, f"new {machine}")

            monkeypatch.setattr(SimDirectory, "__init__", begin_anew)
            coming = asyncio.ensure_future(cluster.bring_up(emptied))
            await asyncio.sleep(READ_TIMEOUT_S + 5)
            assert not coming.done()
            coming.cancel()

        world.run(main(), timeout_s=120)
    assert "votes with another disk" in caplog.text
    assert "remove its vote (`penstock cluster remove-voter`)" in caplog.text


def test_a_voter_that_lost_its_files_under_its_directory_id_is_sent_everything_anew() -> None:
    with SimWorld(3) as world:
        cluster = SimCluster(world, 3)

        async def main() -> None:
            emptied = await _empty(cluster)
            await asyncio.wait_for(cluster.bring_up(emptied), READ_TIMEOUT_S)
            assert cluster.nodes[emptied].membership.quorum.leader_id != emptied

        world.run(main(), timeout_s=120)


def test_a_voter_that_never_ran_votes_once_the_operator_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Two of three begin the cluster, the controller dies, and the third starts for the first time."""
    key = "penstock.voter.never.voted"
    with SimWorld(5) as world:
        cluster = SimCluster(world, 3)

        async def start_third(value: str) -> asyncio.Future[None]:
            cluster.kill(3)
            cluster.rewrite_file(3, {key: value})
            coming = asyncio.ensure_future(cluster.bring_up(3))
            await asyncio.sleep(60)
            return coming

        async def main() -> None:
            await asyncio.gather(cluster.bring_up(1), cluster.bring_up(2))
            await asyncio.sleep(5)
            controller = next(number for number, node in cluster.living.items() if node.controller.is_active)
            cluster.kill(controller)
            coming = asyncio.ensure_future(cluster.bring_up(3))
            await asyncio.sleep(60)
            assert not coming.done(), "its disk may have been lost"
            coming.cancel()
            directory_id = cluster.nodes[3].directory.directory_id
            assert f"start it with {key}={directory_id}" in caplog.text
            coming = await start_third("of-another-disk")
            assert not coming.done(), "the word was for another disk"
            coming.cancel()
            assert "names another data directory" in caplog.text
            coming = await start_third(directory_id)
            assert coming.done()
            assert any(node.controller.is_active for node in cluster.living.values())

        world.run(main(), timeout_s=600)
    assert "votes with an empty disk" in caplog.text


def _wipe(disk: SimDisk, path: str) -> None:
    for name in disk.list_directory(path):
        inner = f"{path}/{name}"
        if disk.is_directory(inner):
            _wipe(disk, inner)
            disk.remove_directory(inner)
        else:
            disk.remove(inner)
