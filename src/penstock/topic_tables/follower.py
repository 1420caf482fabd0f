"""The loop that keeps a table of a topic: read, commit, wait, maintain.

Rows and the positions of all partitions are one version of the table, so a follower that was killed continues where the
table is. The table alone counts: the group that it commits to is for tools that show lag.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.model.errors import ApiError, PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.tables import CommitConflict, Span, Table, TableError
from penstock.topic_tables.dead_letter_topic import DeadLettersNotSent
from penstock.topic_tables.dead_letters import DeadLetterPlace, DeadLetters, dead_rows
from penstock.topic_tables.opening import stream_of, topic_id_text
from penstock.topic_tables.progress import FollowProgress
from penstock.topic_tables.reading import Piece, TopicReader
from penstock.topic_tables.shapes import Shape
from penstock.topic_tables.writing import RowWriter
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.retriable import may_pass

logger = logging.getLogger(__name__)

COMMIT_BYTES = 64 << 20
"""Rows in memory that make a commit, however recent the last one was."""
LEAST_COMMIT_BYTES = 4 << 20
"""The share of one of many followers."""
WAIT_S = 0.5
"""How long a stop may go unnoticed."""
LOOK_S = 30.0
"""Partitions may have been added."""
COMPACT_S = 60.0
EXPIRE_S = 3600.0
GROUP_S = 5.0
PACE_S, TRICKLE_BYTES = 0.05, 1 << 20
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0
MARK = "penstock-table"


class RecordsLost(PenstockError):
    """Retention was faster."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    once: bool = False
    """Ends when everything is in the table that was committed when it began."""
    commit_interval_s: float = 5.0
    allow_gaps: bool = False
    keep: timedelta = timedelta(days=1)
    """How long versions can be read that were replaced."""
    dead_letters: DeadLetterPlace | None = None
    """Instead of a table beside that of the rows."""
    share: int = 1
    """How many followers share the memory of a commit."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who stops a follower and hears of it."""

    stop: threading.Event
    say: Callable[[str], None] = logger.warning
    watch: Callable[[FollowProgress], None] = lambda progress: None
    """After each commit."""
    progress: FollowProgress | None = None
    """Counts on, if this topic was followed before."""


@dataclass(slots=True)
class _Pending:
    """What was read and is not committed."""

    starts: dict[int, int] = field(default_factory=dict)
    """Where it begins, by partition. Not what the table has: another process may have committed."""
    rows: dict[int, list[Any]] = field(default_factory=dict)
    dead: dict[int, list[Any]] = field(default_factory=dict)
    tombstones: list[Any] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    since: float = 0.0


class FollowedTopic(NamedTuple):
    name: str
    topic_id: bytes
    """Zeros for a broker without topic ids."""

    def stream(self, partition: int) -> str:
        return stream_of(self.name, topic_id_text(self.topic_id), partition)


Start = Callable[[TopicReader, range], Mapping[int, int]]
"""Where the partitions of a new table begin."""


