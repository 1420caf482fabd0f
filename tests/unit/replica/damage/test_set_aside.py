"""Records that repair takes out of a log are all kept, for as long as they are needed and no longer."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from penstock.core.metadata.records import TopicCreated, TopicDeleted
from penstock.records.batch import iterate_headers
from penstock.replica.partition import Partition
from penstock.replica.set_aside import SetAside
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher
from support.scripted.leader import until
from support.worlds.hosted import HostedWorld, cut_as_follower
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

SEGMENT = "/data/t-0/00000000000000000000.log"
SMALL = {"internal.segment.bytes": "300", "flush.messages": "1"}


class Entropy:
    _numbers = count()  # of all of them: names differ after a restart too

    def random_bytes(self, size: int) -> bytes:
        return next(self._numbers).to_bytes(size, "big")


def set_aside_of(world: HostedWorld) -> SetAside:
    made = SetAside(world.disk, "/data", world.workers, Entropy())
    made.read()
    return made


def fill(world: HostedWorld, partition: Partition, records: int) -> None:
    for _ in range(records):
        world.append(partition, b"k")


def directories(world: HostedWorld) -> list[str]:
    return [name for name in world.disk.list_directory("/data") if name.endswith("-damaged")]


def kept_offsets(world: HostedWorld) -> list[list[int]]:
    """Of each directory that was set aside."""
    found: list[list[int]] = []
    for name in directories(world):
        path, offsets = f"/data/{name}", []
        for file in sorted(world.disk.list_directory(path)):
            if file.endswith(".log"):
                data = world.disk.peek(f"{path}/{file}", 0, 1 << 20)
                offsets += [header.base_offset for _, header in iterate_headers(data, file)]
        found.append(offsets)
    return found


def test_a_tail_that_was_not_cut_is_kept_again_as_the_log_has_grown() -> None:
    world = HostedWorld({TOPIC: SMALL})
    partition, aside = world.hosted.get(TOPIC, 0), set_aside_of(world)

    async def story() -> None:
        fill(world, partition, 10)
        await aside.keep_tail(partition, 2)  # and then it may not be cut
        fill(world, partition, 10)
        await aside.keep_tail(partition, 2)
        cut_as_follower(partition, 2)
        assert kept_offsets(world) == [list(range(2, 20))], "the first one is in it"
        assert aside.count == 1

    asyncio.run(story())


@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_was_fetched_after_the_cut_is_not_kept(is_restarted: bool) -> None:
    world = HostedWorld({TOPIC: SMALL})
    partition = world.hosted.get(TOPIC, 0)

    async def story() -> None:
        aside = set_aside_of(world)
        fill(world, partition, 10)
        await aside.keep_tail(partition, 2)
        cut_as_follower(partition, 2)
        await aside.was_cut(partition)
        fill(world, partition, 5)
        if is_restarted:
            aside = set_aside_of(world)
        await aside.keep_tail(partition, 3)
        assert kept_offsets(world) == [list(range(2, 10))]
        await aside.keep_tail(partition, 1)
        assert sorted(kept_offsets(world)) == [list(range(1, 7)), list(range(2, 10))]

    asyncio.run(story())


def test_after_a_crash_nobody_knows_whether_it_was_cut_and_both_are_kept() -> None:
    world = HostedWorld({TOPIC: SMALL})
    partition = world.hosted.get(TOPIC, 0)

    async def story() -> None:
        fill(world, partition, 10)
        await set_aside_of(world).keep_tail(partition, 2)
        fill(world, partition, 5)
        await set_aside_of(world).keep_tail(partition, 2)
        kept = sorted(kept_offsets(world))
        assert [one[:8] for one in kept] == 2 * [list(range(2, 10))]
        assert kept[1] == list(range(2, 15))

    asyncio.run(story())


def test_what_a_deleted_topic_left_says_nothing_about_another_of_its_name() -> None:
    world = HostedWorld({TOPIC: SMALL})
    old = world.hosted.get(TOPIC, 0)
    aside = set_aside_of(world)

    async def story() -> None:
        fill(world, old, 3)
        await aside.move(old)
        world.image.replay(TopicDeleted(old.topic_id.hex()))
        world.image.replay(TopicCreated(TOPIC, (b"n" * 16).hex(), ((1,),)))
        world.open()
        assert kept_offsets(world) == [], "a start removes what is of no topic any more"
        new = world.hosted.get(TOPIC, 0)
        assert not aside.holds(new)
        fill(world, new, 7)
        await aside.move(new)
        assert kept_offsets(world) == [list(range(7))]
        world.open()
        assert kept_offsets(world) == [list(range(7))]

    asyncio.run(story())


def test_a_move_that_failed_half_way_is_remembered() -> None:
    world = HostedWorld({TOPIC: SMALL})
    partition, aside = world.hosted.get(TOPIC, 0), set_aside_of(world)

    async def story() -> None:
        fill(world, partition, 3)
        world.disk.fail_sync = lambda path: path == "/data"
        with pytest.raises(OSError, match="input/output error"):
            await aside.move(partition)
        assert aside.holds(partition)
        with pytest.raises(OSError, match="input/output error"):
            await aside.move(partition)  # not done as long as the new name is not stable
        world.disk.fail_sync = None
        await aside.move(partition)
        assert kept_offsets(world) == [[0, 1, 2]]

    asyncio.run(story())


def test_a_topic_deleted_while_it_is_repaired_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Partition] = []
    move = SetAside.move

    async def move_slowly(aside: SetAside, partition: Partition) -> None:
        await move(aside, partition)
        moved.append(partition)
        await asyncio.sleep(3)

    monkeypatch.setattr(SetAside, "move", move_slowly)

    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        servers, leader = brokers.servers, brokers.state.leader
        loser = next(one for one in brokers.state.isr if one != leader)
        await servers.stop(loser)
        disk = servers.machines[loser].disk
        disk.open(SEGMENT).truncate(200)
        await servers.bring_up(loser)
        await until(lambda: bool(moved))
        active = next(node for node in servers.living.values() if node.controller.is_active)
        topic_id = active.image.topics[TOPIC].topic_id
        await servers.machines[active.config.node_id].run(active.controller.topics.delete_topic(topic_id))
        await until(lambda: moved[0].is_deleted)
        assert [name for name in disk.list_directory("/data") if "-damaged" in name]
        await until(lambda: not [name for name in disk.list_directory("/data") if "-damaged" in name])
        assert servers.living[loser].partitions.set_aside.count == 0

    play(7, story)
