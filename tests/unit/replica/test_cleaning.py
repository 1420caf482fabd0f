"""Which log the broker compacts when, and what else may happen to it meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.model.errors import StorageError
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch, decode_uncompressed
from penstock.records.control import ABORT, build_marker
from penstock.replica.cleaning import LogCleaning
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimDisk
from penstock.storage import checkpoints
from penstock.storage.cleaner.plan import Cleaned, CleanPlan, Outcome, RewrittenSegment, Uncleanable
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.producers.transactions import AbortedTransaction
from support.worlds.hosted import NOW_MS, HostedWorld, cut_as_follower
from support.worlds.hosts import Listening


class InPlace:
    """The rewriter without a process. `meanwhile` happens before each outcome."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.plans: list[CleanPlan] = []
        self.meanwhile: Callable[[Outcome], None] = lambda outcome: None
        self.error: StorageError | None = None
        self.rests = 0
        self.is_stopped = False

    async def rewrite(self, plan: CleanPlan) -> AsyncGenerator[Outcome, None]:
        self.plans.append(plan)
        for outcome in clean(self._disk, plan):
            self.meanwhile(outcome)
            if self.error is not None:
                raise self.error
            yield outcome

    async def rest(self) -> None:
        self.rests += 1

    def stop(self) -> None:
        self.is_stopped = True


