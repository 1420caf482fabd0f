"""Stores term, vote, log and snapshot of a Raft server, in the directory `__cluster_metadata-0`.

The log is an ordinary segmented log, so its files, checksums and recovery are those of user data. Outcomes of the core
are stored in the order of arrival, and each in the order of `core.raft.exchange`: hard state, snapshot, truncation,
entries. An outcome with entries only, the usual case, is appended at once and made stable by group commit, several
writes at a time. Any other outcome waits until earlier ones are stable and then runs in a worker, alone. So the loop
never waits for the disk, and after a crash the disk has a prefix of the requested writes.

If the disk is full or the process has no free descriptors, the write is repeated until it succeeds, and `on_stalled` is
called once. Any other failure is final (`on_failed`), because the state of the disk is unknown then. Must not know:
roles, messages, the state machine.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.cluster.log_damage import refuse_damage
from penstock.cluster.raft_files import (
    QUORUM_STATE,
    checkpoint_names,
    checkpoint_path,
    decode_entries,
    encode_checkpoint,
    encode_entries,
    encode_quorum_state,
    impossible_term,
    missing_quorum_state,
    read_newest_checkpoint,
    read_quorum_state,
)
from penstock.core.raft.configuration import NodeId
from penstock.core.raft.exchange import NEVER_VOTED, HardState, Outcome, Stored
from penstock.core.raft.messages import Entry
from penstock.core.raft.terms import HEALED_TERM, can_be_healed, needs_healing
from penstock.model.errors import LogOffline, StorageError
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.ports.workers import Workers
from penstock.storage.checkpoints import read_partition_metadata, write_partition_metadata
from penstock.storage.durability import Flush
from penstock.storage.files import parent_of, write_atomic
from penstock.storage.group_commit import IDLE, GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "__cluster_metadata-0"
TOPIC_ID = bytes(15) + b"\1"
READ_BYTES = 4 << 20
RETRY_S = 1.0
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)

log = logging.getLogger(__name__)


class _Write(NamedTuple):
    outcome: Outcome
    when_stable: Callable[[], None]

    @property
    def is_of_entries_alone(self) -> bool:
        wanted = self.outcome
        return not (wanted.hard_state or wanted.snapshot_to_store or wanted.truncate_from is not None)


class QuorumLane(NamedTuple):
    """The group commit and workers that the metadata quorum shares with the other writers of the node."""

    commit: GroupCommit
    workers: Workers


class _Writing(NamedTuple):
    loop: asyncio.AbstractEventLoop
    commit: GroupCommit
    workers: Workers
    on_failed: Callable[[Exception], None]
    on_stalled: Callable[[Exception], None]


class RaftStore:
    def __init__(self, disk: Disk, data_directory: str, clock: Clock, *, segment_bytes: int = 1 << 30) -> None:
        """Opens or creates; blocks. Raises StorageError."""
        self._disk = disk
        self._clock = clock
        self.directory = directory = f"{data_directory}/{DIRECTORY}"
        self._make_directory()
        self._keep_topic_id()
        refuse_damage(disk, directory)
        found = read_quorum_state(disk, directory)
        self._hard_state = found[0] if found is not None else NEVER_VOTED
        self.first_voters: tuple[NodeId, ...] | None = found[1] if found is not None else None
        """The voters before the log named any; set when the quorum begins."""
        self._snapshot = read_newest_checkpoint(disk, directory)
        # The whole log is read anyway, so it is verified from its first byte.
        self.log = Log.open(
            disk,
            directory,
            LogConfig(segment_bytes=segment_bytes, retention_ms=-1, retention_bytes=-1, flush_messages=1),
            now_ms=clock.now_ms(),
            topic_id=TOPIC_ID,
        )
        for message in self.log.recovery.messages:
            log.warning("%s: %s", DIRECTORY, message)
        if found is None and self._last_term > 0:
            raise StorageError(missing_quorum_state(directory))
        if found is None and not self.has_history:
            self._hard_state = HardState(is_new=True)
        if self.log.log_start_offset == self.log.log_end_offset != self._base_offset:
            self.log.truncate_fully_and_start_at(self._base_offset)
        flush_blocking(disk, self.log)  # unflushed writes of a killed process count from here on

        self.flush_state = IDLE
        self._attached: _Writing | None = None
        self._waiting: deque[_Write] = deque()
        self._appended: deque[tuple[int, Callable[[], None]]] = deque()
        """(log end, callback) of entries that are not stable yet."""
        self._working: asyncio.Task[None] | None = None
        self._working_since_s = 0.0
        self._is_retrying = False
        self._when_settled: list[asyncio.Future[None]] = []
        self.failure: Exception | None = None
        self.is_stalled = False
        """The disk is full, or no descriptor is free: nothing becomes stable until that changes."""

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: QuorumLane,
        *,
        on_failed: Callable[[Exception], None],
        on_stalled: Callable[[Exception], None],
    ) -> None:
        """Call before `store`; `store_blocking` needs none of these."""
        self._attached = _Writing(loop, lane.commit, lane.workers, on_failed, on_stalled)

    @property
    def _writing(self) -> _Writing:
        assert self._attached is not None, "attach() comes first"
        return self._attached

    @property
    def is_new(self) -> bool:
        """Whether it began with an empty disk and has not caught up since: see `RaftNode.may_vote_for`."""
        return self._hard_state.is_new

    def trust_empty_disk(self) -> None:
        """The operator confirms that this voter never voted, so no votes are lost. Call before `stored`."""
        self._hard_state = HardState(self._hard_state.term, self._hard_state.voted_for)

    def _make_directory(self) -> None:
        if not self._disk.is_directory(self.directory):
            self._disk.make_directory(self.directory)
            self._disk.sync_directory(parent_of(self.directory))

    def _keep_topic_id(self) -> None:
        """A crash may have lost it before the first flush. For this log the topic id is always known."""
        disk, directory = self._disk, self.directory
        try:
            if disk.list_directory(directory) and read_partition_metadata(disk, directory) is None:
                write_partition_metadata(disk, directory, TOPIC_ID)
        except OSError as error:
            raise StorageError(f"cannot write the topic id of {directory}: {error}") from error

    # ---- reading

    @property
    def _base_offset(self) -> int:
        """The offset at which an empty log continues."""
        return self._snapshot.index if self._snapshot is not None else 0

    @property
    def _last_term(self) -> int:
        """Zero: the entries are from before Raft, or there are none."""
        return max(self.log.epochs.latest, self._snapshot.term if self._snapshot is not None else 0)

    @property
    def has_history(self) -> bool:
        return self._snapshot is not None or self.log.log_end_offset > 0

    def stored(self) -> Stored:
        """Everything, for a new core."""
        return Stored(self._hard_state, self._snapshot, tuple(self._entries()))

    def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        offset, end = self.log.log_start_offset, self.log.end_position()
        while offset < self.log.log_end_offset:
            piece = self.log.reader.read(offset, READ_BYTES, end)
            if piece is None:
                raise StorageError(f"{self.directory}: nothing to read at offset {offset}")
            entries.extend(decode_entries(piece.read(), piece.file.path, piece.position))
            offset = entries[-1].index
        return entries

    # ---- writing

    def heal_term(self) -> None:
        """Repair a hard state with a term that no quorum reaches: a file was damaged, or a forged message was accepted.
        Call this first; blocks. Raises StorageError.
        """
        term, last = self._hard_state.term, self._last_term
        if not needs_healing(max(term, last)):
            return
        if not can_be_healed(last):
            raise StorageError(impossible_term(self.directory, last))
        log.warning(
            "%s/%s has term %d, which no quorum can reach: continuing in term %d. The log ends in term %d and is "
            "intact",
            DIRECTORY,
            QUORUM_STATE,
            term,
            HEALED_TERM,
            last,
        )
        self.store_blocking(Outcome(hard_state=HardState(HEALED_TERM)))

    def store(self, outcome: Outcome, when_stable: Callable[[], None]) -> None:
        self._waiting.append(_Write(outcome, when_stable))
        self._advance()

    def store_blocking(self, outcome: Outcome) -> None:
        """In place, for a start without an election. Raises StorageError."""
        try:
            self._settle(outcome)
            self._append(outcome.append)
        except OSError as error:
            raise StorageError(f"{self.directory}: {error}") from error
        flush_blocking(self._disk, self.log)

    async def settled(self) -> None:
        """Wait until all requested writes are stable, or can never be."""
        while not self._is_settled and self._attached is not None:
            future = self._attached.loop.create_future()
            self._when_settled.append(future)
            await future

    @property
    def _is_settled(self) -> bool:
        if self.failure is not None or self.is_stalled:
            return self._working is None
        return not (self._waiting or self._appended or self._working)

    def waiting_since_s(self) -> float | None:
        """When the running worker write began; None: there is none. Flushes of entries: `GroupCommit`."""
        return None if self._working is None else self._working_since_s

    def _advance(self) -> None:
        """Begin all writes that can begin now."""
        while self._waiting and self._working is None and not self._is_retrying and self.failure is None:
            write = self._waiting[0]
            if not write.is_of_entries_alone:
                if not self._appended:
                    loop = self._writing.loop
                    self._working_since_s = loop.time()
                    self._working = loop.create_task(self._work(write))
                return
            if not self._try_append(write):
                return
        self._tell_settled()

    def _try_append(self, write: _Write) -> bool:
        try:
            self._append(write.outcome.append)
        except Exception as error:  # see `_work`
            self._trouble(error)
            return False
        self._waiting.popleft()
        self.is_stalled = False
        self._appended.append((self.log.log_end_offset, write.when_stable))
        self._writing.commit.request(self)
        return True

    async def _work(self, write: _Write) -> None:
        error: Exception | None = None
        try:
            await self._writing.workers.run(lambda: self._settle(write.outcome))
        except Exception as trouble:  # including defects: the state of the disk is unknown then, too
            error = trouble
        self._working = None
        if error is not None:
            self._trouble(error)
        elif write.outcome.append:
            # The worker's part is stable; repeating the whole write would do it twice.
            entries = Outcome(append=write.outcome.append)
            self._waiting[0] = _Write(entries, write.when_stable)
        else:
            self._waiting.popleft()
            self.is_stalled = False
            write.when_stable()
        self._advance()
        self._tell_settled()

    def _append(self, entries: Sequence[Entry]) -> None:
        if entries:
            assert entries[0].index == self.log.log_end_offset + 1, f"{entries[0]} at {self.log.log_end_offset}"
            now_ms = self._clock.now_ms()
            self.log.append_replicated(encode_entries(entries, self.log.stable_offset, now_ms), now_ms)

    def _settle(self, outcome: Outcome) -> None:
        """Blocks; makes everything but the entries stable. Can be repeated safely."""
        if outcome.hard_state is not None:
            state = encode_quorum_state(outcome.hard_state, self.first_voters or ())
            write_atomic(self._disk, f"{self.directory}/{QUORUM_STATE}", state)
            self._hard_state = outcome.hard_state
        if (snapshot := outcome.snapshot_to_store) is not None:
            write_atomic(self._disk, checkpoint_path(self.directory, snapshot), encode_checkpoint(snapshot))
            self._snapshot = snapshot
        if outcome.truncate_from is not None:
            self._truncate_from(outcome.truncate_from)
        if snapshot is not None:
            self._compact_to(outcome.compact_to)

    def _truncate_from(self, index: int) -> None:
        """Segment by segment from the end: after a crash in between the rest has no gap.

        The whole log (index 1) is replaced by the snapshot and continues behind it; its first entry goes last.
        """
        log, is_all = self.log, index == 1
        offset = max(index - 1, log.log_start_offset + 1) if is_all else index - 1
        for base in reversed(log.segment_bases):
            if base > offset:
                log.truncate_to(base)
        log.truncate_to(offset)
        if is_all:
            log.truncate_fully_and_start_at(self._base_offset)
        log.remove_deleted()

    def _compact_to(self, index: int | None) -> None:
        """Only whole segments are deleted, so each snapshot begins a new one."""
        log = self.log
        log.roll(self._clock.now_ms())
        if index is not None and index > log.log_start_offset:
            log.advance_log_start(index)
        log.remove_deleted()
        flush_blocking(self._disk, log, is_tried_again=True)
        for name in checkpoint_names(self._disk, self.directory)[:-1]:
            self._disk.remove(f"{self.directory}/{name}")

    # ---- group commit

    def begin_flush(self) -> Flush | None:
        if self.log.offline is not None:
            self._trouble(LogOffline(self.directory, self.log.offline))
            return None
        ticket = self.log.begin_flush() if self._working is None else None
        if ticket is None and self._appended and self._attached is not None:
            self._attached.loop.call_soon(self._release)  # there is nothing to wait for
        return ticket

    def put_off_flush(self, ticket: Flush) -> None:
        self.log.put_off_flush(ticket)

    def end_flush(self, ticket: Flush, error: OSError | None) -> None:
        self.log.end_flush(ticket, error)
        if error is not None:
            self._trouble(LogOffline(self.directory, error))
            return
        self._release()

    def _release(self) -> None:
        while self._appended and self._appended[0][0] <= self.log.stable_offset:
            self._appended.popleft()[1]()
        self._advance()

    # # ---- failures

    def _trouble(self, error: Exception) -> None:
        if self.failure is not None:
            return
        if self.log.offline is None and _is_passing(error):
            self._retry_later(error)
            return
        self.failure = error
        self._tell_settled()
        self._writing.on_failed(error)

    def _retry_later(self, error: Exception) -> None:
        self._is_retrying = True
        self._writing.loop.call_later(RETRY_S, self._retry)
        if not self.is_stalled:
            self.is_stalled = True
            self._writing.on_stalled(error)

    def _retry(self) -> None:
        self._is_retrying = False
        self._advance()

    def _tell_settled(self) -> None:
        if self._when_settled and self._is_settled:
            waiting, self._when_settled = self._when_settled, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """Call after `settled`. Raises StorageError."""
        if self.log.offline is None and self.failure is None:
            self.log.close(clean=True)


def _is_passing(error: Exception) -> bool:
    """These conditions are temporary, and earlier writes are safe."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
