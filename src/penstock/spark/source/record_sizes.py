"""The mean bytes per offset of a partition, from a sample of its next batches, for `maxBytesPerTrigger`.

The sample is one small fetch from each leader: the bytes of whole batches as in the log (compressed), divided by the
offsets that they cover, so that holes of compaction count as empty. It is taken beside the planning of batches, which
waits for it only if a partition's size is not known at all, and then briefly. A partition without a size counts as the
mean of the others, if possible of the same topic: brokers leave a batch out that is larger than the sample, unless its
partition is the first of the fetch. So partitions without a size are the first of the next sample.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

logger = logging.getLogger(__name__)

MAX_AGE_S = 5.0
"""An older size is still used, and looked at again meanwhile."""
FORGOTTEN_S = 60.0
"""An older size is not used."""
WAIT_S = 0.5
LOOK_TIMEOUT_S = 5.0
SAMPLE_BYTES = 64 << 10
UNKNOWN_BYTES = 1024.0

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23

Positions = Mapping[TopicPartition, int]
Look = Callable[[Positions], Mapping[TopicPartition, Buffer]]
"""Fetches bytes from each offset on. Partitions may be missing in the answer."""


def beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="penstock-record-sizes", daemon=True).start()


class _Size(NamedTuple):
    looked_at: float
    bytes_per_offset: float | None
    """None: the look found nothing."""


class RecordSizes:
    def __init__(
        self,
        look: Look,
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[Callable[[], None]], None] = beside,
    ) -> None:
        """`run` starts work beside the caller. `look` is not called twice at the same time."""
        self._look = look
        self._clock = clock
        self._run = run
        self._known: dict[TopicPartition, _Size] = {}
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._found: dict[TopicPartition, float | None] = {}
        """The result of the last look. Belongs to that look until it has ended."""

    def estimate(self, positions: Positions) -> dict[TopicPartition, float]:
        """Takes at most `WAIT_S`."""
        self._take_found()
        if self._is_idle.is_set() and self._older_than(positions, MAX_AGE_S):
            self._begin_look(positions)
        if self._older_than(positions, FORGOTTEN_S):
            self._is_idle.wait(WAIT_S)
        self._take_found()
        known = {tp: size for tp in positions if (size := self._size_of(tp)) is not None}
        of_topic: dict[str, list[float]] = {}
        for tp, size in known.items():
            of_topic.setdefault(tp.topic, []).append(size)
        usual = _mean(list(known.values()), UNKNOWN_BYTES)
        return {tp: known[tp] if tp in known else _mean(of_topic.get(tp.topic, []), usual) for tp in positions}

    def _size_of(self, tp: TopicPartition) -> float | None:
        known = self._known.get(tp)
        return known.bytes_per_offset if known is not None else None

    def _older_than(self, positions: Positions, age_s: float) -> list[TopicPartition]:
        now = self._clock()
        return [tp for tp in positions if tp not in self._known or now - self._known[tp].looked_at >= age_s]

    def _begin_look(self, positions: Positions) -> None:
        in_order = sorted(positions, key=lambda tp: self._size_of(tp) is not None)
        wanted = {tp: positions[tp] for tp in in_order}
        self._is_idle.clear()
        self._run(lambda: self._sample(wanted))

    def _sample(self, wanted: Positions) -> None:
        self._found = dict.fromkeys(wanted)
        try:
            samples = self._look(wanted)
            self._found |= {tp: bytes_per_offset(records, wanted[tp]) for tp, records in samples.items()}
        except PenstockError as error:
            # The readers get the same error and report it.
            logger.debug("no sample of records for maxBytesPerTrigger: %s", error)
        finally:
            self._is_idle.set()

    def _take_found(self) -> None:
        if not self._is_idle.is_set():
            return
        found, self._found = self._found, {}
        now = self._clock()
        for tp, size in found.items():
            self._known[tp] = _Size(now, size if size is not None else self._size_of(tp))


def _mean(sizes: list[float], default: float) -> float:
    return sum(sizes) / len(sizes) if sizes else default


def bytes_per_offset(records: Buffer, position: int) -> float | None:
    """The mean of the whole batches in `records`, which was fetched from `position` on."""
    view = memoryview(records)
    at, next_offset = 0, position
    while at + HEADER_SIZE <= len(view):
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(view, at)
        size = length + LENGTH_OVERHEAD
        if size < HEADER_SIZE or at + size > len(view):
            break
        next_offset = base_offset + _LAST_OFFSET_DELTA.unpack_from(view, at + _LAST_OFFSET_DELTA_AT)[0] + 1
        at += size
    return at / (next_offset - position) if next_offset > position else None
