"""The kernels in plain Python, from Arrow's own values: slow and short, the reference for a property test."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.arrow.encode.columns import HEADERS, KEY, TIMESTAMP, VALUE, ArrowArray, RecordBatch, column
from penstock.arrow.encode.layout import ROW_OVERHEAD_BYTES
from penstock.records.builder import Record, encode_records
from penstock.wire_client.requests.partitioner import partition_for_key


def records(batch: RecordBatch, now_ms: int) -> list[Record]:
    """The rows of a RecordBatch as records."""
    rows = batch.num_rows
    keys = [_bytes(value) for value in _values(column(batch, KEY), rows)]
    values = [_bytes(value) for value in _values(column(batch, VALUE), rows)]
    headers = [
        tuple((str(header["key"]), header["value"]) for header in entries or ())  # type: ignore[attr-defined]
        for entries in _values(column(batch, HEADERS), rows)
    ]
    times = [now_ms if micros is None else micros // 1000 for micros in _micros(column(batch, TIMESTAMP), rows)]
    return [Record(*row) for row in zip(keys, values, headers, times, strict=True)]


def payloads(rows: Sequence[Record], slots: Sequence[int], payload_limit: int) -> list[tuple[int, bytes]]:
    """(slot, payload) of the batches in the order in which they become full, then the rest by slot."""
    open_rows: dict[int, list[Record]] = {}
    done: list[tuple[int, bytes]] = []
    for row, slot in zip(rows, slots, strict=True):
        mine = open_rows.setdefault(slot, [])
        if mine and len(_payload([*mine, row])) > payload_limit:
            done.append((slot, _payload(mine)))
            mine.clear()
        mine.append(row)
        if len(_payload(mine)) > payload_limit:  # too large for any batch but its own
            done.append((slot, _payload(mine)))
            mine.clear()
    return done + [(slot, _payload(mine)) for slot, mine in sorted(open_rows.items()) if mine]


def _payload(rows: Sequence[Record]) -> bytes:
    return bytes(encode_records(rows, rows[0].timestamp_ms))


class Partitioner:
    """The partitioner of one topic. `sticky` is the first partition for rows without a key."""

    def __init__(self, partition_count: int, sticky: int, sticky_limit: int) -> None:
        self._count = partition_count
        self._sticky = sticky
        self._limit = sticky_limit
        self._bytes = 0

    def partition(self, row: Record, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        if row.key is not None:
            return partition_for_key(row.key, self._count)
        if self._bytes >= self._limit:
            self._bytes = 0
            self._sticky = (self._sticky + 1) % self._count
        self._bytes += len(row.value or b"") + ROW_OVERHEAD_BYTES
        return self._sticky


def _values(array: ArrowArray | None, rows: int) -> list[object]:
    return [None] * rows if array is None else list(array.to_pylist())


def _micros(array: ArrowArray | None, rows: int) -> list[int | None]:
    return [None] * rows if array is None else [value.value for value in array]


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    assert isinstance(value, str)
    return value.encode()
