"""When a segment is full or expired: Kafka's rules, without a clock."""

from __future__ import annotations

from crc32c import crc32c

from penstock.model.errors import CorruptBatch
from penstock.storage.log_config import LogConfig
from penstock.storage.segments.segment import MAX_RELATIVE_OFFSET, UNKNOWN_TIMESTAMP, Segment
from penstock.storage.segments.segments import Segments

MAX_SEGMENT_BYTES = 2**31 - 1


def is_index_full(segment: Segment, config: LogConfig) -> bool:
    """Whether an index is full, if the files can be opened: the current batch is already written."""
    size = config.segment_index_bytes
    try:
        return len(segment.index) >= size // 8 or len(segment.time_index) >= size // 12 - 1
    except OSError:
        return False


def must_roll(segment: Segment, config: LogConfig, size: int, last_offset: int, timestamp: int) -> bool:
    """Whether a batch of `size` bytes needs a new segment. An empty segment accepts any batch."""
    return segment.size > 0 and (
        segment.size + size > config.segment_bytes
        or timestamp > segment.roll_after_timestamp
        or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        or is_index_full(segment, config)
    )


def is_at_its_end(segment: Segment, size: int, last_offset: int) -> bool:
    """Whether the batch exceeds the format's limits: positions and relative offsets have 31 bits."""
    return segment.size + size > MAX_SEGMENT_BYTES or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET


def arm(segment: Segment, config: LogConfig, timestamp: int) -> None:
    """Set the limits that `Log.append` compares with. `segment.ms` counts from the first batch, else `timestamp`."""
    first = timestamp
    if segment.size:
        try:
            stored = next(segment.walk(0, segment.size))[1].max_timestamp
            first = stored if stored >= 0 else timestamp
        except CorruptBatch:
            pass  # reported when it is read
    segment.limit_bytes = max(config.segment_bytes, 1)
    segment.roll_after_timestamp = first + _roll_ms(segment, config)


def _roll_ms(segment: Segment, config: LogConfig) -> int:
    """`segment.ms` minus a jitter that is constant per segment."""
    jitter = min(config.segment_jitter_ms, config.segment_ms)
    return config.segment_ms - (crc32c(segment.path.encode()) % jitter if jitter > 0 else 0)


def count_expired(
    segments: Segments,
    config: LogConfig,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
    *,
    may_wait: bool = True,
) -> int:
    """Number of oldest segments that retention deletes: too old, too large in total, or below the log start.

    A segment without timestamps is kept (Kafka uses the file's time then).
    """
    excess = segments.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    count = 0
    for segment in segments.items:
        end = segments.end_of(segment, log_end_offset)
        if end > high_watermark or (not segment.size and segment is segments.active):
            break
        if config.delete and config.retention_ms >= 0:
            if may_wait:
                segment.load_max_timestamp()
            elif segment.max_timestamp == UNKNOWN_TIMESTAMP:
                break  # its age must be learned first: `LogReader.times_to_learn`
        is_old = 0 <= config.retention_ms < now_ms - segment.max_timestamp and segment.max_timestamp >= 0
        is_old = is_old or not segment.size  # Kafka's compaction leaves empty segments
        is_gone = end <= log_start_offset and segment is not segments.active
        excess -= segment.size
        if not ((config.delete and (is_old or excess >= 0)) or is_gone):
            break
        count += 1
    return count
