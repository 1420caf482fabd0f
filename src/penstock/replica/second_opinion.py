"""Compares a replica that a reader reports as damaged with its leader's copy, before anything is cut.

A reader can be wrong: about the results of compaction, about epochs, because of a bug. Then the leader's copy looks the
same, and cutting one replica after the other would erase intact records everywhere. So the leader is asked for the
batches around the place. If it has the same bytes, nothing is damaged. If its bytes differ and their checksums match,
the damage is here. If its copy is damaged too, or it does not answer, nothing is cut.
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
from penstock.storage.segments.scan import checked_batches

MOST_BYTES = 64 << 20  # of the leader's copy; the place is at most two batches on
ANSWER_WITHIN_S = 30.0


class Judgement(Enum):
    DAMAGED = auto()
    SOUND = auto()
    UNKNOWN = auto()


class Opinion(NamedTuple):
    verdict: Judgement
    reason: str = ""


class Damage(NamedTuple):
    """A place in a segment file, and the offset of a batch at or before it where the comparison begins."""

    file: File
    path: str
    size: int
    offset: int
    start: int
    """The position of the batch at `offset`."""
    at: int
    """The position where the damage shows."""


class LeaderCopy(Protocol):
    """The part of `replica.fetchers.ReplicaFetchers` that gives access to the leader's copy."""

    async def leaders_batches(self, partition: Partition, offset: int) -> bytes:
        """Whole committed batches from `offset` on. Empty: there are none. Raises ApiError."""
        ...

    async def leaders_offset(self, partition: Partition, which: int) -> int: ...


class _Bytes:
    """The input for `checked_batches`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]


async def ask(leader: LeaderCopy, workers: Workers, partition: Partition, damage: Damage | None) -> Opinion:
    """`damage` None: files are missing, so there is no place to compare; the leader need only have a log."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if damage is None:
                await leader.leaders_offset(partition, EARLIEST)
                return Opinion(Judgement.DAMAGED)
            return await _compare(leader, workers, partition, damage)
    except TimeoutError:
        return Opinion(Judgement.UNKNOWN, f"broker {partition.leader} does not answer")
    except CorruptBatch as error:
        return Opinion(Judgement.UNKNOWN, f"the copy of broker {partition.leader} is damaged there as well: {error}")
    except ApiError as error:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:  # it has no batches there that could be the same
            return Opinion(Judgement.DAMAGED)
        return Opinion(Judgement.UNKNOWN, f"broker {partition.leader} answers {error.code.name}")


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
        return Opinion(Judgement.DAMAGED)
    if end > place:
        return Opinion(Judgement.SOUND, f"broker {partition.leader} has the same bytes")
    if await leader.leaders_offset(partition, LATEST) <= next_offset:
        return Opinion(Judgement.DAMAGED)  # the leader's log ends before it
    return Opinion(Judgement.UNKNOWN, f"broker {partition.leader} has not committed offset {next_offset} yet")


class _Checked(NamedTuple):
    end: int
    """The end of the batch at the place, or of the last batch if that comes before it."""
    next_offset: int


def _check(data: bytes, offset: int, place: int) -> _Checked:
    """Check all of these batches. Raises CorruptBatch if one is damaged. Blocks for a moment."""
    end = 0
    for position, header in checked_batches(_Bytes(data), "the leader's copy", 0, len(data)):
        if header.last_offset < offset:
            raise CorruptBatch("the leader's copy", position, f"offset {header.last_offset} after {offset}")
        offset = header.next_offset
        if end <= place:
            end = position + header.size_bytes
    return _Checked(end, offset)
