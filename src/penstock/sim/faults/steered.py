"""Faults that steer the cluster into a rare state and then strike; each is its own scene.

A bit that rots in a compacted log, below tombstones that the leader has dropped meanwhile; a broker that learns late
that it leads, while a producer already sends; the end of a broker between the renames that swap a compacted segment in.
Each begins while all is well, and the others are left alone until that is so again.
Must not know: clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from penstock.records.batch import CRC_START, HEADER_SIZE, iterate_headers
from penstock.records.builder import Record, iterate_records
from penstock.records.compression import decompress
from penstock.sim.cluster import host_of
from penstock.sim.faults.campaigns import Deed
from penstock.sim.faults.enemy import Enemy
from penstock.sim.faults.plan import EARLY_BATCH, KILL_IN_SWAP, POWER, POWER_CUT_IN_SWAP, ROT_BELOW_TOMBSTONES, Fault
from penstock.sim.machine.disk import SimDisk
from penstock.sim.machine.network import LAN, LinkProfile
from penstock.sim.machine.process import current_process
from penstock.sim.machine.world import DRIVER
from penstock.sim.places import replaced

COMPACTED = "keyed"
PUT_IN_PLACE = "penstock.replica.cleaning:LogCleaning._put_in_place"
END_SWAP = "penstock.storage.log:Log.end_swap"
DROPPED_WITHIN_S = 8.0
LOOK_AGAIN_S = 0.4
MENDED_WITHIN_S = 12.0
"""The cleaner meets the damage, and a repair waits before it cuts."""
SWAPPED_WITHIN_S = 4.0
FILES_PER_SEGMENT = 3
RECORDS_BYTES = 200
"""An empty batch, or a tombstone alone, takes less."""
LEADS_WITHIN_S = 0.6
FAR = LinkProfile(latency_s=0.8)
"""Several batches are on their way before the answer to the first one arrives."""


class SteeredFaults:
    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy
        self._cluster = enemy.cluster
        self.deeds: dict[str, Deed] = {
            ROT_BELOW_TOMBSTONES: self._rot_below_tombstones,
            EARLY_BATCH: self._come_early,
            KILL_IN_SWAP: self._strike_in_swap,
            POWER_CUT_IN_SWAP: self._strike_in_swap,
        }

    async def _rot_below_tombstones(self, fault: Fault, random: Random) -> None:
        """The cleaner of one follower is slow. It still has a deleted record and, further up, its tombstone, when its
        leader has dropped both. A bit between the two rots. The records fetched again from there on have no tombstone.
        """
        if self._enemy.rotten is not None or not await self._enemy.wait_for_quiet():
            return
        numbers = [number for number in self._followers() if self._enemy.can_take(number)]
        if not numbers:
            return
        self._enemy.is_alone = True
        number = random.choice(numbers)
        cleaner = _SlowCleaner(number)
        with replaced(PUT_IN_PLACE, cleaner.overhear):
            place = await self._place_to_rot(number, random)
            if place is not None and self._enemy.can_take(number):
                path, position = place
                self._enemy.take(number)
                self._enemy.rotten = number
                self._enemy.eyes.excuse(number)
                self._enemy.note(fault, f"a bit of {host_of(number)}:{path} at {position} flips below a tombstone")
                self._cluster.kill(number)
                self._cluster.machines[number].disk.flip_bit(path, position, random.randrange(8))
                await self._cluster.bring_up(number)
                self._enemy.give_back(number)
                await self._wait_until_cut(number)  # its cleaner meets the damage
            cleaner.may_go_on.set()
        await self._leave()

    def _followers(self) -> list[int]:
        hosted = {number: self._compacted(number) for number in self._cluster.living}
        return [number for number, one in sorted(hosted.items()) if one is not None and not one.is_leader]

    def _compacted(self, number: int) -> Any:
        """The replica of the compacted topic; None: it has none."""
        node = self._cluster.living.get(number)
        return next((one for one in getattr(node, "partitions", ()) if one.topic == COMPACTED), None)

    async def _place_to_rot(self, number: int, random: Random) -> tuple[str, int] | None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + DROPPED_WITHIN_S
        while loop.time() < ends_s:
            await asyncio.sleep(LOOK_AGAIN_S)
            follower = self._compacted(number)
            leader = None if follower is None else self._compacted(follower.leader)
            if follower is None or leader is None or follower.is_leader:
                continue
            held = list(_batches(follower, self._cluster.machines[number].disk))
            kept = _last_offsets(leader, self._cluster.machines[leader.node_id].disk)
            found = _halves(held, kept, follower.log.persisted_recovery_point)
            if found:
                batch = random.choice(found)
                return batch.path, random.randrange(batch.at + CRC_START, batch.at + batch.size)
        return None

    async def _wait_until_cut(self, number: int) -> None:
        replica = self._compacted(number)
        if replica is None:
            return
        owner, generation = replica.log, replica.log.generation
        await self._enemy.wait(
            lambda: replica.log is not owner or owner.generation != generation or not self._cluster.is_running(number),
            MENDED_WITHIN_S,
        )

    async def _come_early(self, fault: Fault, random: Random) -> None:
        """A broker is to lead a new topic and hears of it late. A producer knows already, and has several batches on
        the way: the first arrives before the broker leads, the others after that."""
        if not await self._enemy.wait_for_quiet():
            return
        controller = self._enemy.controller()
        others = [number for number in self._cluster.voters if number != controller and self._enemy.is_free(number)]
        if controller is None or not others:
            return
        self._enemy.is_alone = True
        number = random.choice(others)
        network, link = self._cluster.world.network, (host_of(controller), host_of(number))
        early = self._enemy.operators.come_early(number)
        await early.prepare()
        network.block(*link)
        network.set_profile(host_of(number), DRIVER, FAR)
        if await early.create():
            self._enemy.note(fault, f"{host_of(number)} learns late that it leads a new topic")

            async def until_it_leads() -> None:
                network.unblock(link)
                await self._enemy.wait_closely(lambda: self._leads(number, early.place.topic), LEADS_WITHIN_S)

            await early.write(until_it_leads)
        network.unblock(link)
        network.set_profile(host_of(number), DRIVER, LAN)
        await self._leave()

    def _leads(self, number: int, topic: str) -> bool:
        node = self._cluster.living.get(number)
        return any(one.topic == topic and one.is_leader for one in getattr(node, "partitions", ()))

    async def _strike_in_swap(self, fault: Fault, random: Random) -> None:
        """Between two renames: some or all of the old segment's files are gone, and the new ones not yet in place."""
        if not await self._enemy.wait_for_quiet():
            return
        self._enemy.is_alone = True
        keeps_power = fault.kind not in POWER
        trap = _SwapTrap(self._enemy, random, keeps_power=keeps_power)
        with replaced(END_SWAP, trap.overhear):
            await self._enemy.wait(trap.sprung.done, SWAPPED_WITHIN_S)
        if trap.sprung.done():
            number = trap.sprung.result()
            self._enemy.take(number)
            end = "kill" if keeps_power else "cut the power of"
            self._enemy.note(fault, f"a compacted segment is swapped in on {host_of(number)}: {end} it meanwhile")
            await self._enemy.ambushes.spring_for(number, keeps_power=keeps_power)
            await self._enemy.down(fault, number)
        await self._leave()

    async def _leave(self) -> None:
        await self._enemy.wait_until_well()
        self._enemy.is_alone = False


