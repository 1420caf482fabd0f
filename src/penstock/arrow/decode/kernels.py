"""The compiled kernels: batch headers to a table, records to Arrow buffers.

No input is trusted. Every index is checked against its limit before it is used, and bad input gives a code and a
position. Buffers are filled only up to sizes computed from checked records. All integers are signed 64-bit: numba turns
a mix of signed and unsigned into floats.

    walk     reads the headers of the whole batches of a fetch answer
    survey   checks records and notes the position of each row's parts; stops at a number of rows or bytes
    gather   copies the keys (or values) of surveyed rows into one buffer
    headers  the same for record headers
    mark     sets the bits of a validity bitmap

All are in one file, because numba's cache checks only the file of the compiled function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrow.decode.jit import BYTES, INT, INT32S, INT64S, SOURCE, TABLE, copy_bytes, kernel, part

# Columns of the table that `walk` fills, one row per batch.
POSITION, SIZE, BASE_OFFSET, LAST_DELTA, ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER, COUNT, CRC = range(10)
WALK_FIELDS = 10
# The `outcome` of `walk`: why it stopped, where, and the offset after the last batch.
WALK_CODE, WALK_POSITION, WALK_NEXT_OFFSET = range(3)
WALKED, TORN, BAD_MAGIC, BAD_LENGTH, BAD_COUNTS, BAD_ORDER = range(6)

# Columns of the segments for `survey`: the records of one batch, uncompressed.
FROM, TO, RECORDS, FIRST_OFFSET, LAST, TIMESTAMP, APPEND_TIME, IS_APPEND_TIME = range(8)
SEGMENT_FIELDS = 8
# `state` of a survey: its position, carried from call to call (initially zeros, except PREVIOUS_DELTA -1 and AT the
# FROM of the first segment), then the result of the last call.
(
    SEGMENT,
    AT,
    RECORD,
    PREVIOUS_DELTA,
    CODE,
    KEY_BYTES,
    VALUE_BYTES,
    KEY_NULLS,
    VALUE_NULLS,
    HEADERS,
    NAME_BYTES,
    CONTENT_BYTES,
    WITH_HEADERS,
) = range(13)
STATE_FIELDS = 13
(
    FINE,
    BAD_SIZE,
    BAD_TIMESTAMP,
    BAD_OFFSET,
    UNORDERED,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADER_COUNT,
    BAD_HEADER,
    BAD_END,
    TRAILING,
) = range(11)

int64: Any = np.int64  # so that mypy takes the compiled int for an int

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_MAX_TIMESTAMP_MS = _INT64_MAX // 1000
_MAGIC = 2
_HEADER_SIZE = 61
_LENGTH_OVERHEAD = 12


@part
def _big_endian(data: Any, at: int, size: int) -> int:
    """A big-endian integer: signed for 8 bytes, unsigned for fewer."""
    value: int = int64(0)
    for i in range(size):
        value = (value << 8) | int64(data[at + i])
    return value


@part
def _signed_32(data: Any, at: int) -> int:
    value = _big_endian(data, at, 4)
    return value - ((value & 0x80000000) << 1)


@kernel(INT, SOURCE, INT, TABLE, INT64S)
def walk(data: Any, end: int, table: Any, outcome: Any) -> int:
    """Fills one row of `table` for each whole, plausible batch, up to the one that reaches offset `end`.

    Returns their number. `table` has room for the largest possible number: size // 61.
    """
    size = int64(len(data))
    at = int64(0)
    batches: int = int64(0)
    next_offset = int64(0)
    code = WALKED
    while at < size and next_offset < end:
        left = size - at
        if left > 16 and int64(data[at + 16]) != _MAGIC:
            code = BAD_MAGIC
            break
        if left < _HEADER_SIZE:
            code = TORN
            break
        batch_size = _signed_32(data, at + 8) + _LENGTH_OVERHEAD
        if batch_size < _HEADER_SIZE:
            code = BAD_LENGTH
            break
        if batch_size > left:
            code = TORN
            break
        base_offset = _big_endian(data, at, 8)
        last_delta = _signed_32(data, at + 23)
        count = _signed_32(data, at + 57)
        if base_offset < 0 or last_delta < 0 or count < 0 or base_offset > _INT64_MAX - last_delta - 1:
            code = BAD_COUNTS
            break
        if base_offset < next_offset:
            code = BAD_ORDER
            break
        next_offset = base_offset + last_delta + 1
        table[batches, POSITION] = at
        table[batches, SIZE] = batch_size
        table[batches, BASE_OFFSET] = base_offset
        table[batches, LAST_DELTA] = last_delta
        table[batches, ATTRIBUTES] = _big_endian(data, at + 21, 2)
        table[batches, BASE_TIMESTAMP] = _big_endian(data, at + 27, 8)
        table[batches, MAX_TIMESTAMP] = _big_endian(data, at + 35, 8)
        table[batches, PRODUCER] = _big_endian(data, at + 43, 8)
        table[batches, COUNT] = count
        table[batches, CRC] = _big_endian(data, at + 17, 4)
        batches += 1
        at += batch_size
    outcome[WALK_CODE] = code
    outcome[WALK_POSITION] = at
    outcome[WALK_NEXT_OFFSET] = next_offset
    return batches


@part
def _long_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    raw = int64(0)
    shift = int64(0)
    while at < end and shift < 70:
        byte = int64(data[at])
        at += 1
        if shift == 63 and 1 < byte < 0x80:  # more than 64 bits: the largest value, which fails every length check
            return (_INT64_MIN if raw & 1 else _INT64_MAX), at
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & _INT64_MAX) ^ -(raw & 1), at
        shift += 7
    return int64(0), int64(-1)


@part
def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """A zigzag varint before `end` and the position after it; position -1 if there is none."""
    if at < end:
        byte = int64(data[at])
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(data, at, end)


@part
def _field(data: Any, at: int, end: int) -> tuple[int, int, int]:
    """The start of a length-prefixed field, its size (-1: null), and the position after it (-1: it does not fit)."""
    size, at = _varint(data, at, end)
    if at < 0 or size > end - at:
        return int64(0), int64(0), int64(-1)
    if size < 0:
        return int64(-1), int64(-1), at
    return at, size, at + size


@part
def _header_sizes(data: Any, at: int, end: int, count: int) -> tuple[int, int, int]:
    """The bytes of the names, the bytes of the values, and the position after them (-1: an invalid header)."""
    names = int64(0)
    contents = int64(0)
    for _ in range(count):
        _, size, at = _field(data, at, end)
        if at < 0 or size < 0:
            return int64(0), int64(0), int64(-1)
        names += size
        _, size, at = _field(data, at, end)
        if at < 0:
            return int64(0), int64(0), int64(-1)
        contents += max(size, 0)
    return names, contents, at


@part
def _microseconds(base_ms: int, delta_ms: int) -> int:
    """The sum in microseconds, or the nearest limit."""
    if delta_ms >= 0:
        total = base_ms + delta_ms if base_ms <= _INT64_MAX - delta_ms else _INT64_MAX
    else:
        total = base_ms + delta_ms if base_ms >= _INT64_MIN - delta_ms else _INT64_MIN
    return min(max(total, -_MAX_TIMESTAMP_MS), _MAX_TIMESTAMP_MS) * 1000


@kernel(
    INT, SOURCE, TABLE, INT64S, INT, INT, INT, INT,
    INT64S, INT64S, INT32S, INT64S, INT32S, INT64S, INT32S, INT64S, INT32S,
)  # fmt: skip
def survey(
    data: Any,
    segments: Any,
    state: Any,
    start: int,
    end: int,
    max_rows: int,
    max_bytes: int,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    key_places: Any,
    key_ends: Any,
    value_places: Any,
    value_ends: Any,
    header_places: Any,
    header_ends: Any,
) -> int:
    """Checks records from `state` on and notes the rows with `start` <= offset < `end`. Returns their number.

    `*_places` are positions in `data` (-1: null), `*_ends` are Arrow's offsets, one more than rows. It stops at
    `max_rows`, before the row that would exceed `max_bytes` (but never before the first row), after the last segment,
    or at the first damage, which `state` then names.
    """
    rows: int = int64(0)
    taken = int64(0)
    key_bytes = int64(0)
    value_bytes = int64(0)
    name_bytes = int64(0)
    content_bytes = int64(0)
    header_count = int64(0)
    key_nulls = int64(0)
    value_nulls = int64(0)
    with_headers = int64(0)
    key_ends[0] = 0
    value_ends[0] = 0
    header_ends[0] = 0
    segment = state[SEGMENT]
    at = state[AT]
    record = state[RECORD]
    previous = state[PREVIOUS_DELTA]
    code = FINE
    is_full = False
    while segment < len(segments):
        to = segments[segment, TO]
        count = segments[segment, RECORDS]
        first_offset = segments[segment, FIRST_OFFSET]
        last_delta = segments[segment, LAST]
        base_timestamp = segments[segment, TIMESTAMP]
        append_time = segments[segment, APPEND_TIME]
        is_append_time = segments[segment, IS_APPEND_TIME]
        while record < count:
            if rows == max_rows:
                is_full = True
                break
            size, p = _varint(data, at, to)
            if p < 0 or size < 0 or size > to - p:
                code = BAD_SIZE
                break
            stop = p + size
            p += 1  # attributes, unused
            timestamp_delta, p = _varint(data, p, stop)
            if p < 0:
                code = BAD_TIMESTAMP
                break
            delta, p = _varint(data, p, stop)
            if p < 0:
                code = BAD_OFFSET
                break
            if delta <= previous or delta > last_delta:
                code = UNORDERED
                break
            key_at, key_size, p = _field(data, p, stop)
            if p < 0:
                code = BAD_KEY
                break
            value_at, value_size, p = _field(data, p, stop)
            if p < 0:
                code = BAD_VALUE
                break
            headers, p = _varint(data, p, stop)
            if p < 0 or headers < 0 or headers > stop - p:
                code = BAD_HEADER_COUNT
                break
            headers_at = p
            names, contents, p = _header_sizes(data, p, stop, headers)
            if p < 0:
                code = BAD_HEADER
                break
            if p != stop:
                code = BAD_END
                break
            offset = first_offset + delta
            if start <= offset < end:
                if rows > 0 and taken + size > max_bytes:
                    is_full = True
                    break
                taken += size
                offsets[rows] = offset
                timestamps[rows] = (
                    _microseconds(append_time, 0) if is_append_time else _microseconds(base_timestamp, timestamp_delta)
                )
                timestamp_types[rows] = is_append_time
                key_places[rows] = key_at
                value_places[rows] = value_at
                header_places[rows] = headers_at if headers > 0 else -1
                key_bytes += max(key_size, 0)
                value_bytes += max(value_size, 0)
                key_nulls += key_size < 0
                value_nulls += value_size < 0
                header_count += headers
                with_headers += headers > 0
                name_bytes += names
                content_bytes += contents
                rows += 1
                key_ends[rows] = key_bytes
                value_ends[rows] = value_bytes
                header_ends[rows] = header_count
            previous = delta
            at = stop
            record += 1
        if code != FINE or is_full:
            break
        if at != to:
            code = TRAILING
            break
        segment += 1
        record = int64(0)
        previous = int64(-1)
        if segment < len(segments):
            at = segments[segment, FROM]
    state[SEGMENT] = segment
    state[AT] = at
    state[RECORD] = record
    state[PREVIOUS_DELTA] = previous
    state[CODE] = code
    state[KEY_BYTES] = key_bytes
    state[VALUE_BYTES] = value_bytes
    state[KEY_NULLS] = key_nulls
    state[VALUE_NULLS] = value_nulls
    state[HEADERS] = header_count
    state[NAME_BYTES] = name_bytes
    state[CONTENT_BYTES] = content_bytes
    state[WITH_HEADERS] = with_headers
    return rows


@kernel(INT, SOURCE, INT64S, INT32S, INT, BYTES)
def gather(data: Any, places: Any, ends: Any, rows: int, out: Any) -> int:
    """Copies the parts at `places` to `out` by `ends`, both from a survey of `data`. `out` has `ends[rows]` bytes."""
    for row in range(rows):
        at = places[row]
        to = int64(ends[row])
        if at >= 0:
            copy_bytes(out, to, data, at, int64(ends[row + 1]) - to)
    return rows


@kernel(INT, SOURCE, INT64S, INT32S, INT, INT32S, BYTES, INT64S, INT32S, BYTES)
def headers(
    data: Any,
    places: Any,
    ends: Any,
    rows: int,
    name_ends: Any,
    names: Any,
    content_places: Any,
    content_ends: Any,
    contents: Any,
) -> int:
    """Copies names and values of the headers of surveyed rows. Returns the number of null values."""
    header = int64(0)
    name_bytes = int64(0)
    content_bytes = int64(0)
    nulls: int = int64(0)
    limit = int64(len(data))
    name_ends[0] = 0
    content_ends[0] = 0
    for row in range(rows):
        at = places[row]
        for _ in range(ends[row + 1] - ends[row]):
            place, size, at = _field(data, at, limit)
            copy_bytes(names, name_bytes, data, place, size)
            name_bytes += size
            place, size, at = _field(data, at, limit)
            if size < 0:
                nulls += 1
            else:
                copy_bytes(contents, content_bytes, data, place, size)
                content_bytes += size
            content_places[header] = place
            header += 1
            name_ends[header] = name_bytes
            content_ends[header] = content_bytes
    return nulls


@kernel(INT, INT64S, INT, BYTES)
def mark(places: Any, count: int, bits: Any) -> int:
    """Sets the bit of every place that is not null; `bits` must be zeroed."""
    for i in range(count):
        if places[i] >= 0:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
    return count
