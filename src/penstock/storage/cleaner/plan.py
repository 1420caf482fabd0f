"""Values between the broker and the process that rewrites segments: a plan in, outcomes back.

Encoded as lines of JSON. Must not know: logs, which the rewriting process does not need.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TypeAlias

from penstock.model.errors import StorageError
from penstock.storage.producers.transactions import AbortedTransaction

BYTES_PER_KEY = 200  # per key of the map: a bytes object of at most 33 bytes, an int, and their share of the dict


def max_keys(buffer_bytes: int, load_factor: float) -> int:
    """Number of keys that fit in `log.cleaner.dedupe.buffer.size`; with more, a log is cleaned in several passes."""
    return max(int(buffer_bytes * load_factor) // BYTES_PER_KEY, 1)


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """Input of the rewriting process. Sizes are of sealed segments and do not change."""

    directory: str
    segments: tuple[tuple[int, int], ...]  # (base offset, size) from the log's first to the last cleanable one
    first_dirty_offset: int
    end_offset: int  # the first offset that must not be cleaned
    now_ms: int
    delete_retention_ms: int
    may_drop_tombstones: bool  # expired ones, and markers that are no longer needed
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_keys: int
    last_batches: dict[int, tuple[int, int]]  # producer id -> (last offset of its data or -1, epoch)
    aborted: tuple[AbortedTransaction, ...] | None  # None: unknown, so transactional batches are kept
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, first offset): no checksum covers a batch's epoch

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
    """`.cleaned` files, stable under their names, that replace the segments at `bases`.

    `is_changed` False: they contained the same batches as their one source and were removed again.
    """

    bases: tuple[int, ...]
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    is_changed: bool
    aborted: int = -1  # entries of the transaction index; -1: none of the segments has one


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a cleaning: everything below `end_offset` is clean once the segments are in place."""

    end_offset: int
    keys: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
    malformed_batches: int


Outcome: TypeAlias = RewrittenSegment | Cleaned


class Uncleanable(StorageError):
    """The log is damaged, so cleaning it again would fail again."""


def encode_outcome(outcome: Outcome) -> bytes:
    return json.dumps({type(outcome).__name__: asdict(outcome)}, separators=(",", ":")).encode()


def encode_failure(error: Exception, *, is_permanent: bool) -> bytes:
    return json.dumps({"Failed": {"message": str(error), "is_permanent": is_permanent}}).encode()


def decode_outcome(line: bytes) -> Outcome:
    """Raises StorageError if the line reports a failure."""
    ((kind, fields),) = json.loads(line).items()
    if kind == "RewrittenSegment":
        return RewrittenSegment(**{**fields, "bases": tuple(fields["bases"])})
    if kind == "Cleaned":
        return Cleaned(**fields)
    raise (Uncleanable if fields["is_permanent"] else StorageError)(fields["message"])
