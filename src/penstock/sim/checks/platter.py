"""Committed data is on the platters, whatever brokers say: data of a durable topic on those of all in-sync replicas,
and the metadata log on those of most voters. The files that recovery uses are correct there: a recovery point has the
batches below it, and none is above a cut.

Checked when the high watermark of a leader moves, and when an entry of the metadata log is first applied: the stable
bytes under stable names, as a power failure would leave at least, also on machines that are down. Each byte is checked
once. Must not know: brokers, clients, faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.cluster.raft_files import QUORUM_STATE
from penstock.model.errors import CorruptBatch
from penstock.records.batch import iterate_headers
from penstock.sim.broker import DATA
from penstock.sim.judges.history import Place, Violation
from penstock.sim.machine.content import Content
from penstock.sim.machine.directory import DiskDirectory
from penstock.sim.machine.disk import SimDisk
from penstock.storage.checkpoints import CLEANED_OFFSETS, RECOVERY_POINTS
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS

METADATA = Place("__cluster_metadata", 0)
"""Offset n is entry n + 1."""


class _Walked(NamedTuple):
    """Whole batches from the beginning of a file."""

    rewritten: int
    position: int
    end_offset: int


class _Segment:
    def __init__(self, base_offset: int, content: Content) -> None:
        self.base_offset = base_offset
        self.content = content
        self.walked = _Walked(-1, 0, base_offset)

    def end_offset(self) -> int:
        content, walked = self.content, self.walked
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
        self.walked = walked
        return walked.end_offset


class StableLog:
    """The log in one directory of a platter."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._seen: tuple[DiskDirectory, int] | None = None
        self._segments: list[_Segment] = []
        self._snapshot_end = 0  # for the metadata log

    def end_offset(self, *, may_have_gaps: bool) -> int:
        directory = self._disk.stable_directory(self._path)
        if directory is None:
            return 0
        if self._seen != (directory, directory.version):
            self._seen = directory, directory.version
            known = {(segment.base_offset, id(segment.content)): segment for segment in self._segments}
            files = [
                (int(name.removesuffix(".log")), content)
                for name in sorted(name for name in directory.stable if name.endswith(".log"))
                if isinstance(content := directory.stable[name], Content)
            ]
            self._segments = [known.get((base, id(content))) or _Segment(base, content) for base, content in files]
            self._snapshot_end = max(
                (int(name.partition("-")[0]) for name in directory.stable if name.endswith(".checkpoint")), default=0
            )
        end_offset: int | None = None
        for segment in self._segments:
            if end_offset is not None and segment.base_offset != end_offset and not may_have_gaps:
                break  # recovery would stop here
            rewritten, position, end_offset = segment.walked
            if position != len(segment.content.stable) or rewritten != segment.content.rewritten:
                end_offset = segment.end_offset()
        return max(end_offset or 0, self._snapshot_end)


class PlatterChecker:
    def __init__(self, disks: Mapping[int, SimDisk]) -> None:
        self._disks = disks
        self._logs: dict[tuple[int, Place], StableLog] = {}
        self._applied = 0

    def is_first(self, index: int) -> bool:
        """Whether no node has applied this entry of the metadata log yet."""
        return index > self._applied

    def applied(self, index: int, may_count: Sequence[Sequence[int]]) -> None:
        """A broker is the first to apply it. `may_count`: the voters, before and after a change in progress."""
        self._applied = index
        ends = {
            voter: self._log(voter, METADATA).end_offset(may_have_gaps=True)
            for voter in sorted({voter for voters in may_count for voter in voters})
        }
        if not any(2 * sum(ends[voter] >= index for voter in voters) > len(voters) for voters in may_count):
            raise Violation(
                "metadata is on most platters",
                f"entry {index} is applied, and the disks of voters have stable entries up to {ends} only; "
                f"voters are {' or '.join(map(str, may_count))}",
            )

    def committed(
        self,
        place: Place,
        high_watermark: int,
        in_sync: Sequence[int],
        *,
        may_have_gaps: bool,
        is_excused: Callable[[int], bool],
    ) -> None:
        """The leader has moved its high watermark there. `is_excused` is called for members that lack something."""
        for member in in_sync:
            end_offset = self._log(member, place).end_offset(may_have_gaps=may_have_gaps)
            if end_offset < high_watermark and not is_excused(member):
                raise Violation(
                    "committed records are on every platter",
                    f"{place}: the high watermark moves to {high_watermark} with in-sync replicas {list(in_sync)}, and "
                    f"the disk of {member} has stable batches up to {end_offset} only",
                )

    def voted(self, node: int, term: int) -> None:
        """The node is about to report a vote in this term."""
        directory = self._disks[node].stable_directory(f"{DATA}/{METADATA}")
        content = None if directory is None else directory.stable.get(QUORUM_STATE)
        try:
            known = json.loads(content.stable)["leaderEpoch"] if isinstance(content, Content) else 0
        except ValueError:  # torn
            known = 0
        if known < term:
            raise Violation(
                "a vote is on the platter", f"node {node} votes in term {term}, and its disk has a stable {known}"
            )

    def raised(self, node: int, place: Place, recovery_point: int, epochs: Sequence[tuple[int, int]]) -> None:
        """A broker is about to write this recovery point. `epochs`: the start of each epoch in the log; below the
        recovery point, recovery knows epochs only from the file."""
        directory = self._disks[node].stable_directory(f"{DATA}/{place}")
        if directory is None:
            return  # the partition is being deleted
        content = directory.stable.get(LEADER_EPOCHS)
        lines = content.stable.decode().splitlines()[2:] if isinstance(content, Content) else []
        kept = [tuple(map(int, line.split())) for line in lines]
        lost = [epoch for epoch in epochs if epoch[1] < recovery_point and epoch not in kept]
        if lost:
            raise Violation(
                "leader epochs are kept before a recovery point passes them",
                f"{place} on {node}: recovery would trust records below {recovery_point}, but its disk does not store "
                f"that epoch {lost[0][0]} began at {lost[0][1]}, but {kept}",
            )
        end_offset = self._log(node, place).end_offset(may_have_gaps=True)
        if end_offset < recovery_point:
            raise Violation(
                "a recovery point is on the platter",
                f"{place} on {node}: recovery would trust records below {recovery_point}, but its disk has stable "
                f"batches up to {end_offset} only",
            )

    def cut(self, node: int, place: Place, end_offset: int) -> None:
        """A log now ends there: remains beyond it after a crash must not be trusted."""
        for name in (RECOVERY_POINTS, CLEANED_OFFSETS):
            known = self._stable_offsets(node, name).get(place, 0)
            if known > end_offset:
                raise Violation(
                    "a cut first lowers the checkpoints of recovery",
                    f"{place} on {node} is cut to {end_offset}, but its {name} has {known}",
                )

    def _stable_offsets(self, node: int, name: str) -> dict[Place, int]:
        directory = self._disks[node].stable_directory(DATA)
        content = None if directory is None else directory.stable.get(name)
        lines = content.stable.decode().splitlines()[2:] if isinstance(content, Content) else []
        return {Place(topic, int(index)): int(offset) for topic, index, offset in map(str.split, lines)}

    def _log(self, node: int, place: Place) -> StableLog:
        stable = self._logs.get((node, place))
        if stable is None:
            stable = self._logs[node, place] = StableLog(self._disks[node], f"{DATA}/{place}")
        return stable
