"""The logs of replicas, byte for byte, as stored on their disks.

Segment boundaries may differ between replicas; batches below the high watermark may not. If replicas compact
independently, the last record of each key must not differ. Must not know: brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.records.batch import COMPRESSION_MASK, HEADER_SIZE, BatchHeader, iterate_headers, read_header
from penstock.records.builder import Record, iterate_records
from penstock.records.compression import decompress
from penstock.records.control import ABORT, read_marker
from penstock.sim.judges.history import Place, Violation
from penstock.sim.machine.disk import SimDisk


def batches(disk: SimDisk, directory: str) -> Iterator[tuple[int, bytes]]:
    """The offset after each batch, and its bytes. Raises CorruptBatch."""
    if not disk.exists(directory):
        return
    for name in disk.list_directory(directory):
        if not name.endswith(".log"):
            continue
        path = f"{directory}/{name}"
        file = disk.open(path)
        data = file.read(0, file.size())
        for at, header in iterate_headers(data, path):
            yield header.next_offset, data[at : at + header.size_bytes]


def records_of(header: BatchHeader, batch: memoryview) -> Iterator[Record]:
    """Decode records of any codec."""
    return iterate_records(header, decompress(header.attributes & COMPRESSION_MASK, batch[HEADER_SIZE:]))


def check_equal_logs(
    place: Place, logs: Mapping[int, tuple[SimDisk, str]], high_watermark: int, start: int = 0
) -> None:
    """`logs`: disk and directory of each replica; `start`: the offset from which all replicas have everything."""
    first: tuple[int, list[bytes]] | None = None
    for node, (disk, directory) in logs.items():
        found = [data for next_offset, data in batches(disk, directory) if start < next_offset <= high_watermark]
        if first is None:
            first = node, found
        elif found != first[1]:
            at = next(
                (n for n, (left, right) in enumerate(zip(first[1], found, strict=False)) if left != right),
                min(len(found), len(first[1])),
            )
            raise Violation(
                "replicas are equal below the high watermark",
                f"{place}: {len(first[1])} batches on {first[0]}, {len(found)} on {node}, different from batch {at} "
                f"on (high watermark {high_watermark})",
            )


def check_equal_keys(place: Place, logs: Mapping[int, tuple[SimDisk, str]], high_watermark: int) -> None:
    """The same for a compacted partition. A deleted key may or may not still have its tombstone, and compaction may or
    may not have removed records of aborted transactions, and markers."""
    decoded: dict[bytes, list[Record]] = {}  # most batches are equal on all replicas
    first: tuple[int, dict[bytes | None, Record]] | None = None
    for node, (disk, directory) in logs.items():
        last: dict[bytes | None, Record] = {}
        for data in _that_count(data for end, data in batches(disk, directory) if end <= high_watermark):
            if data not in decoded:
                decoded[data] = list(records_of(read_header(data), memoryview(data)))
            last.update((record.key, record) for record in decoded[data])
        values = {key: record for key, record in last.items() if record.value is not None}
        if first is None:
            first = node, values
        elif values != first[1]:
            key = next(key for key in (*first[1], *values) if first[1].get(key) != values.get(key))
            raise Violation(
                "replicas have the same last record of a key",
                f"{place}: {key!r} is at {_offset(first[1], key)} on {first[0]}, and at {_offset(values, key)} on "
                f"{node}",
            )


def _that_count(found: Iterable[bytes]) -> Iterator[bytes]:
    """Batches of records: no markers, and nothing that an abort marker ends."""
    kept: dict[int, bytes] = {}
    open_: dict[int, list[int]] = {}  # by producer id
    for number, data in enumerate(found):
        header = read_header(data)
        if not header.is_control:
            kept[number] = data
            if header.is_transactional:
                open_.setdefault(header.producer_id, []).append(number)
            continue
        ended = open_.pop(header.producer_id, [])
        marker = read_marker(header, memoryview(data)[HEADER_SIZE:])
        if marker is not None and marker.kind == ABORT:
            for aborted in ended:
                del kept[aborted]
    yield from kept.values()


def _offset(values: Mapping[bytes | None, Record], key: bytes | None) -> str:
    return str(values[key].offset) if key in values else "no offset"