class Follower:
    def __init__(
        self,
        cluster: BlockingCluster,
        topic: FollowedTopic,
        table: Table,
        shape: Shape,
        options: FollowOptions,
        audience: Audience,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._table = table
        self._shape = shape
        self._options = options
        self._audience = audience
        self._reader = TopicReader(cluster, topic.name, topic.topic_id, shape.columns)
        self._writer = RowWriter(table, shape)
        self._dead_letters = options.dead_letters or DeadLetters(table.directory)
        self._read: dict[int, int] = {}
        """The next offset to be read, by partition."""
        self._pending = _Pending()
        self._looked_at = self._compacted_at = self._expired_at = time.monotonic()
        self._grouped_at = 0.0
        self.progress = audience.progress or FollowProgress(topic.name, str(table.directory))
        self.progress.version = table.version

    @property
    def group(self) -> str:
        """Shows the lag."""
        return f"penstock-table-{self._table.id[:8]}"

    def run(self, start: Start) -> None:
        """Until it is stopped, or with `once` until it has caught up. What was read is committed in any case.

        Raises RecordsLost, ShorterLog, TopicRecreated, CorruptRecordBatch, TableError, DeadLettersNotSent, ApiError,
        WireClientError.
        """
        self._begin(start)
        self.progress.is_running = True
        try:
            self._follow()
        except (TableError, DeadLettersNotSent):  # a commit failed: what it was to write must not be passed over
            raise
        except PenstockError:
            self._commit()
            raise
        finally:
            self.progress.is_running = False
            self._reader.close()
        self._commit()
        self._show_lag(is_last=True)

    # -- the loop -------------------------------------------------------------------------

    def _begin(self, start: Start) -> None:
        partitions = range(self._reader.partitions())
        is_new = not self._table.positions
        self._add(start(self._reader, partitions) if is_new else self._reader.starts(partitions))

    def _add(self, starts: Mapping[int, int]) -> None:
        """Partitions that the table does not have begin at `starts`; this is remembered even if they are empty."""
        known = self._table.positions
        streams = {partition: self._topic.stream(partition) for partition in starts}
        new = {streams[one]: Span(at, at) for one, at in starts.items() if streams[one] not in known}
        if new:
            self._table.append([], new)
        known = self._table.positions
        self._read |= {partition: known[streams[partition]] for partition in starts if partition not in self._read}
        self._update()

    def _follow(self) -> None:
        goal: Mapping[int, int] | None = None
        pause_s = FIRST_PAUSE_S
        while not self._audience.stop.is_set():
            try:
                self._look_for_partitions()
                ends = self.progress.ends = self._reader.ends(range(len(self._read)))
                self.progress.is_running = True
                is_short = self._reader.is_short(self._read, ends)
                goal = goal or ends
                read_bytes = self._drain(ends)
                pause_s = FIRST_PAUSE_S
                has_all = all(self._read[partition] >= end for partition, end in goal.items())
                if self._options.once and has_all and not is_short:
                    return
                self._maintain()
                self._idle(read_bytes)
            except (ApiError, WireClientError) as error:
                if self._options.once or not may_pass(error):
                    raise
                self.progress.is_running = False
                self._audience.say(f"{error}; trying again")
                self._commit()
                self._audience.stop.wait(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _look_for_partitions(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        count = self._reader.partitions()
        self._looked_at = time.monotonic()
        if count > len(self._read):
            self._add(self._reader.starts(range(len(self._read), count)))

    def _drain(self, ends: Mapping[int, int]) -> int:
        """Reads up to `ends`, with commits in between. Returns the bytes that were read."""
        read_bytes = 0
        for piece in self._reader.read(self._read, ends):
            read_bytes += self._take(piece)
            if self._is_due():
                self._commit()
                self._maintain()  # a topic that never ends must not fill the disk
            if self._audience.stop.is_set():
                break
        return read_bytes

    def _take(self, piece: Piece) -> int:
        partition, pending = piece.partition, self._pending
        pending.starts.setdefault(partition, self._read[partition])
        if piece.lost:
            self._lose(partition, piece)
        pending.since = pending.since or time.monotonic()
        size_bytes = 0
        if piece.records is not None and piece.records.num_rows:
            size_bytes = piece.records.nbytes
            shaped = self._shape.shape(piece.records)
            pending.rows.setdefault(partition, []).append(shaped.rows)
            if shaped.misfits:
                pending.dead.setdefault(partition, []).append(dead_rows(piece.records, shaped.misfits))
            if shaped.tombstones is not None:
                pending.tombstones.append(shaped.tombstones)
            pending.records += piece.records.num_rows
            pending.size_bytes += size_bytes
        self._read[partition] = piece.position
        return size_bytes

    def _lose(self, partition: int, piece: Piece) -> None:
        first = self._read[partition]
        sentence = (
            f"offsets {first} to {first + piece.lost - 1} of partition {partition} of topic {self._topic.name} were "
            "deleted before they were read"
        )
        if not self._options.allow_gaps:
            raise RecordsLost(f"{sentence}. --allow-gaps continues without them")
        self._audience.say(f"{sentence}; continuing without them")
        self.progress.lost += piece.lost

    def _is_due(self) -> bool:
        pending = self._pending
        if pending.size_bytes >= max(COMMIT_BYTES // self._options.share, min(COMMIT_BYTES, LEAST_COMMIT_BYTES)):
            return True
        return bool(pending.since) and time.monotonic() >= self._due_s

    @property
    def _due_s(self) -> float:
        return self._pending.since + max(self._options.commit_interval_s, self._writer.pause_s)

    def _idle(self, read_bytes: int) -> None:
        """Waits for records, but not beyond the next commit. A trickle is not read record by record."""
        if self._is_due():
            self._commit()
        left_s = WAIT_S
        if self._pending.since:
            left_s = max(0.0, min(WAIT_S, self._due_s - time.monotonic()))
        if 0 < read_bytes < TRICKLE_BYTES:
            self._audience.stop.wait(min(PACE_S, left_s))
        self._reader.wait(self._read, left_s)

    # -- commits --------------------------------------------------------------------------

    def _commit(self) -> None:
        pending, self._pending = self._pending, _Pending()
        streams = {partition: self._topic.stream(partition) for partition in self._read}
        spans = {
            streams[partition]: Span(start, self._read[partition])
            for partition, start in pending.starts.items()
            if self._read[partition] != start
        }
        if not spans:
            return
        self._evolve()
        dead = self._dead_letters.append(pending.dead, streams, self._read)
        rows = [batch for _, batches in sorted(pending.rows.items()) for batch in batches]
        began = time.monotonic()
        done = self._writer.write(rows, pending.tombstones, spans)
        if done.is_replay:
            raise CommitConflict(f"another process writes {self._table.directory}: one is enough")
        self.progress.records += pending.records
        self.progress.size_bytes += pending.size_bytes
        self.progress.dead_letters += dead
        self.progress.tombstones += sum(one.num_rows for one in pending.tombstones)
        self.progress.commits += 1
        self.progress.commit_s += time.monotonic() - began
        self._update()
        self._show_lag()

    def _evolve(self) -> None:
        found = self._writer.evolve()
        if found is None:
            return
        self.progress.evolutions += 1
        for names, what in ((found.added, "Added"), (found.widened, "Widened")):
            if names:
                self._audience.say(f"{what} {', '.join(names)} in {self._table.directory}")

    def _update(self) -> None:
        known = self._table.positions
        self.progress.version = self._table.version
        self.progress.positions = {partition: known[self._topic.stream(partition)] for partition in self._read}
        self._audience.watch(self.progress)

    def _show_lag(self, *, is_last: bool = False) -> None:
        """A failure does no harm: the next commit tries again."""
        now = time.monotonic()
        if now - self._grouped_at < GROUP_S and not is_last:
            return
        self._grouped_at = now
        offsets = {TopicPartition(self._topic.name, one): at for one, at in self.progress.positions.items()}
        try:
            self._cluster.commit_offsets(self.group, offsets, MARK)
        except PenstockError as error:
            logger.debug("group %s does not show the lag: %s", self.group, error)

    def _maintain(self) -> None:
        now = time.monotonic()
        if now - self._compacted_at >= COMPACT_S:
            self._compacted_at = now
            self._table.compact(is_stopping=self._audience.stop.is_set)
            if isinstance(self._dead_letters, DeadLetters):
                self._dead_letters.compact()
        if now - self._expired_at >= min(EXPIRE_S, max(COMPACT_S, self._options.keep.total_seconds())):
            self._expired_at = now
            self._table.expire(self._options.keep)
            if isinstance(self._dead_letters, DeadLetters):
                self._dead_letters.expire(self._options.keep)
