"""What is committed on a durable topic is on the platter of every in-sync replica, whatever their brokers say.

Looked at when the high watermark of a leader moves: the stable bytes under stable names, as a power failure at that
moment would leave at least, also of machines that are down. What was walked once is not walked again. Must not know:
brokers, clients, faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records.batch import iterate_headers
from penstock.sim.broker import DATA
from penstock.sim.content import Content
from penstock.sim.directory import Directory
from penstock.sim.disk import SimDisk
from penstock.sim.history import Place, Violation


class _Walked(NamedTuple):
    """Whole batches from the beginning of a file on."""

    rewritten: int
    position: int
    end_offset: int


class _Segment:
    def __init__(self, base_offset: int, content: Content) -> None:
        self.base_offset = base_offset
        self.content = content
        self._walked = _Walked(-1, 0, base_offset)

    def end_offset(self) -> int:
        content, walked = self.content, self._walked
        if walked.rewritten != content.rewritten:
            walked = _Walked(content.rewritten, 0, self.base_offset)
        if walked.position < len(content.stable):
            position, end_offset = walked.position, walked.end_offset
            rest = bytes(content.stable[position:])
            try:
                for at, header in iterate_headers(rest, ""):
                    position, end_offset = walked.position + at + header.size_bytes, header.next_offset
            except CorruptBatch:
                pass  # torn, or not all of it is stable yet
            walked = _Walked(content.rewritten, position, end_offset)
        self._walked = walked
        return walked.end_offset


class StableLog:
    """The log that lies in one directory of a platter."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._seen: tuple[Directory, int] | None = None
        self._segments: list[_Segment] = []

    def end_offset(self, *, may_have_gaps: bool) -> int:
        directory = self._disk.stable_directory(self._path)
        if directory is None:
            return 0
        if self._seen != (directory, directory.version):
            self._seen = directory, directory.version
            known = {(segment.base_offset, id(segment.content)): segment for segment in self._segments}
            files = [
                (int(name.removesuffix(".log")), content)
                for name, content in sorted(directory.stable.items())
                if name.endswith(".log") and isinstance(content, Content)
            ]
            self._segments = [known.get((base, id(content))) or _Segment(base, content) for base, content in files]
        end_offset: int | None = None
        for segment in self._segments:
            if end_offset is not None and segment.base_offset != end_offset and not may_have_gaps:
                break  # recovery would go no further
            end_offset = segment.end_offset()
        return end_offset or 0


class PlatterChecker:
    def __init__(self, disks: Mapping[int, SimDisk]) -> None:
        self._disks = disks
        self._logs: dict[tuple[int, Place], StableLog] = {}

    def committed(
        self,
        place: Place,
        high_watermark: int,
        in_sync: Sequence[int],
        *,
        may_have_gaps: bool,
        is_excused: Callable[[int], bool],
    ) -> None:
        """The leader has moved its high watermark there. `is_excused` is asked only about who lacks something."""
        for member in in_sync:
            stable = self._logs.get((member, place))
            if stable is None:
                stable = self._logs[member, place] = StableLog(self._disks[member], f"{DATA}/{place}")
            end_offset = stable.end_offset(may_have_gaps=may_have_gaps)
            if end_offset < high_watermark and not is_excused(member):
                raise Violation(
                    "what is committed is on every platter",
                    f"{place}: the high watermark moves to {high_watermark} with in-sync replicas {list(in_sync)}, and "
                    f"the disk of {member} has stable batches up to {end_offset} only",
                )
