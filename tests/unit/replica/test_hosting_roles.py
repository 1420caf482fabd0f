"""Partitions that come and go as the metadata says, and files of those it has not spoken of yet."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.metadata.image import NO_LEADER, PartitionState
from penstock.core.metadata.records import ConfigChanged, TopicCreated, TopicDeleted
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimCrash
from penstock.storage import checkpoints
from support.worlds.hosted import HostedWorld, cut_as_follower
from support.worlds.hosts import Listening

SHARED = bytes([9] * 16)


class World(HostedWorld):
    def __init__(self) -> None:
        self.roles: list[tuple[str, bool, bool]] = []
        super().__init__({"alone": {}})
        self.watch()

    def watch(self) -> None:
        def note(one: Partition) -> None:
            self.roles.append((repr(one), one.is_leader, one.is_deleted))

        self.hosted.host.events = Listening(role_changed=note)

    @property
    def me(self) -> int:
        return self.hosted.host.node_id

    def create(self, *assignments: Sequence[int]) -> None:
        self.image.replay(TopicCreated("shared", SHARED.hex(), tuple(tuple(one) for one in assignments)))
        self.hosted.topic_created(self.image.topics["shared"])

    def change(self, index: int, leader: int, replicas: Sequence[int]) -> None:
        topic = self.image.topics["shared"]
        old = topic.partitions[index]
        state = PartitionState(
            index, tuple(replicas), leader, old.leader_epoch + 1, tuple(replicas), old.partition_epoch + 1
        )
        topic.partitions[index] = state
        self.tell(state)

    def tell(self, state: PartitionState) -> None:
        asyncio.run(self._tell(state))

    async def _tell(self, state: PartitionState) -> None:
        removal = self.hosted.partition_changed(self.image.topics["shared"], state)
        if removal is not None:
            await removal
        await self.hosted.settled()

    def directories(self) -> list[str]:
        return sorted(name for name in self.disk.list_directory("/data") if name.startswith("shared"))

    def kill(self) -> None:
        self.disk.kill()


async def _finished(removal: Awaitable[None]) -> None:
    await removal


def test_only_what_is_assigned_here_is_hosted() -> None:
    world = World()
    other = world.me + 1
    world.create([world.me, other], [other, world.me], [other])
    first, second, third = world.hosted.by_name["shared"]
    assert first is not None
    assert second is not None
    assert third is None
    assert first.is_leader
    assert not second.is_leader
    assert [repr(one) for one in world.hosted] == ["alone-0", "shared-0", "shared-1"]
    assert world.roles == [("shared-0", True, False), ("shared-1", False, False)]
    with pytest.raises(ApiError) as by_name:
        world.hosted.get("shared", 2)
    with pytest.raises(ApiError) as by_id:
        world.hosted.get_by_id(SHARED, 2)
    assert by_name.value.code is by_id.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.hosted.leader_of(SHARED, "", 2) == (other, 0)
    assert world.hosted.leader_of(SHARED, "", 3) == (-1, -1)


def test_a_partition_that_moves_away_takes_its_files_along_and_may_come_back_empty() -> None:
    world = World()
    other = world.me + 1
    world.create([world.me])
    partition = world.hosted.get("shared", 0)
    world.append(partition, b"k")
    world.append(partition, b"k")
    told: list[ErrorCode] = []
    partition.when_committed(9, told.append)
    world.change(0, other, [other])
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.roles[-1] == ("shared-0", False, True)
    assert world.directories() == []
    asyncio.run(world.hosted.housekeeping.persist_offsets())
    assert ("shared", 0) not in checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")
    world.change(0, other, [other, world.me])
    back = world.hosted.get("shared", 0)
    assert back is not partition
    assert (back.log.log_end_offset, back.high_watermark) == (0, 0)
    assert world.roles[-1] == ("shared-0", False, False)


def test_files_that_cannot_be_removed_stay_until_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    other = world.me + 1
    world.create([world.me])
    world.append(world.hosted.get("shared", 0), b"k")
    world.disk.fail_sync = lambda path: path == "/data"
    world.change(0, other, [other])
    assert "stay until the next start" in caplog.text
    assert [name.endswith("-delete") for name in world.directories()] == [True]


@pytest.mark.parametrize("at", ["when it goes", "at the next start"])
def test_files_of_a_replica_that_is_gone_are_removed_under_a_name_that_is_there_to_stay(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A crash could else leave the replica that comes back with the rest of them for its log."""
    world = World()
    other = world.me + 1
    world.create([world.me])
    world.append(world.hosted.get("shared", 0), b"k")
    seen: list[list[str]] = []
    remove = world.disk.remove_directory

    def crash(path: str) -> None:
        seen.append(world.directories())
        raise SimCrash

    monkeypatch.setattr(world.disk, "remove_directory", crash)
    with pytest.raises(SimCrash):
        world.change(0, other, [other])
    if at == "at the next start":
        world.kill()
        with pytest.raises(SimCrash):
            world.open()
    monkeypatch.setattr(world.disk, "remove_directory", remove)
    world.disk.crash()
    assert world.directories() == seen[-1]
    assert [name.endswith("-delete") for name in seen[-1]] == [True]


