"""A snapshot of the metadata equals the result of its entries, whichever node took it or restores it.

Must not know: nodes, how entries are agreed on.
"""

from __future__ import annotations

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import decode_entry, encode_entry
from penstock.sim.judges.history import Violation


class SnapshotChecker:
    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}
        self._image = MetadataImage()
        self._index = 0  # index of the image
        self._snapshots: dict[int, bytes] = {}  # the correct ones

    def applied(self, index: int, data: bytes) -> None:
        self._entries.setdefault(index, data)

    def restored(self, node: int, index: int, data: bytes) -> None:
        expected = self._snapshot(index)
        if data != expected:
            theirs, ours = decode_entry(data), decode_entry(expected)
            missing = [record for record in ours if record not in theirs]
            surplus = [record for record in theirs if record not in ours]
            raise Violation(
                "a snapshot equals the result of its entries",
                f"node {node} restores one of index {index} without {missing[:3]} and with extra {surplus[:3]}",
            )

    def _snapshot(self, index: int) -> bytes:
        if index not in self._snapshots:
            if index < self._index:
                self._image, self._index = MetadataImage(), 0
            for number in range(self._index + 1, index + 1):
                if number in self._entries:  # other entries are internal to the quorum
                    for record in decode_entry(self._entries[number]):
                        self._image.replay(record)
            self._index = index
            self._snapshots[index] = encode_entry(self._image.snapshot_records())
        return self._snapshots[index]
