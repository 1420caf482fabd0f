"""What passes between the broker and the process that rewrites segments: the plan there, its outcomes back.

Values only, as lines of JSON. Knows no log: the rewriting process must not need one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple, TypeAlias

from penstock.model.errors import StorageError

BYTES_PER_KEY = 200  # of the map of keys: a bytes object of at most 33 bytes, an int, and their share of the dict


def max_keys(buffer_bytes: int, load_factor: float) -> int:
    """How many keys fit in `log.cleaner.dedupe.buffer.size`; with more, a log is cleaned in several passes."""
    return max(int(buffer_bytes * load_factor) // BYTES_PER_KEY, 1)


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of its marker


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """Everything the rewriting process has to know. Sizes are of sealed segments and do not change."""

    directory: str
    segments: tuple[tuple[int, int], ...]  # (base offset, size) from the log's first to the last cleanable one
    first_dirty_offset: int
    end_offset: int  # the first offset that may not be cleaned
    now_ms: int
    delete_retention_ms: int
    may_drop_tombstones: bool  # those that were kept for so long, and spent markers
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_keys: int
    last_batches: dict[int, tuple[int, int]]  # producer id -> (last offset of its data or -1, epoch)
    aborted: tuple[AbortedTransaction, ...] | None  # None: not known, so transactional batches stay as they are
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, first offset): no checksum covers the epoch of a batch

    def encode(self) -> bytes:
        """One line of JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["last_batches"] = [(producer_id, *last) for producer_id, last in self.last_batches.items()]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, line: bytes) -> CleanPlan:
        fields = json.loads(line)
        for name in ("segments", "leader_epochs"):
            fields[name] = tuple((first, second) for first, second in fields[name])
        fields["last_batches"] = {producer_id: (offset, epoch) for producer_id, offset, epoch in fields["last_batches"]}
        if fields["aborted"] is not None:
            fields["aborted"] = tuple(AbortedTransaction(*entry) for entry in fields["aborted"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """`.cleaned` files, stable under their names, that stand for the segments at `bases`.

    `is_changed` False: they hold the same batches as their one source and were removed again.
    """

    bases: tuple[int, ...]
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    is_changed: bool


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The end of a cleaning: everything below `end_offset` is clean once the segments are in place."""

    end_offset: int
    keys: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
    malformed_batches: int


Outcome: TypeAlias = RewrittenSegment | Cleaned


class Uncleanable(StorageError):
    """The log is damaged: cleaning it again would fail again."""


def encode_outcome(outcome: Outcome) -> bytes:
    return json.dumps({type(outcome).__name__: asdict(outcome)}, separators=(",", ":")).encode()


def encode_failure(error: Exception, *, is_permanent: bool) -> bytes:
    return json.dumps({"Failed": {"message": str(error), "is_permanent": is_permanent}}).encode()


def decode_outcome(line: bytes) -> Outcome:
    """Raises StorageError if the line tells of a failure."""
    ((kind, fields),) = json.loads(line).items()
    if kind == "RewrittenSegment":
        return RewrittenSegment(**{**fields, "bases": tuple(fields["bases"])})
    if kind == "Cleaned":
        return Cleaned(**fields)
    raise (Uncleanable if fields["is_permanent"] else StorageError)(fields["message"])
