"""Which part of a log can be compacted, and whether compaction is due.

    clean                  | dirty                          | not cleanable
    log start ... cleaned_offset ... end_offset ... active segment ... log end

As in Kafka, the cleanable part ends below the last stable offset, before the active segment, and before the first
segment younger than `min.compaction.lag.ms`. It is due when its share of the bytes exceeds
`min.cleanable.dirty.ratio`, or when one of its segments began more than `max.compaction.lag.ms` ago.

Not in Kafka: it is also stable (`stable_offset`), and below the persisted recovery point before segments are
replaced. So recovery never mistakes a gap left by compaction for the point where a crash cut the log.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.storage.cleaner.plan import CleanPlan
from penstock.storage.log import Log
from penstock.storage.producers.transactions import AbortedTransaction
from penstock.storage.segments.segment import Segment
from penstock.storage.segments.timestamps import Learning

FOREVER_MS = (1 << 63) - 1


class Survey(NamedTuple):
    """The cleanable part of a log."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    generation: int
    """Generation of the log: the survey is valid only while the log is not cut."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_cleanable_dirty_ratio: float) -> bool:
        return (self.is_overdue and self.dirty_bytes > 0) or self.dirty_ratio > min_cleanable_dirty_ratio


def needs_disk(log: Log) -> bool:
    """Whether a survey must read segments and so belongs in a worker."""
    return log.config.min_compaction_lag_ms > 0 or log.config.max_compaction_lag_ms < FOREVER_MS


def survey(log: Log, last_stable_offset: int, now_ms: int) -> Survey:
    """`last_stable_offset` is that of transactions, at most the high watermark.

    Blocks if `needs_disk`. May run in a thread: it changes nothing.
    """
    learning = Learning(log.config.index_interval_bytes, "survey")
    try:
        return _survey(log, last_stable_offset, now_ms, learning)
    finally:
        for rebuilt in learning.rebuilt:
            rebuilt.discard()


def _survey(log: Log, last_stable_offset: int, now_ms: int, learning: Learning) -> Survey:
    generation = log.generation  # read first, because the log may be cut meanwhile
    config, segments = log.config, log.segments
    sealed = segments[:-1]
    first_dirty = log.log_start_offset
    if log.log_start_offset <= log.cleaned_offset <= log.log_end_offset:
        first_dirty = log.cleaned_offset
    bases = [segment.base_offset for segment in segments]
    first = max(bisect_right(bases, first_dirty) - 1, 0)
    limit = min(last_stable_offset, log.stable_offset)
    count = 0
    for number, segment in enumerate(sealed):
        if bases[number + 1] > limit:
            break
        lag_ms = config.min_compaction_lag_ms
        if number >= first and lag_ms > 0 and learning.largest_of(segment).timestamp > now_ms - lag_ms:
            break
        count += 1
    end_offset = max(bases[count], first_dirty)
    return Survey(
        first_dirty,
        end_offset,
        sum(segment.size for segment in sealed if segment.base_offset < first_dirty),
        sum(segment.size for segment in sealed[first:count]) if end_offset > first_dirty else 0,
        any(_began_before(segment, now_ms - config.max_compaction_lag_ms) for segment in sealed[first:]),
        generation,
    )


def _began_before(segment: Segment, timestamp: int) -> bool:
    if timestamp <= 0 or not segment.size:
        return False
    try:
        first = next(segment.view().walk(0, segment.size))[1].max_timestamp
    except CorruptBatch:
        return False  # reported when it is read
    return 0 < first < timestamp


def make_plan(
    log: Log,
    found: Survey,
    now_ms: int,
    max_keys: int,
    aborted: tuple[AbortedTransaction, ...] | None = None,
    *,
    may_drop_tombstones: bool = True,
) -> CleanPlan:
    config = log.config
    return CleanPlan(
        directory=log.directory,
        segments=tuple(
            (segment.base_offset, segment.size)
            for segment in log.sealed_segments
            if segment.base_offset < found.end_offset
        ),
        first_dirty_offset=found.first_dirty_offset,
        end_offset=found.end_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        may_drop_tombstones=may_drop_tombstones,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        max_keys=max_keys,
        last_batches={producer.producer_id: (producer.last_offset, producer.epoch) for producer in log.producers},
        aborted=aborted,
        leader_epochs=tuple(log.epochs.entries()),
    )
