"""Faults of several steps that meet a broker during something rare; each is its own scene.

A voter that has lost its metadata during an election; a power failure between a topic's change to durable and its
first flush; a replica that is added while its leader compacts; a read that returns other bytes than the disk has. Each
begins while all is well, and the others are left alone until that is so again.
Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from penstock.cluster.raft_store import DIRECTORY
from penstock.records.batch import HEADER_SIZE, iterate_headers
from penstock.records.builder import iterate_records
from penstock.records.compression import decompress
from penstock.sim.broker import DATA
from penstock.sim.cluster import host_of
from penstock.sim.faults.campaigns import Deed
from penstock.sim.faults.disks import ROTTEN, batch_byte
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import LATE_FLUSH, LOST_ANSWER, LOST_METADATA, MEANWHILE, MISREAD, Fault
from penstock.sim.machine.disk import SimDisk
from penstock.sim.places import replaced
from penstock.sim.workload.operators.voters import GIVE, TAKE

FLUSH_MESSAGES, MIN_INSYNC_REPLICAS = "flush.messages", "min.insync.replicas"
MOST_REPLICAS = 3
UNFLUSHED_S = 1.0
DECIDED_S = 1.0
COMPACTION_WITHIN_S = 5.0
SPENT_S = 2.5
"""Longer than tombstones are kept."""
MAY_DROP = "penstock.replica.cleaning:_may_drop_tombstones"
PUT_IN_PLACE = "penstock.replica.cleaning:LogCleaning._put_in_place"
COPYING_S = 3.0
COMPACTED = "keyed"
MISREAD_S = (0.5, 2.0)
"""Shorter than the wait of a repair before it checks again."""
MENDED_S = 9.0
"""A repair would have cut by then."""
LEADERLESS_S = (1.0, 3.0)


REPEATED_S = 1.0


class StagedFaults:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self.deeds: dict[str, Deed] = {
            LOST_METADATA: self._lose_metadata,
            LATE_FLUSH: self._fail_before_flush,
            MEANWHILE: self._move_while_compacted,
            MISREAD: self._misread,
            LOST_ANSWER: self._lose_answer,
        }

    async def _lose_metadata(self, fault: Fault, random: Random) -> None:
        """A voter returns under its directory id without its metadata; at the same time the controller dies. A voter
        that has forgotten its votes must not help to elect the next one."""
        if not await self._enemy.wait_for_quiet():
            return
        controller = self._enemy.controller()
        voters = [number for number in self._cluster.voters if number != controller and self._enemy.can_take(number)]
        if controller is None or not voters:
            return
        number = random.choice(voters)
        self._enemy.is_alone = True
        self._enemy.take(number)
        self._enemy.note(fault, f"{host_of(number)} loses its metadata and {host_of(controller)} dies")
        self._cluster.crash(number)
        self._cluster.machines[number].disk.lose(f"{DATA}/{DIRECTORY}")
        self._enemy.eyes.lost_metadata(number)
        back = asyncio.ensure_future(self._cluster.bring_up(number))
        await asyncio.sleep(random.random() * 0.05)
        self._enemy.take(controller)
        self._cluster.kill(controller)
        await asyncio.sleep(random.uniform(*LEADERLESS_S))  # the remaining voter cannot elect itself
        await self._cluster.bring_up(controller)
        await back
        self._enemy.give_back(number)
        self._enemy.give_back(controller)
        await self._leave()

    async def _fail_before_flush(self, fault: Fault, random: Random) -> None:
        """Flushing was left to the system: now every record is flushed, but before the first flush the power of one
        machine fails. The others have everything in their page caches."""
        if not await self._enemy.wait_for_quiet():
            return
        topics = sorted({one.topic for one in self._unflushed()})
        if not topics:
            return
        topic = random.choice(topics)
        self._enemy.is_alone = True
        await self._enemy.operators.configure(topic, MIN_INSYNC_REPLICAS, str(MOST_REPLICAS))
        await self._enemy.wait(lambda: any(one.topic == topic for one in self._unflushed()), UNFLUSHED_S)
        numbers = [one.node_id for one in self._unflushed() if one.topic == topic and self._enemy.can_take(one.node_id)]
        if numbers:
            number = random.choice(numbers)
            self._enemy.take(number)
            times = self._cluster.machines[number].disk_times
            times.is_hung = True
            told = asyncio.ensure_future(self._enemy.operators.configure(topic, FLUSH_MESSAGES, "1"))
            await self._enemy.wait(lambda: self._is_decided(topic), DECIDED_S)
            self._enemy.note(fault, f"{topic} is flushed from now on: cut the power of {host_of(number)} before it is")
            self._cluster.crash(number)
            times.is_hung = False
            await self._enemy.down(fault, number)
            await told
        await self._enemy.operators.configure(topic, MIN_INSYNC_REPLICAS, None)
        await self._leave()

    def _unflushed(self) -> list[Any]:
        """Replicas with committed but unflushed records, where flushing is left to the system."""
        return [
            partition
            for number, node in sorted(self._cluster.living.items())
            for partition in getattr(node, "partitions", ())
            if partition.topic.startswith("data-")
            and not partition.is_durable
            and partition.log.stable_offset < partition.high_watermark
        ]

    def _is_decided(self, topic: str) -> bool:
        images = [getattr(node, "image", None) for node in self._cluster.living.values()]
        return any(image is not None and image.topic_overrides(topic).get(FLUSH_MESSAGES) == "1" for image in images)

    async def _move_while_compacted(self, fault: Fault, random: Random) -> None:
        """A follower of a compacted topic drops tombstones while a replica is added, which copies from a leader that
        has not compacted yet. Meanwhile the leader dies and the follower leads: a replica that has copied a record but
        not its tombstone would never delete it."""
        if not await self._enemy.wait_for_quiet():
            return
        self._enemy.is_alone = True
        await self._enemy.operators.move_compacted(2)
        await self._enemy.wait_until_well()
        rewriting = _Rewriting(asyncio.get_running_loop())
        with replaced(PUT_IN_PLACE, rewriting.overhear), replaced(MAY_DROP, rewriting.overhear_tombstones):
            follower = await rewriting.waits_to_let_go(COMPACTION_WITHIN_S)
            leader = next((one for one in self._compacted() if one.is_leader), None)
            told = asyncio.ensure_future(self._enemy.operators.move_compacted(3))
            if follower is not None and leader is not None and self._enemy.can_take(leader.node_id):
                number = leader.node_id
                deleted = _deleted(leader, self._cluster.machines[number].disk)
                kept = _deleted(follower, self._cluster.machines[follower.node_id].disk)
                await self._enemy.wait_closely(lambda: self._has_copied(leader, deleted, kept), COPYING_S)
                self._enemy.note(fault, f"{host_of(number)} dies while a replica is added, and another compacts")
                self._enemy.take(number)
                self._cluster.kill(number)
                rewriting.may_go_on.set()
                await self._enemy.down(fault, number)
            rewriting.may_go_on.set()
            await told
        await self._leave()

    def _compacted(self) -> list[Any]:
        living = self._cluster.living.values()
        return [one for node in living for one in getattr(node, "partitions", ()) if one.topic == COMPACTED]

    def _has_copied(self, leader: Any, deleted: Mapping[int, int], kept: Mapping[int, int]) -> bool:
        """Whether a replica that is not in sync has a record without its tombstone, which the follower still has."""
        for one in self._compacted():
            end = one.log.log_end_offset
            met = [tombstone for tombstone, record in deleted.items() if record < end <= tombstone]
            if one.node_id not in leader.isr and met and all(tombstone in kept for tombstone in met):
                return True
        return False

    async def _misread(self, fault: Fault, random: Random) -> None:
        """Memory or a bus fails briefly: a read of a batch gets a wrong bit, while the disk has the right one. The
        broker was restarted, so it verifies checksums."""
        if not await self._enemy.wait_for_quiet():
            return
        number = self._enemy.target(random)
        place = None if number is None else batch_byte(self._cluster.machines[number].disk, random, ROTTEN)
        if number is None or place is None:
            return
        self._enemy.is_alone = True
        self._enemy.take(number)
        self._enemy.eyes.excuse(number)
        self._cluster.kill(number)
        await self._cluster.bring_up(number)
        self._enemy.give_back(number)
        disk, (path, at), bit = self._cluster.machines[number].disk, place, 1 << random.randrange(8)
        is_noted = False

        def misread(read: str, position: int, data: bytes) -> bytes:
            nonlocal is_noted
            if read != path or not position <= at < position + len(data):
                return data
            if not is_noted:
                is_noted = True
                self._enemy.note(fault, f"{host_of(number)} misreads {path} at {at}")
            wrong = bytearray(data)
            wrong[at - position] ^= bit
            return bytes(wrong)

        disk.misread = misread
        reading = asyncio.ensure_future(self._enemy.operators.read_replica(number))
        await asyncio.sleep(random.uniform(*MISREAD_S))
        disk.misread = None
        await reading
        if is_noted:
            await asyncio.sleep(MENDED_S)
        await self._leave()

    async def _lose_answer(self, fault: Fault, random: Random) -> None:
        """A vote is given through a broker that never gets the controller's answer. The vote is taken away again, and
        only then the broker notices that its connection is broken. Its request was already carried out, and must not be
        repeated."""
        if not await self._enemy.wait_for_quiet():
            return
        controller = self._enemy.controller()
        others = [number for number in self._cluster.voters if number != controller]
        if controller is None or len(others) < 2:
            return
        self._enemy.is_alone = True
        voter, way = random.sample(others, 2)
        network = self._cluster.world.network
        await self._enemy.operators.vote(TAKE, voter, controller)
        told = asyncio.ensure_future(self._enemy.operators.vote(GIVE, voter, way))
        await self._enemy.wait_closely(lambda: self._votes(controller, voter), COPYING_S)
        network.hang(host_of(way), host_of(controller))
        self._enemy.note(fault, f"{host_of(way)} never gets the answer that {host_of(voter)} may vote")
        await self._enemy.operators.vote(TAKE, voter, controller)
        network.reset(host_of(way), host_of(controller))
        await told
        await asyncio.sleep(REPEATED_S)
        await self._enemy.operators.settle()
        await self._leave()

    def _votes(self, number: int, voter: int) -> bool:
        node = self._cluster.living.get(number)
        return node is not None and voter in node.membership.quorum.voters

    async def _leave(self) -> None:
        await self._enemy.wait_until_well()
        self._enemy.is_alone = False


class _Rewriting:
    """Delays putting compacted segments in place: on a leader, and on a follower that has compacted for a while, so
    that tombstones are dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._follows_from_s = loop.time() + SPENT_S
        self._follower: asyncio.Future[Any] = loop.create_future()
        self.may_go_on = asyncio.Event()

    def overhear_tombstones(self, may_drop: Any) -> Any:
        """Tombstones stay at first, so that a later copy contains them."""

        def may(partition: Any) -> bool:
            is_early = partition.topic == COMPACTED and self._loop.time() < self._follows_from_s
            return not is_early and may_drop(partition)

        return may

    async def waits_to_let_go(self, at_most_s: float) -> Any:
        """The follower; None: it does not happen."""
        try:
            async with asyncio.timeout(at_most_s):
                return await self._follower
        except TimeoutError:
            return None

    def overhear(self, put_in_place: Any) -> Any:
        async def waits(cleaning: Any, partition: Any, plan: Any, *rest: Any) -> bool:
            if partition.topic == COMPACTED and not self.may_go_on.is_set():
                if partition.is_leader:
                    await self.may_go_on.wait()
                elif plan.may_drop_tombstones and self._loop.time() >= self._follows_from_s:
                    if not self._follower.done():
                        self._follower.set_result(partition)
                    await self.may_go_on.wait()
            is_done: bool = await put_in_place(cleaning, partition, plan, *rest)
            return is_done

        return waits


def _deleted(partition: Any, disk: SimDisk) -> dict[int, int]:
    """For deleted keys in its log: the offset of the tombstone, and of the deleted record (-1: removed)."""
    last: dict[bytes | None, tuple[int, int]] = {}
    for segment in partition.log.segments:
        data = disk.peek(segment.path, 0, segment.size) if segment.size else b""
        for at, header in iterate_headers(data, segment.path):
            packed = memoryview(data)[at + HEADER_SIZE : at + header.size_bytes]
            for record in iterate_records(header, decompress(header.compression, packed)):
                before = last.get(record.key, (-1, -1))[0]
                last[record.key] = (record.offset, -1) if record.value is not None else (before, record.offset)
    return {tombstone: offset for offset, tombstone in last.values() if tombstone >= 0}
