"""What is committed stays what it is: leader epoch and checksum of every batch, by the offset at which it ends.

The first leader whose high watermark passes a batch says what it is. Every later leader must have the same, from the
start of its log on, and not only as many offsets. What was walked once is not walked again, unless the log was cut or
opened anew. For logs that nobody compacts. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.records.batch import iterate_headers
from penstock.sim.disk import SimDisk
from penstock.sim.history import Violation

Key = tuple[bytes, int]


class SegmentLike(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


class LogLike(Protocol):
    @property
    def segments(self) -> Sequence[SegmentLike]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def generation(self) -> int:
        """Changes with every cut."""
        ...


class _Walked(NamedTuple):
    """How far a replica was found to have what is committed."""

    log: LogLike
    generation: int
    segment: int
    position: int


class _Chain:
    def __init__(self) -> None:
        self.batches: dict[int, tuple[int, int]] = {}
        self.end = 0


class ChainChecker:
    def __init__(self) -> None:
        self._chains: dict[Key, _Chain] = {}
        self._walked: dict[tuple[int, Key], _Walked] = {}

    def committed(self, node: int, name: str, key: Key, log: LogLike, high_watermark: int, disk: SimDisk) -> None:
        """This leader's high watermark has come here."""
        chain = self._chains.setdefault(key, _Chain())
        walked = self._walked.get((node, key))
        if walked is None or walked.log is not log or walked.generation != log.generation:
            walked = _Walked(log, log.generation, -1, 0)
        for segment in log.segments:
            if segment.base_offset < walked.segment or segment.base_offset >= high_watermark:
                continue
            position = walked.position if segment.base_offset == walked.segment else 0
            data = disk.peek(segment.path, position, segment.size)
            for at, header in iterate_headers(data, segment.path):
                end = header.next_offset
                if end > high_watermark:
                    break
                if end <= log.log_start_offset:
                    continue  # deleted, and so nobody compares it
                found = header.leader_epoch, header.crc
                if end > chain.end:
                    chain.batches[end], chain.end = found, end
                elif chain.batches.get(end) != found:
                    raise Violation(
                        "what is committed stays what it is",
                        f"{name}: {node} has a batch up to {end} of epoch {found[0]} with checksum {found[1]:#x}; "
                        f"committed was {chain.batches.get(end, 'another')}",
                    )
                walked = walked._replace(segment=segment.base_offset, position=position + at + header.size_bytes)
        self._walked[node, key] = walked
