"""Whether a replica is damaged where a reader says so: its leader's copy is asked before anything is cut.

A reader can be wrong: about what compaction leaves, about epochs, by a defect. Then the leader's copy looks the same,
and cutting one replica after the other would erase what is sound everywhere. So the leader is asked for the batches
around the place. If it has the very bytes that are here, nothing is damaged. If it has others, and their checksums
match, the damage is here. If it cannot say, for damage of its own or because it does not answer, nothing is cut.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode
from penstock.ports.disk import File
from penstock.ports.workers import Workers
from penstock.replica.leader_offsets import EARLIEST, LATEST
from penstock.replica.partition import Partition
from penstock.storage.scan import checked_batches

MOST_BYTES = 64 << 20  # of the leader's copy; the place is at most two batches on
ANSWER_WITHIN_S = 30.0


class Verdict(Enum):
    DAMAGED = auto()
    SOUND = auto()
    UNKNOWN = auto()


class Opinion(NamedTuple):
    verdict: Verdict
    reason: str = ""


class Damage(NamedTuple):
    """A place in a segment's file, and a batch at or before it from which on the leader is asked."""

    file: File
    path: str
    size: int
    offset: int
    start: int
    """The position of the batch at `offset`."""
    at: int
    """The position where the damage shows."""


class LeaderCopy(Protocol):
    """`replica.fetchers.ReplicaFetchers`, of which this needs what the leader has."""

    async def leaders_batches(self, partition: Partition, offset: int) -> bytes:
        """Whole batches from `offset` on, committed ones. Empty: there are none. Raises ApiError."""
        ...

    async def leaders_offset(self, partition: Partition, which: int) -> int: ...


class _Bytes:
    """What `checked_batches` reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]


async def ask(leader: LeaderCopy, workers: Workers, partition: Partition, damage: Damage | None) -> Opinion:
    """`damage` None: it has no place, as files are missing; then the leader need only have a log."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if damage is None:
                await leader.leaders_offset(partition, EARLIEST)
                return Opinion(Verdict.DAMAGED)
            return await _compare(leader, workers, partition, damage)
    except TimeoutError:
        return Opinion(Verdict.UNKNOWN, f"broker {partition.leader} does not answer")
    except CorruptBatch as error:
        return Opinion(Verdict.UNKNOWN, f"what broker {partition.leader} has there is damaged as well: {error}")
    except ApiError as error:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:  # it has nothing there that could be the same
            return Opinion(Verdict.DAMAGED)
        return Opinion(Verdict.UNKNOWN, f"broker {partition.leader} answers {error.code.name}")


async def _compare(leader: LeaderCopy, workers: Workers, partition: Partition, damage: Damage) -> Opinion:
    theirs, end, next_offset = b"", 0, damage.offset
    place = damage.at - damage.start
    while end <= place and len(theirs) < MOST_BYTES:
        data = await leader.leaders_batches(partition, next_offset)
        if not data:
            break
        checked = await workers.run(partial(_check, data, next_offset, place - len(theirs)))
        end, next_offset = len(theirs) + checked.end, checked.next_offset
        theirs += data
    ours = await workers.run(lambda: damage.file.read(damage.start, min(end, damage.size - damage.start)))
    if ours != theirs[:end]:
        return Opinion(Verdict.DAMAGED)
    if end > place:
        return Opinion(Verdict.SOUND, f"broker {partition.leader} has the same bytes")
    if await leader.leaders_offset(partition, LATEST) <= next_offset:
        return Opinion(Verdict.DAMAGED)  # the leader's log ends before it
    return Opinion(Verdict.UNKNOWN, f"broker {partition.leader} has not committed offset {next_offset} yet")


class _Checked(NamedTuple):
    end: int
    """Of the batch at the place; of the last one, if that comes before it."""
    next_offset: int


def _check(data: bytes, offset: int, place: int) -> _Checked:
    """All of these batches. Raises CorruptBatch if they are not sound. Blocks for a moment."""
    end = 0
    for position, header in checked_batches(_Bytes(data), "the leader's copy", 0, len(data)):
        if header.last_offset < offset:
            raise CorruptBatch("the leader's copy", position, f"offset {header.last_offset} after {offset}")
        offset = header.next_offset
        if end <= place:
            end = position + header.size_bytes
    return _Checked(end, offset)