class World(HostedWorld):
    def __init__(self, topics: dict[str, dict[str, str]]) -> None:
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        super().__init__({name: {**compacted, **overrides} for name, overrides in topics.items()})

    def open(self) -> None:
        super().open()
        self.rewriter = InPlace(self.disk)
        self.cleaning = LogCleaning(self.hosted, self.rewriter, self.disk, self.workers, self.clock)

    def fill(self, topic: str, *, rounds: int = 3) -> Partition:
        """Keys a and b, each in its own batch, in `rounds` segments and the active one."""
        partition = self.hosted.get(topic, 0)
        for _ in range(rounds):
            for key in (b"a", b"b"):
                self.append(partition, key)
            partition.log.roll(self.clock.ms)
        self.append(partition, b"c")
        return partition

    def offsets(self, topic: str) -> list[int]:
        partition = self.hosted.get(topic, 0)
        result, offset = [], partition.log.log_start_offset
        while (piece := partition.read(offset, 1)) is not None:
            result += [record.offset for record in decode_uncompressed(piece.read())]
            offset = piece.next_offset
        return result

    def persisted(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(self.disk, f"/data/{checkpoints.CLEANED_OFFSETS}")

    def leftovers(self, topic: str) -> list[str]:
        return [name for name in self.disk.list_directory(f"/data/{topic}-0") if name.endswith((".cleaned", ".swap"))]


async def test_the_dirtiest_log_comes_first_and_what_is_clean_is_left_alone() -> None:
    world = World({"half": {}, "whole": {}, "kept": {"cleanup.policy": "delete"}})
    for topic in ("half", "kept"):
        world.fill(topic)
    assert await world.cleaning.run() == 1
    assert world.persisted() == {("half", 0): 6}
    world.fill("half", rounds=1)
    world.fill("whole")
    assert await world.cleaning.run() == 2
    assert [plan.directory for plan in world.rewriter.plans] == ["/data/half-0", "/data/whole-0", "/data/half-0"]
    assert world.offsets("half") == [6, 7, 8, 9]
    assert world.offsets("whole") == [4, 5, 6]
    assert world.offsets("kept") == list(range(7))
    assert await world.cleaning.run() == 0
    assert world.rewriter.rests == 2
    assert world.rewriter.plans[0].max_keys == 450


async def test_the_recovery_point_is_persisted_before_anything_is_replaced() -> None:
    world = World({"t": {}})
    world.fill("t")
    seen: list[int] = []
    world.rewriter.meanwhile = lambda outcome: seen.append(
        checkpoints.read_offsets(world.disk, f"/data/{checkpoints.RECOVERY_POINTS}")["t", 0]
    )
    await world.cleaning.run()
    assert min(seen) >= 6


async def test_what_is_clean_is_known_after_a_restart() -> None:
    world = World({"t": {}, "gone": {}})
    for topic in ("t", "gone"):
        world.fill(topic)
    await world.cleaning.run()
    world.disk.crash()
    world.open()
    assert world.hosted.get("t", 0).log.cleaned_offset == 6
    assert await world.cleaning.run() == 0
    assert world.offsets("t") == [4, 5, 6]
    await world.hosted.topic_deleted("gone", bytes([1] * 16))
    await world.hosted.housekeeping.persist_offsets()
    assert world.persisted() == {("t", 0): 6}


async def test_readers_at_the_high_watermark_are_not_misled_by_an_old_position() -> None:
    world = World({"t": {}})
    partition = world.fill("t")
    partition.log.roll(NOW_MS)  # the high watermark was last seen in a segment that is compacted now
    await world.cleaning.run()
    assert world.offsets("t") == [4, 5, 6]
    assert partition.high_watermark == 7
    world.append(partition, b"d")
    assert world.offsets("t") == [4, 5, 6, 7]


@pytest.mark.parametrize("moment", [RewrittenSegment, Cleaned])
async def test_a_topic_deleted_meanwhile(moment: type[Outcome]) -> None:
    world = World({"t": {}})
    world.fill("t")
    waiting: list[Awaitable[None]] = []

    def meanwhile(outcome: Outcome) -> None:
        if isinstance(outcome, moment):
            waiting.append(world.hosted.topic_deleted("t", bytes(16)))

    world.rewriter.meanwhile = meanwhile
    assert await world.cleaning.run() == 0
    for removal in waiting:
        await removal
    assert waiting
    assert world.persisted() == {}
    assert not [name for name in world.disk.list_directory("/data") if name.startswith("t-0")]


def delete(partition: Partition, before_offset: int) -> None:
    partition.delete_records(before_offset)
    deletion = partition.log.begin_trimming()
    assert deletion is not None
    deletion.run()
    assert partition.log.end_deletion(deletion)


async def test_records_deleted_meanwhile_make_it_start_over() -> None:
    world = World({"t": {}})
    partition = world.fill("t")
    world.rewriter.meanwhile = lambda outcome: None if partition.log.log_start_offset else delete(partition, 3)
    assert await world.cleaning.run() == 0
    assert world.leftovers("t") == []
    assert world.offsets("t") == [3, 4, 5, 6]
    assert await world.cleaning.run() == 1
    assert world.offsets("t") == [4, 5, 6]
    assert partition.log.log_start_offset == 3


async def test_records_deleted_while_the_swap_is_committed_cancel_it() -> None:
    world = World({"t": {}})
    partition = world.fill("t")

    def before() -> None:
        if world.leftovers("t") and not partition.log.log_start_offset:
            delete(partition, 3)

    world.workers.before = before
    assert await world.cleaning.run() == 0
    assert world.leftovers("t") == []
    assert await world.cleaning.run() == 1
    assert world.offsets("t") == [4, 5, 6]


@pytest.mark.parametrize("moment", ["survey", "checkpoint"])
async def test_a_log_that_was_cut_after_it_was_looked_at_is_left_alone(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen segments have been written anew since, and are not committed."""
    world = World({"t": {}, "other": {"max.compaction.lag.ms": "1000000"}})
    partition = world.fill("t")
    world.fill("other")  # its survey is awaited

    def cut() -> None:
        monkeypatch.undo()
        cut_as_follower(partition, 2)
        world.fill("t")
        partition.high_watermark = 2

    run, checkpoint = world.workers.run, world.hosted.housekeeping.checkpoint

    async def while_another_is_looked_at(work: Callable[[], Any]) -> Any:
        cut()
        return await run(work)

    async def while_a_checkpoint_is_written(partitions: Sequence[Partition] | None = None) -> None:
        await checkpoint(partitions)
        cut()

    if moment == "survey":
        monkeypatch.setattr(world.workers, "run", while_another_is_looked_at)
    else:
        monkeypatch.setattr(world.hosted.housekeeping, "checkpoint", while_a_checkpoint_is_written)
    await world.cleaning.run()
    assert [plan.directory for plan in world.rewriter.plans] == ["/data/other-0"]
    assert partition.log.cleaned_offset == 0


async def test_retention_waits_for_the_cleaning() -> None:
    world = World({"t": {"cleanup.policy": "compact,delete", "retention.ms": "1"}})
    partition = world.fill("t")
    world.clock.ms += 1000
    removed: list[int] = []

    def retain(outcome: Outcome) -> None:
        try:
            world.hosted.housekeeping._apply_retention([partition]).send(None)
        except StopIteration as end:  # at once
            removed.append(end.value)

    world.rewriter.meanwhile = retain
    assert await world.cleaning.run() == 1
    assert removed == [0, 0]
    assert await world.hosted.housekeeping.apply_retention() == 2
    assert partition.log.log_start_offset == 7


async def test_a_failure_is_tried_again_and_damage_is_not(caplog: pytest.LogCaptureFixture) -> None:
    world = World({"t": {}})
    world.fill("t")
    world.rewriter.error = StorageError("the rewriting process died")
    assert await world.cleaning.run() == 0
    assert len(world.rewriter.plans) == 1, "not at once"
    world.rewriter.error = Uncleanable("corrupt batch")
    assert await world.cleaning.run() == 0
    world.rewriter.error = None
    assert await world.cleaning.run() == 0
    assert len(world.rewriter.plans) == 2
    assert world.leftovers("t") == []
    assert "will be tried again: the rewriting process died" in caplog.text
    assert "until it is repaired or the broker restarts: corrupt batch" in caplog.text


async def test_damage_is_reported_and_a_log_that_was_cut_is_compacted_again() -> None:
    world = World({"t": {}})
    partition = world.fill("t")
    reported: list[Partition] = []
    partition.host.events = Listening(damage_found=lambda damaged, _: reported.append(damaged))
    world.rewriter.error = Uncleanable("corrupt batch")
    assert await world.cleaning.run() == 0
    assert reported == [partition]
    world.rewriter.error = None
    assert await world.cleaning.run() == 0
    partition.log.truncate_to(partition.log.log_end_offset - 1)
    assert await world.cleaning.run() == 1
    assert reported == [partition]


async def test_a_disk_that_fails_while_the_swap_is_committed() -> None:
    world = World({"t": {}})
    world.fill("t")

    def before() -> None:
        world.workers.error = OSError("no space") if world.leftovers("t") else None

    world.workers.before = before
    assert await world.cleaning.run() == 0
    assert world.leftovers("t") == []
    world.workers.before = lambda: None
    world.workers.error = None
    assert await world.cleaning.run() == 1
    assert world.offsets("t") == [4, 5, 6]


async def test_nothing_is_begun_while_stopping() -> None:
    world = World({"t": {}, "u": {}})
    world.fill("t")
    world.fill("u")
    world.rewriter.meanwhile = lambda outcome: world.cleaning.stop()
    assert await world.cleaning.run() == 1
    assert world.rewriter.is_stopped
    assert len(world.rewriter.plans) == 1


async def test_a_segment_grows_no_longer_than_a_record_may_stay_uncompacted() -> None:
    world = World({"t": {"max.compaction.lag.ms": "100"}, "plain": {"cleanup.policy": "delete"}})
    assert world.hosted.get("t", 0).log.config.segment_ms == 100
    assert world.hosted.get("plain", 0).log.config.segment_ms == 604_800_000


async def test_tombstones_are_kept_while_a_replica_is_away() -> None:
    """It would keep what was deleted, and never hear of it."""
    world = World({"t": {}})
    partition = world.fill("t")
    partition.metadata = replace(partition.metadata, replicas=(1, 2), isr=(1,))
    assert await world.cleaning.run() == 1
    partition.metadata = replace(partition.metadata, isr=(1, 2))
    world.append(partition, b"d")
    partition.log.roll(world.clock.ms)
    assert await world.cleaning.run() == 1
    assert [plan.may_drop_tombstones for plan in world.rewriter.plans] == [False, True]


async def test_a_replica_that_comes_while_segments_are_rewritten_makes_it_start_over() -> None:
    """It may have fetched a record and not yet the tombstone that the rewritten segments lack."""
    world = World({"t": {}})
    partition = world.fill("t")
    before = world.offsets("t")
    world.rewriter.meanwhile = lambda outcome: assign(partition, (1, 2))
    assert await world.cleaning.run() == 0
    assert world.rewriter.plans[-1].may_drop_tombstones
    assert world.offsets("t") == before
    assert world.leftovers("t") == []
    assert await world.cleaning.run() == 1
    assert not world.rewriter.plans[-1].may_drop_tombstones


async def test_a_replica_that_comes_while_the_swap_is_committed_cancels_it() -> None:
    world = World({"t": {}})
    partition = world.fill("t")
    before = world.offsets("t")

    def come() -> None:
        if world.leftovers("t"):
            assign(partition, (1, 2))

    world.workers.before = come
    assert await world.cleaning.run() == 0
    assert world.offsets("t") == before
    assert world.leftovers("t") == []
    world.workers.before = lambda: None
    assert await world.cleaning.run() == 1
    assert not world.rewriter.plans[-1].may_drop_tombstones


async def test_without_the_controller_nobody_knows_which_replicas_there_are() -> None:
    world = World({"t": {}})
    partition = world.fill("t")
    partition.host.lease = lambda: False
    assert await world.cleaning.run() == 1
    assert not world.rewriter.plans[-1].may_drop_tombstones


def assign(partition: Partition, replicas: tuple[int, ...]) -> None:
    """As a reassignment does: the new ones are not in sync yet."""
    partition.metadata = replace(partition.metadata, replicas=replicas)
    partition.metadata = replace(partition.metadata, replicas=replicas)


async def test_what_was_aborted_goes_and_takes_no_other_records_place() -> None:
    world = World({"t": {}})
    partition = world.hosted.get("t", 0)
    world.append(partition, b"a")
    for data in (
        build_batch(
            [Record(b"a", b"aborted", (), NOW_MS)],
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        ),
        build_marker(5, 0, ABORT, 1, NOW_MS),
    ):
        partition.log.append(read_header(data), data, partition.leader_epoch, NOW_MS)
    partition.log.roll(world.clock.ms)
    world.append(partition, b"b")
    partition.high_watermark = 2
    assert partition.last_stable_offset == 1, "the marker may still be lost"
    assert await world.cleaning.run() == 0
    partition.high_watermark = 4
    assert await world.cleaning.run() == 1
    assert world.rewriter.plans[0].aborted == (AbortedTransaction(5, 1, 2, 3),)
    assert world.offsets("t") == [0, 2, 3]
