"""The logs of replicas, byte for byte as they lie on their disks.

Segments may be cut differently on every replica; the batches in them may not differ below the high watermark. Must not
know: brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.records.batch import iterate_headers
from penstock.sim.disk import SimDisk
from penstock.sim.history import Place, Violation


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


def check_equal_logs(place: Place, logs: Mapping[int, tuple[SimDisk, str]], high_watermark: int) -> None:
    """`logs`: disk and directory of each replica."""
    first: tuple[int, list[bytes]] | None = None
    for node, (disk, directory) in logs.items():
        found = [data for next_offset, data in batches(disk, directory) if next_offset <= high_watermark]
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