def _assigned_again(world: World, **state: Any) -> PartitionState:
    """The partition is this broker's again, and on its way there; another leads."""
    other = world.me + 1
    given = {"leader": other, "leader_epoch": 3, "isr": (other,), "partition_epoch": 7, "adding": (world.me,)} | state
    again = PartitionState(0, (other, world.me), **given)
    world.image.topics["shared"].partitions[0] = again
    return again


def _with_a_record(policy: str = "compact") -> World:
    world = World()
    world.create([world.me, world.me + 1])
    world.image.replay(ConfigChanged(2, "shared", {"cleanup.policy": policy}))
    world.append(world.hosted.get("shared", 0), b"k")
    asyncio.run(world.hosted.housekeeping.checkpoint())
    return world


@pytest.mark.parametrize(
    ("policy", "state", "is_new"),
    [
        ("compact", {}, True),
        ("compact,delete", {}, True),
        ("delete", {}, False),
        ("compact", {"adding": ()}, False),
        ("compact", {"isr": (1, 2)}, False),
        ("compact", {"isr": (1,), "leader": 1}, False),
        ("compact", {"elr": (1,)}, False),
        ("compact", {"leader": NO_LEADER, "isr": (), "last_known_elr": (1,)}, False),
        ("compact", {"leader_epoch": 0}, False),
    ],
)
def test_a_compacted_log_of_an_earlier_stay_is_not_gone_on_with(
    policy: str, state: dict[str, Any], is_new: bool
) -> None:
    """It was taken from this broker and given back while that was down: tombstones have gone that it never saw. One
    that others count on has fetched since, and is all they may have; so has one that holds records of this leader."""
    world = _with_a_record(policy)
    assert world.me == 1
    world.kill()
    _assigned_again(world, **state)
    world.open()
    assert world.hosted.get("shared", 0).log.log_end_offset == (0 if is_new else 1)
    assert world.directories() == ([] if is_new else ["shared-0"])
    known = checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")
    assert known.get(("shared", 0), 0) == (0 if is_new else 1)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_log_of_an_earlier_stay_that_cannot_be_set_aside_is_offline(
    is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk is not written to; followed on, the log would bring deleted keys back. The next start tries it."""
    world = _with_a_record()
    rename = world.disk.rename

    def fails(old: str, new: str) -> None:
        if old == "/data/shared-0":
            raise OSError(errno.EIO, "input/output error", old)
        rename(old, new)

    monkeypatch.setattr(world.disk, "rename", fails)
    if is_running:
        world.tell(_assigned_again(world))
    else:
        world.kill()
        _assigned_again(world)
        world.open()
    assert world.hosted.get("shared", 0).log.offline is not None
    assert world.directories() == ["shared-0"]
    monkeypatch.undo()
    world.kill()
    world.open()
    partition = world.hosted.get("shared", 0)
    assert (partition.log.offline, partition.log.log_end_offset) == (None, 0)


@pytest.mark.parametrize("leader", ["other", "me"])
def test_a_log_of_perhaps_an_earlier_stay_is_kept_while_nobody_leads(leader: str) -> None:
    """It may be all that is left: somebody may want to have it lead. With another leader there is more."""
    world = _with_a_record()
    world.kill()
    _assigned_again(world, leader=NO_LEADER, isr=())
    world.open()
    assert world.hosted.get("shared", 0).log.log_end_offset == 1
    elected = world.me + 1 if leader == "other" else world.me
    world.tell(_assigned_again(world, leader=elected, isr=(elected,), leader_epoch=4, partition_epoch=8))
    assert world.hosted.get("shared", 0).log.log_end_offset == (0 if leader == "other" else 1)
    assert world.directories() == ([] if leader == "other" else ["shared-0"])


@pytest.mark.parametrize(
    ("state", "is_new"),
    [
        ({}, True),
        ({"partition_epoch": 1}, False),
        ({"leader_epoch": 0}, False),
        ({"isr": (1, 2)}, False),
        ({"adding": ()}, False),
    ],
    ids=["taken and given back", "one change", "the same leader epoch", "in sync", "not on its way"],
)
def test_a_broker_that_hears_late_of_its_absence_begins_anew(state: dict[str, Any], is_new: bool) -> None:
    """A snapshot of the metadata does not say that the partition was elsewhere in between."""
    world = _with_a_record()
    before = world.hosted.get("shared", 0)
    world.tell(_assigned_again(world, **state))
    partition = world.hosted.get("shared", 0)
    assert (partition is not before) == before.is_deleted == is_new
    assert partition.log.log_end_offset == (0 if is_new else 1)
    assert world.directories() == ([] if is_new else ["shared-0"])
    assert partition.leader == world.me + 1


def test_roles_follow_the_metadata() -> None:
    world = World()
    other = world.me + 1
    world.create([other, world.me])
    partition = world.hosted.get("shared", 0)
    assert not partition.is_leader
    world.change(0, world.me, [other, world.me])
    assert partition.is_leader
    assert partition.leader_epoch == 1
    world.change(0, -1, [other, world.me])
    assert not partition.is_leader


def filled() -> World:
    """A topic with a flushed record, then the broker is killed."""
    world = World()
    world.create([world.me])
    world.append(world.hosted.get("shared", 0), b"k")
    asyncio.run(world.hosted.housekeeping.checkpoint())
    world.kill()
    return world


def reopen(world: World) -> None:
    """The broker starts when the topic is gone."""
    world.image.replay(TopicDeleted(SHARED.hex()))
    world.open()
    world.watch()


def test_what_is_left_of_a_topic_that_is_gone_is_a_stray() -> None:
    world = filled()
    reopen(world)
    (name,) = world.directories()
    assert name.endswith("-stray")
    assert ("shared", 0) not in checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")


@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_a_new_topic_of_the_same_name_does_not_inherit(is_in_the_way: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the start could not set the directory aside."""
    world = filled()
    rename = world.disk.rename

    def refuse(old: str, new: str) -> None:
        if world.disk.is_directory(old):
            raise OSError(errno.EIO, old)
        rename(old, new)

    with monkeypatch.context() as broken:
        if is_in_the_way:
            broken.setattr(world.disk, "rename", refuse)
        reopen(world)
    assert (world.directories() == ["shared-0"]) == is_in_the_way
    asyncio.run(_recreated(world))
    partition = world.hosted.get("shared", 0)
    assert (partition.log.log_end_offset, partition.log.persisted_recovery_point) == (0, 0)
    assert [name.endswith("-stray") for name in world.directories()] == [True]


AGAIN = bytes([8] * 16)


def delete(world: World) -> Any:
    """Its files are out of the way, and go for good when what is returned is awaited."""
    world.image.replay(TopicDeleted(SHARED.hex()))
    return world.hosted.topic_deleted("shared", SHARED)


async def _recreated(world: World) -> None:
    create_again(world)
    await world.hosted.settled()


def create_again(world: World) -> None:
    """Another topic of the same name."""
    world.image.replay(TopicCreated("shared", AGAIN.hex(), ((world.me,),)))
    world.hosted.topic_created(world.image.topics["shared"])


def write_to_new(world: World) -> None:
    partition = world.hosted.get("shared", 0)
    world.append(partition, b"new")
    assert partition.log.stable_offset == 1


def long_lived() -> World:
    """A topic of which much was written and then deleted, as the files beside the logs say."""
    world = World()
    world.create([world.me])
    partition = world.hosted.get("shared", 0)
    for _ in range(9):
        world.append(partition, b"old")
    partition.delete_records(7)
    asyncio.run(world.hosted.housekeeping.checkpoint())
    return world


def found_after_a_crash(world: World) -> tuple[object, int, int]:
    world.disk.crash()
    world.open()
    log = world.hosted.get("shared", 0).log
    return log.offline, log.log_start_offset, log.log_end_offset


def test_a_topic_made_anew_keeps_its_records_when_the_broker_crashes() -> None:
    world = long_lived()
    removal = delete(world)
    asyncio.run(_recreated(world))
    write_to_new(world)
    removal.close()
    assert found_after_a_crash(world) == (None, 0, 1)


def test_a_checkpoint_that_began_before_the_topic_was_deleted_says_nothing_of_the_next() -> None:
    world = long_lived()
    removals: list[Any] = []

    def delete_meanwhile() -> None:
        world.workers.before = lambda: None
        removals.append(delete(world))
        create_again(world)

    async def persist() -> None:
        world.workers.before = delete_meanwhile
        await world.hosted.housekeeping.persist_offsets()
        await world.hosted.settled()
        write_to_new(world)
        world.disk.crash()
        for removal in removals:
            removal.close()

    asyncio.run(persist())
    assert found_after_a_crash(world) == (None, 0, 1)


def test_a_topic_made_anew_waits_for_a_worker_and_not_the_loop_for_the_disk() -> None:
    world = long_lived()

    async def recreate() -> None:
        removal = delete(world)
        changes = world.disk.changes
        create_again(world)
        partition = world.hosted.get("shared", 0)
        assert world.disk.changes == changes
        assert (partition.is_leader, partition.log.is_being_cut) == (False, True)
        with pytest.raises(ApiError) as refused:
            world.append(partition, b"too early")
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.roles.clear()
        await world.hosted.settled()
        assert world.roles == [("shared-0", True, False)]
        assert ("shared", 0) not in checkpoints.read_offsets(world.disk, f"/data/{checkpoints.LOG_START_OFFSETS}")
        write_to_new(world)
        removal.close()

    asyncio.run(recreate())
    assert found_after_a_crash(world) == (None, 0, 1)


def test_a_topic_made_anew_is_offline_while_the_disk_still_speaks_of_the_last_one() -> None:
    world = long_lived()

    async def recreate() -> None:
        delete(world).close()
        world.workers.error = OSError(errno.EIO, "input/output error")
        create_again(world)
        await world.hosted.settled()
        partition = world.hosted.get("shared", 0)
        assert partition.log.offline is not None
        world.workers.error = None
        partition.reopened(await world.hosted.reopen(partition))
        write_to_new(world)

    asyncio.run(recreate())
    assert found_after_a_crash(world) == (None, 0, 1)


@pytest.mark.parametrize("is_known", [False, True], ids=["found out meanwhile", "known before"])
def test_a_topic_made_anew_on_a_disk_that_hangs_is_offline(is_known: bool) -> None:
    """So another replica may lead it. It comes back with the disk."""
    world = long_lived()

    async def recreate() -> None:
        answers = asyncio.Event()
        run = world.workers.run

        def hangs(work: Any) -> Any:
            async def later() -> Any:
                await answers.wait()
                return await run(work)

            return later()

        world.workers.run = hangs  # type: ignore[method-assign]
        delete(world).close()
        world.hosted.host.is_disk_hung = is_known
        create_again(world)
        partition = world.hosted.get("shared", 0)
        if not is_known:
            await asyncio.sleep(0)
            assert world.hosted.held_since_s() is not None
            assert partition.log.is_being_cut
            world.hosted.disk_hung()
        assert partition.log.offline is not None
        assert partition.is_leader, "it may resign"
        await world.hosted.settled()
        answers.set()
        partition.reopened(await world.hosted.reopen(partition))
        await asyncio.sleep(0.01)
        assert world.hosted.held_since_s() is None
        write_to_new(world)

    asyncio.run(recreate())
    assert found_after_a_crash(world) == (None, 0, 1)


def test_a_topic_made_anew_may_go_again_at_once() -> None:
    world = long_lived()

    async def recreate() -> None:
        removals = [delete(world)]
        create_again(world)
        world.image.replay(TopicDeleted(AGAIN.hex()))
        removals.append(world.hosted.topic_deleted("shared", AGAIN))
        await world.hosted.settled()
        for removal in removals:
            await removal

    asyncio.run(recreate())
    assert world.directories() == []
    assert "shared" not in world.hosted.by_name


@pytest.mark.parametrize("heard", ["nothing", "of its deletion", "of its deletion long ago"])
def test_a_topic_made_anew_while_the_broker_was_away_begins_empty(heard: str) -> None:
    world = long_lived()
    if heard == "nothing":
        world.image.replay(TopicDeleted(SHARED.hex()))
    else:
        removal = delete(world)
        if heard == "of its deletion":
            removal.close()
        else:
            asyncio.run(_finished(removal))
            assert world.directories() == []
    world.disk.crash()
    world.image.replay(TopicCreated("shared", AGAIN.hex(), ((world.me,),)))
    world.open()
    log = world.hosted.get("shared", 0).log
    assert (log.offline, log.log_start_offset, log.log_end_offset) == (None, 0, 0)
    world.append(world.hosted.get("shared", 0), b"new")
    assert found_after_a_crash(world) == (None, 0, 1)


def test_a_replica_that_is_not_assigned_any_more_at_start_is_a_stray() -> None:
    world = filled()
    topic = world.image.topics["shared"]
    topic.partitions[0] = PartitionState(0, (world.me + 1,), world.me + 1, 1, (world.me + 1,))
    world.open()
    assert world.hosted.by_name["shared"] == [None]
    (name,) = world.directories()
    assert name.endswith("-stray")


@pytest.mark.parametrize("name", ["node-1", "backup-delete"])
def test_directories_of_others_are_left_alone(name: str) -> None:
    """Such as those of the nodes of a cluster, which have the names that partitions of a topic "node" would have."""
    world = World()
    world.disk.make_directory(f"/data/{name}/t-0")
    for file in ("meta.properties", "t-0/partition.metadata", "t-0/00000000000000000000.log"):
        world.disk.open(f"/data/{name}/{file}", create=True).close()
    world.disk.open("/data/notes-2", create=True).close()
    world.open()
    names = [entry for entry in world.disk.list_directory("/data") if "node" in entry or "-delete" in entry]
    assert names == [name]
    assert world.disk.list_directory(f"/data/{name}") == ["meta.properties", "t-0"]
    assert world.disk.list_directory(f"/data/{name}/t-0") == ["00000000000000000000.log", "partition.metadata"]
    assert world.disk.exists("/data/notes-2")


@pytest.mark.parametrize("file", ["partition.metadata", "00000000000000000042.log"])
def test_either_file_of_a_partition_makes_a_stray(file: str) -> None:
    world = World()
    world.disk.make_directory("/data/shared-7")
    world.disk.open(f"/data/shared-7/{file}", create=True).close()
    world.open()
    (name,) = world.directories()
    assert name.endswith("-stray")


def test_a_directory_that_cannot_be_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.disk.make_directory("/data/shared-7")
    listed = world.disk.list_directory

    def list_directory(path: str) -> list[str]:
        if path == "/data/shared-7":
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(world.disk, "list_directory", list_directory)
    world.open()
    assert world.directories() == ["shared-7"]


async def test_a_cut_waits_for_the_checkpoint_under_way() -> None:
    """Else it would write a recovery point beyond the end of the log, and the log could not be opened any more."""
    world = World()
    partition: Partition = world.hosted.get("alone", 0)
    for _ in range(3):
        world.append(partition, b"k")
    begun, go_on = asyncio.Event(), asyncio.Event()
    make_stable = world.workers.run

    async def slow(work: object) -> object:
        begun.set()
        await go_on.wait()
        return await make_stable(work)  # type: ignore[arg-type]

    world.workers.run = slow  # type: ignore[method-assign, assignment]
    checkpoint = asyncio.ensure_future(world.hosted.housekeeping.checkpoint())
    await begun.wait()

    async def cut() -> None:
        await world.hosted.lower_recovery_point(partition, 1)
        cut_as_follower(partition, 1)

    cutting = asyncio.ensure_future(cut())
    await asyncio.sleep(0)
    assert partition.log.log_end_offset == 3
    go_on.set()
    await checkpoint
    await cutting
    assert partition.log.log_end_offset == 1
    points = checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")
    assert points["alone", 0] == 1


def _waiting_for_a_third(world: World) -> Partition:
    """A leader with two in-sync replicas of three: min.insync.replicas is three, and the second has everything."""
    others = world.me + 1, world.me + 2
    world.create([world.me, *others])
    world.image.replay(ConfigChanged(2, "shared", {"min.insync.replicas": "3", "flush.messages": "1000"}))
    world.hosted.config_changed("shared")
    world.change(0, world.me, [world.me, *others])
    topic = world.image.topics["shared"]
    topic.partitions[0] = replace(topic.partitions[0], isr=(world.me, others[0]), elr=(others[1],), partition_epoch=9)
    world.tell(topic.partitions[0])
    leader = world.hosted.get("shared", 0)
    world.append(leader, b"k")
    leader.follower_fetched(others[0], 1, 0, world.clock.now_ms())
    assert (leader.log.log_end_offset, leader.high_watermark) == (1, 0)
    return leader


def test_a_lower_minimum_lets_a_leader_commit() -> None:
    world = World()
    leader = _waiting_for_a_third(world)
    world.image.replay(ConfigChanged(2, "shared", {"min.insync.replicas": "2", "flush.messages": "1000"}))
    world.hosted.config_changed("shared")
    assert leader.high_watermark == 1


@pytest.mark.parametrize("scope", ["the topic", "all brokers"])
def test_settings_of_a_snapshot_commit_nothing_before_its_leaders_are_known(scope: str) -> None:
    """The eligible replica was elected under the old minimum. It lacks what this leader would commit by the new one."""
    world = World()
    leader = _waiting_for_a_third(world)
    topic = world.image.topics["shared"]
    elected = world.me + 2
    state = replace(topic.partitions[0], leader=elected, leader_epoch=5, isr=(elected,), elr=(), partition_epoch=10)
    topic.partitions[0] = state
    world.image.replay(ConfigChanged(2, "shared", {"min.insync.replicas": "2", "flush.messages": "1000"}))
    if scope == "the topic":
        world.hosted.config_changed("shared")
    else:
        world.hosted.broker_config_changed(world.hosted.broker)
    assert (leader.is_leader, leader.high_watermark) == (True, 0)
    world.tell(state)
    assert (leader.is_leader, leader.high_watermark) == (False, 0)
