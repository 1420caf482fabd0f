"""One shard of the group coordinator on its partition: load, ask, append, answer, tick.

Everything runs on the loop, so operations are serial by nature: a question is asked, its
records are appended and replayed, before the next one is. A reply waits until the log is
committed as far as it reached when the reply was decided, so nobody is told what a crash
could take back: neither of his own commit nor of another's.

When records cannot be appended although the group has moved on in memory, or a decision fails
half way, the shard is loaded anew from the log; whoever waited is told to look for the
coordinator again.

A shard lives for as long as its partition is led here (`groups.GroupCoordinator` sees to that).
What it finds in the log at the election was written under earlier leaders and may not be
committed yet: this broker can still die, and a leader that never had those records take over. So
nothing is decided or told before the high watermark has reached the end that the log had then.
Records of this leader that are not committed when it is deposed are believed by nobody: every
reply that knows of them waits behind them, and is refused when leadership is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from penstock.coordination.loading import Latest, read_latest
from penstock.coordination.notices import Notices
from penstock.core.group.exchange import Outcome, Reply, Token
from penstock.core.group.records import CoordinatorRecord
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, StorageError
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition

log = logging.getLogger(__name__)

Operation: TypeAlias = Callable[[GroupShard, Token, int], Outcome]
News: TypeAlias = Callable[[GroupShard, int], Outcome]

LOAD_BYTES: Final = 8 << 20
REPLAYED_IN_ONE_GO: Final = 5_000
MAX_BATCH_BYTES: Final = 512 << 10
"""Beyond it records go on in another batch; one record may be larger."""
EARLY_TIMER_S: Final = 0.001
RETRY_S: Final = 0.1
RELOAD_S: Final = 5.0

# As Kafka translates what a write to the partition says.
_REFUSALS: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
# The records are in the log and will be committed, or not, once there are replicas again.
_UNDECIDED: Final = frozenset((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
_DEPOSED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class HostedShard:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partition: Partition,
        settings: GroupSettings,
        workers: Workers,
        clock: Clock,
        topic_exists: Callable[[str], bool],
        make_shard: Callable[[GroupSettings], GroupShard] = GroupShard,
        may_lead: Callable[[], bool] = lambda: True,
        notices: Notices | None = None,
    ) -> None:
        """`may_lead`: False when this broker has not heard from the controller for so long that others may lead."""
        self._loop = loop
        self.partition = partition
        self._settings = settings
        self._workers = workers
        self._clock = clock
        self._topic_exists = topic_exists
        self._make_shard = make_shard
        self._may_lead = may_lead
        self._notices = notices or Notices(loop.time)
        self.shard = make_shard(settings)
        self._refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._waiting: dict[Token, asyncio.Future[Any]] = {}
        self._next_token = 0
        self._end = 0  # of the log after our last append
        self._life = 0  # counts loads, so that what was asked of the partition in an earlier one changes nothing
        self._uncommitted: deque[tuple[int, list[tuple[Token, Reply]]]] = deque()
        """(until when, replies) that wait for the high watermark, oldest first."""
        self._patience: asyncio.TimerHandle | None = None
        self._cannot_write: ErrorCode | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"shard {self.partition!r}"

    @property
    def is_ready(self) -> bool:
        return self._refusal is None

    @property
    def is_current(self) -> bool:
        """It serves or is about to; the log has all that it believes."""
        is_whole = self._end <= self.partition.log.log_end_offset
        return is_whole and self._refusal in (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def configure(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.shard.configure(settings)

    # -- load and unload ----------------------------------------------------------------

    def start(self) -> None:
        """A log that is empty, and committed as far as it goes, is loaded at once; another in the background."""
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._forget_retry()
        self._life += 1
        self._end = 0
        self._cannot_write = None
        self.shard = self._make_shard(self._settings)
        partition = self.partition
        end = partition.log.log_end_offset
        is_empty = partition.log.offline is None and partition.log.log_start_offset == end
        if is_empty and partition.high_watermark >= end:
            self._serve()
        else:
            # Asked for now, before anybody waits for more than that.
            self._loading = self._loop.create_task(self._load(end, self._when_reached(end)))

    async def _load(self, end: int, reached: asyncio.Future[ErrorCode]) -> None:
        """Take over what the log holds below `end`, and serve when all of that is committed."""
        started = self._loop.time()
        try:
            self.partition.check_online()
            records = await self._read(end)
            for count, record in enumerate(records, 1):
                self.shard.replay(record)
                if count % REPLAYED_IN_ONE_GO == 0:
                    await asyncio.sleep(0)
            await self._wait_committed(end, reached)
            self._serve()
        except CorruptBatch as error:
            self._not_loaded(error)
            self.partition.report_damage(error.path)  # others may have it whole, and lead
            return
        except (StorageError, OSError) as error:
            self._not_loaded(error)
            if self.partition.log.offline is None:  # too many open files, for one, is over some time
                self._retry = self._loop.call_later(RELOAD_S, self.start)
            return
        except Exception as error:
            log.exception("%r: a defect", self)
            self._not_loaded(error)
            return
        took_s = self._loop.time() - started
        log.info("%r: %d groups loaded from %d records in %.2f s", self, len(self.shard.groups), len(records), took_s)

    def _when_reached(self, end: int) -> asyncio.Future[ErrorCode]:
        """Done when the high watermark is at `end`, or with what prevents that."""
        reached: asyncio.Future[ErrorCode] = self._loop.create_future()

        def settle(code: ErrorCode) -> None:
            if not reached.done():
                reached.set_result(code)

        if self.partition.high_watermark >= end:
            settle(ErrorCode.NONE)
        else:
            self.partition.when_committed(end, settle)
        return reached

    async def _wait_committed(self, end: int, reached: asyncio.Future[ErrorCode]) -> None:
        """Raises StorageError when that will not happen. Whoever is deposed meanwhile is stopped from outside."""
        while (code := await reached) is not ErrorCode.NONE:
            if code not in _UNDECIDED and code not in _DEPOSED:
                raise StorageError(f"{self.partition!r} is not committed up to {end}: {code.name}")
            await asyncio.sleep(RETRY_S)
            reached = self._when_reached(end)

    def _not_loaded(self, error: Exception) -> None:
        log.critical("%r could not be loaded, its groups are not served: %s", self, error)
        self._loading = None
        self.stop(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _forget_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _read(self, end: int) -> list[CoordinatorRecord]:
        latest: Latest = {}
        offset, source = self.partition.log.log_start_offset, self.partition.log.reader
        while offset < end:
            lookup = source.lookup(offset, LOAD_BYTES, end)
            try:
                next_offset = await self._workers.run(partial(read_latest, lookup, latest))
            except (StorageError, OSError):
                if not source.is_stale(lookup):
                    raise
                continue
            if not source.end_lookup(lookup):
                continue  # compacted meanwhile: again, from here on and in order
            if next_offset is None:
                break
            offset = next_offset
        return await self._workers.run(partial(self._decode, latest))

    def _decode(self, latest: Latest) -> list[CoordinatorRecord]:
        """What is no record of ours was produced by somebody else, and must not keep the groups from being served."""
        records: list[CoordinatorRecord] = []
        for key, value in latest.items():
            try:
                record = self.shard.decode(key, value)
            except StorageError as error:
                log.error("%r: ignored: %s", self, error)
            else:
                if record is not None:
                    records.append(record)
        return records

    def _serve(self) -> None:
        self._loading = None
        self._refusal = None
        self._end = self.partition.log.log_end_offset
        now_ms = self._look_at_clocks()
        self._apply(self.shard.loaded(now_ms))
        # Topics that were deleted just before a crash, or while we were loading.
        self._apply(self.shard.forget_earlier_topics(now_ms, self._topic_exists))

    def stop(self, code: ErrorCode) -> None:
        """Serve no more; whoever waits is told `code`."""
        self._refusal = code
        self._life += 1
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self._forget_retry()
        self._cancel_timer()
        self._uncommitted.clear()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ApiError(code))

    # -- operations ---------------------------------------------------------------------

    def call(self, operation: Operation) -> asyncio.Future[Any]:
        """The reply, once it may leave; ApiError when this shard cannot give one."""
        if self._refusal is not None:
            raise ApiError(self._refusal)
        if not self._may_lead():
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        token = self._next_token
        self._next_token = token + 1
        future = self._waiting[token] = self._loop.create_future()
        self._decide(lambda shard, now_ms: operation(shard, token, now_ms), token)
        return future

    def tell(self, news: News) -> None:
        if self._refusal is None:
            self._decide(news)

    def topics_deleted(self, topics: Sequence[str]) -> None:
        self.tell(lambda shard, now_ms: shard.topics_deleted(topics, now_ms))

    def _decide(self, decision: News, token: Token | None = None) -> None:
        """Ask the shard and act on its answer; `token` is whose question it is."""
        try:
            self._apply(decision(self.shard, self._look_at_clocks()))
        except Exception as error:
            # A defect, and nobody knows how far it came: parked requests may be taken off their members already.
            log.exception("%r: a decision failed, its groups are loaded anew from the log", self)
            if token is not None:
                self._fail(token, error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR)
            self._reload(ErrorCode.NOT_COORDINATOR)

    def _reload(self, code: ErrorCode) -> None:
        self.stop(code)
        self.start()

    def _apply(self, outcome: Outcome) -> None:
        if outcome.records:
            try:
                self._append(outcome.records)
            except (StorageError, ApiError) as error:
                self._not_appended(outcome, error)
                return
            for record in outcome.records:
                self.shard.replay(record)
        if outcome.notices or outcome.idle_notices:
            self._notices.say(outcome.notices)
            self._notices.say_of_idle(outcome.idle_notices)
        if outcome.replies:
            if self._end <= self.partition.high_watermark:
                self._release(outcome.replies)
            else:
                self._await_commit(outcome.replies)
        if outcome.is_continued:
            self._cancel_timer()
            self._tick()
        else:
            self._schedule()

    def _await_commit(self, replies: list[tuple[Token, Reply]]) -> None:
        timeout_ms = self._settings.offsets_commit_timeout_ms
        self._uncommitted.append((self._now_ms() + timeout_ms, replies))
        if self._patience is None:
            self._patience = self._loop.call_later(timeout_ms / 1000, self._look_at_uncommitted)
        self.partition.when_committed(self._end, partial(self._committed, self._life, replies))

    def _look_at_uncommitted(self) -> None:
        """Whoever has waited too long may ask again; what was decided stands in the log and may yet be committed."""
        self._patience = None
        now_ms = self._now_ms()
        while self._uncommitted and self._uncommitted[0][0] <= now_ms:
            _, replies = self._uncommitted.popleft()
            for token, _ in replies:
                self._fail(token, _REFUSALS[ErrorCode.REQUEST_TIMED_OUT])
        if self._uncommitted:
            delay_s = (self._uncommitted[0][0] - now_ms) / 1000 + EARLY_TIMER_S
            self._patience = self._loop.call_later(delay_s, self._look_at_uncommitted)

    def _append(self, records: Sequence[CoordinatorRecord]) -> None:
        """All or, when the disk fails in the middle of many batches, a beginning of them. StorageError, ApiError."""
        partition = self.partition
        partition.check_online()
        partition.check_min_isr()
        now_ms = self._clock.now_ms()
        encoded = [(record.encode_key(), record.encode_value()) for record in records]
        pending: list[Record] = []
        size = 0
        for key, value in encoded:
            pending.append(Record(key, value, timestamp_ms=now_ms))
            size += len(key) + len(value or b"")
            if size >= MAX_BATCH_BYTES:
                self._append_batch(pending, now_ms)
                pending, size = [], 0
        if pending:
            self._append_batch(pending, now_ms)
        self._end = self.partition.log.log_end_offset
        if self._cannot_write is not None:
            log.info("%r can write again", self)
            self._cannot_write = None

    def _append_batch(self, records: list[Record], now_ms: int) -> None:
        data = build_batch(records)
        self.partition.append(read_header(data), data, now_ms)

    def _not_appended(self, outcome: Outcome, error: StorageError | ApiError) -> None:
        code = _REFUSALS.get(error.code, error.code)
        if error.code is not self._cannot_write:  # once, not with every commit
            self._cannot_write = error.code
            log.error("%r cannot write: %s", self, error)
        if outcome.reload_if_lost or self.partition.log.log_end_offset > self._end:  # a beginning of it is in the log
            self._reload(code)
            return
        for token, _ in outcome.replies:
            self._fail(token, code)

    def _committed(self, life: int, replies: list[tuple[Token, Reply]], code: ErrorCode) -> None:
        if life != self._life:
            return  # whoever waited was told when that life ended
        if self._uncommitted and self._uncommitted[0][1] is replies:
            self._uncommitted.popleft()
        if code is ErrorCode.NONE:
            self._release(replies)
            return
        refusal = _REFUSALS.get(code, code)
        for token, _ in replies:
            self._fail(token, refusal)
        if code in _DEPOSED:
            # If it is led here after all, its log says what counts.
            self._reload(refusal)
        elif code not in _UNDECIDED:
            # The log is offline or deleted: what is in memory may never have happened.
            self.stop(refusal)

    def _release(self, replies: list[tuple[Token, Reply]]) -> None:
        waiting = self._waiting
        for token, reply in replies:
            future = waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(reply)

    def _fail(self, token: Token, code: ErrorCode) -> None:
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(ApiError(code))

    # -- time ---------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """For deadlines: sessions must not end because somebody sets the wall clock."""
        return int(self._clock.monotonic() * 1000)

    def _look_at_clocks(self) -> int:
        """Now; the shard is told what the wall clock makes of it, for what it stores."""
        now_ms = self._now_ms()
        self.shard.wall.ahead_ms = self._clock.now_ms() - now_ms
        return now_ms

    def _schedule(self) -> None:
        """One timer, for the earliest deadline. It may fire too early, when that deadline has moved out."""
        deadline_ms = self.shard.next_deadline()
        if deadline_ms is None or self._refusal is not None:
            self._cancel_timer()
        elif self._timer is None or deadline_ms < self._timer_at_ms:
            self._cancel_timer()
            delay_s = max(deadline_ms - self._now_ms(), 0) / 1000 + EARLY_TIMER_S
            self._timer = self._loop.call_later(delay_s, self._tick)
            self._timer_at_ms = deadline_ms

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        while self._refusal is None and (deadline_ms := self.shard.next_deadline()) is not None:
            if deadline_ms > now_ms:
                break
            self._decide(lambda shard, now_ms: shard.tick(now_ms))
        self._schedule()