class _SlowCleaner:
    """Rewritten segments of one replica of the compacted topic are not put in place for a while."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.may_go_on = asyncio.Event()

    def overhear(self, put_in_place: Any) -> Any:
        async def waits(cleaning: Any, partition: Any, *rest: Any) -> bool:
            if partition.topic == COMPACTED and partition.node_id == self._number:
                await self.may_go_on.wait()
            is_done: bool = await put_in_place(cleaning, partition, *rest)
            return is_done

        return waits


class _SwapTrap:
    """For one broker that swaps in the oldest records that are left, because they stay for long.
    Other losses here are soon superseded."""

    def __init__(self, enemy: Enemy, random: Random, *, keeps_power: bool) -> None:
        self._enemy = enemy
        self._random = random
        self._keeps_power = keeps_power
        self.sprung: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def overhear(self, end_swap: Any) -> Any:
        def overheard(log: Any, swap: Any, rewritten: Any) -> bool:
            is_oldest = swap.base_offset == log.segment_bases[0] and len(swap.bases) > 1
            if not self.sprung.done() and is_oldest and rewritten.size >= RECORDS_BYTES:
                self._arm(len(swap.bases))
            is_done: bool = end_swap(log, swap, rewritten)
            return is_done

        return overheard

    def _arm(self, segments: int) -> None:
        process = current_process()
        assert process is not None, "a broker runs in a process"
        number = int(process.host.rpartition("-")[2])
        machine = self._enemy.cluster.machines[number]
        if self._enemy.can_take(number) and machine.disk.crash_after is None:
            renames = FILES_PER_SEGMENT * (segments + 1)
            machine.crash_after(self._random.randrange(1, renames), keeps_power=self._keeps_power)
            self.sprung.set_result(number)


class _Batch(NamedTuple):
    path: str
    at: int
    size: int
    next_offset: int
    records: list[Record]


def _batches(partition: Any, disk: SimDisk) -> Iterator[_Batch]:
    for segment in partition.log.segments:
        data = disk.peek(segment.path, 0, segment.size) if segment.size else b""
        for at, header in iterate_headers(data, segment.path):
            packed = memoryview(data)[at + HEADER_SIZE : at + header.size_bytes]
            records = list(iterate_records(header, decompress(header.compression, packed)))
            yield _Batch(segment.path, at, header.size_bytes, header.next_offset, records)


def _last_offsets(partition: Any, disk: SimDisk) -> dict[bytes | None, int]:
    return {record.key: record.offset for batch in _batches(partition, disk) for record in batch.records}


def _halves(held: list[_Batch], kept: dict[bytes | None, int], stable_offset: int) -> list[_Batch]:
    """Batches whose damage parts a record from its tombstone: it is below the last sound batch, which a repair replaces
    too, and the next one of its key is not. The leader keeps nothing of that key that is as new. Only for the key that
    was deleted first: it is the least likely to be written again."""
    found: dict[bytes | None, list[_Batch]] = {}
    last: dict[bytes | None, Record] = {}  # of each key, in the batches up to the one before the last sound one
    newest = {record.key: record.offset for batch in held for record in batch.records}
    for number in range(2, len(held)):
        last.update((record.key, record) for record in held[number - 2].records)
        if held[number].next_offset > stable_offset:
            break
        for key, record in last.items():
            if record.value is not None and kept.get(key, -1) < record.offset < newest[key]:
                found.setdefault(key, []).append(held[number])
    return found[min(found, key=lambda key: newest[key])] if found else []
