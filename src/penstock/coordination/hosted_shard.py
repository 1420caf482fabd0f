"""One shard of a coordinator on its partition: load, decide, append, reply, tick.

Everything runs on the loop, so operations are serial: the records of one operation are appended and replayed before the
next operation starts. A reply waits until the log is committed up to its end at the time of the decision. So no reply
reveals a state that a crash could take back, whether it depends on the client's own commit or another one.

If a decision fails half way, or its records cannot be appended after the state in memory has changed, the shard is
reloaded from the log. Waiting requests fail, so that their clients look for the coordinator again.

A shard lives while its partition is led here (`shard_host.ShardHost` handles that); `core.shard.hosting` has the table
of its states. The differences between groups and transactions are in a `ShardKind`. The log found at the election was
written under earlier leaders and may not be committed yet: this broker can still die, and a new leader may lack those
records. So the shard decides and answers nothing before the high watermark has reached that log's end. If this leader
is deposed, its uncommitted records have no effect: every reply that depends on them waits for them, and fails when
leadership is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from penstock.coordination.loading import Latest, read_latest
from penstock.coordination.notices import Notices
from penstock.core.shard.exchange import Marker, Outcome, Producer, Token
from penstock.core.shard.hosting import ABOUT_TO_SERVE, Input, State, moved
from penstock.core.shard.records import CoordinatorRecord
from penstock.core.shard.wall_clock import WallClock
from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, StorageError
from penstock.ports.clock import Clock
from penstock.ports.workers import Workers
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from penstock.storage.producers.verification import Guard

log = logging.getLogger(__name__)

LOAD_BYTES: Final = 8 << 20
REPLAYED_IN_ONE_GO: Final = 5_000
MAX_BATCH_BYTES: Final = 512 << 10
"""Further records go into another batch; one record may be larger."""
EARLY_TIMER_S: Final = 0.001
RETRY_S: Final = 0.1
RELOAD_S: Final = 5.0

# Kafka's translation of errors from writes to the partition.
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
# The records are in the log, and may be committed when there are enough replicas again.
_UNDECIDED: Final = frozenset((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
# Only the producer is refused; the shard continues.
_OF_PRODUCERS: Final = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
)
_DEPOSED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class Shard(Protocol):
    """Sans-IO: `core.group.shard`, `core.txn.shard`."""

    @property
    def wall(self) -> WallClock: ...

    def __len__(self) -> int: ...

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None: ...

    def decode_pending(self, producer_id: int, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """A record of a transaction that is still open."""
        ...

    def replay(self, record: CoordinatorRecord) -> None: ...

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None: ...

    def next_deadline(self) -> int | None: ...

    def tick(self, now_ms: int) -> Outcome: ...


S = TypeVar("S", bound=Shard)
Operation: TypeAlias = Callable[[S, Token, int], Outcome]
News: TypeAlias = Callable[[S, int], Outcome]


class ShardKind(Protocol[S]):
    """The parts that the shards of one coordinator share."""

    @property
    def noun(self) -> str:
        """The name of one item in a shard, in the singular."""
        ...

    @property
    def commit_timeout_ms(self) -> int:
        """How long a reply waits for the replicas."""
        ...

    def make(self) -> S: ...

    def first_decisions(self) -> Sequence[News[S]]:
        """Decisions to make once the log has been loaded."""
        ...

    def carry_out(self, deed: Any, hosted: HostedShard[S]) -> None:
        """Called when its records are committed."""
        ...


class HostedShard(Generic[S]):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partition: Partition,
        kind: ShardKind[S],
        workers: Workers,
        clock: Clock,
        may_lead: Callable[[], bool] = lambda: True,
        notices: Notices | None = None,
    ) -> None:
        """`may_lead`: False when the controller has been silent for so long that others may lead."""
        self._loop = loop
        self.partition = partition
        self._kind = kind
        self._workers = workers
        self._clock = clock
        self._may_lead = may_lead
        self._notices = notices or Notices(loop.time)
        self.shard = kind.make()
        self._state = State.INITIAL
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """The error for requests while the shard is not active."""
        self._waiting: dict[Token, asyncio.Future[Any]] = {}
        self._next_token = 0
        self._end = 0  # the log end after our last append
        self._life = 0  # counts loads: callbacks from an earlier load are ignored
        self._uncommitted: deque[tuple[int, list[tuple[Token, object]]]] = deque()
        """(deadline, replies) that wait for the high watermark, oldest first."""
        self._patience: asyncio.TimerHandle | None = None
        self._cannot_write: ErrorCode | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"shard {self.partition!r}"

    @property
    def life(self) -> int:
        """Changes with each load and each stop."""
        return self._life

    @property
    def is_ready(self) -> bool:
        return self._state is State.ACTIVE

    @property
    def is_current(self) -> bool:
        """Whether the shard serves requests or is about to, and the log contains all of its state."""
        is_whole = self._end <= self.partition.log.log_end_offset
        return is_whole and self._state in ABOUT_TO_SERVE

    # -- load and unload ----------------------------------------------------------------

    def start(self) -> None:
        self._state = moved(self._state, Input.START)
        self._begin()

    def _begin(self) -> None:
        """An empty log that is fully committed is loaded at once; any other in the background."""
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._forget_retry()
        self._life += 1
        self._end = 0
        self._cannot_write = None
        self.shard = self._kind.make()
        partition = self.partition
        end = partition.log.log_end_offset
        is_empty = partition.log.offline is None and partition.log.log_start_offset == end
        if is_empty and partition.high_watermark >= end:
            self._serve()
        else:
            # Registered now, before later waiters.
            self._loading = self._loop.create_task(self._load(end, self._when_reached(end)))

    async def _load(self, end: int, reached: asyncio.Future[ErrorCode]) -> None:
        """Load the log below `end`, and serve when all of it is committed."""
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
            self.partition.report_damage(error.path)  # other replicas may be intact, and lead
            return
        except (StorageError, OSError) as error:
            self._not_loaded(error)
            if self.partition.log.offline is None:  # too many open files, for example, is temporary
                self._retry = self._loop.call_later(RELOAD_S, self.start)
            return
        except Exception as error:
            log.exception("%r: a defect", self)
            self._not_loaded(error)
            return
        took_s = self._loop.time() - started
        what = f"{len(self.shard)} {self._kind.noun}{'s' * (len(self.shard) != 1)}"
        log.info("%r: %s loaded from %d records in %.2f s", self, what, len(records), took_s)

    def _when_reached(self, end: int) -> asyncio.Future[ErrorCode]:
        """Done when the high watermark reaches `end`, or with the error that prevents it."""
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
        """Raises StorageError if that will not happen. After a loss of leadership the host stops this shard."""
        while (code := await reached) is not ErrorCode.NONE:
            if code not in _UNDECIDED and code not in _DEPOSED:
                raise StorageError(f"{self.partition!r} is not committed up to {end}: {code.name}")
            await asyncio.sleep(RETRY_S)
            reached = self._when_reached(end)

    def _not_loaded(self, error: Exception) -> None:
        log.critical("%r could not be loaded, so its %ss are not served: %s", self, self._kind.noun, error)
        self._loading = None
        self._end_life(Input.NOT_LOADED, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _forget_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _read(self, end: int) -> list[CoordinatorRecord]:
        latest = Latest()
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
                continue  # compacted meanwhile: read again from this offset
            if next_offset is None:
                break
            offset = next_offset
        return await self._workers.run(partial(self._decode, latest))

    def _decode(self, latest: Latest) -> list[CoordinatorRecord]:
        """A record that cannot be decoded was written by another program. It must not prevent the rest from being
        served.
        """
        records: list[CoordinatorRecord] = []

        def add(decode: Callable[[], CoordinatorRecord | None]) -> None:
            try:
                record = decode()
            except StorageError as error:
                log.error("%r: a record is ignored: %s", self, error)
            else:
                if record is not None:
                    records.append(record)

        for key, value in latest.records.items():
            add(partial(self.shard.decode, key, value))
        for producer_id, key, value in latest.still_open():
            add(partial(self.shard.decode_pending, producer_id, key, value))
        return records

    def _serve(self) -> None:
        self._loading = None
        self._state = moved(self._state, Input.LOADED)
        self._end = self.partition.log.log_end_offset
        life, now_ms = self._life, self._look_at_clocks()
        for decision in self._kind.first_decisions():
            self._apply(decision(self.shard, now_ms))
            if self._life != life:
                break

    def stop(self, code: ErrorCode) -> None:
        """Stop serving; waiting requests fail with `code`."""
        self._end_life(Input.STOP, code)

    def _end_life(self, met: Input, code: ErrorCode) -> None:
        self._state = moved(self._state, met)
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

    def call(self, operation: Operation[S]) -> asyncio.Future[Any]:
        """The reply, once it may be sent; raises ApiError if this shard cannot give one."""
        if self._state is not State.ACTIVE:
            raise ApiError(self._refusal)
        if not self._may_lead():
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        token = self._next_token
        self._next_token = token + 1
        future = self._waiting[token] = self._loop.create_future()
        self._decide(lambda shard, now_ms: operation(shard, token, now_ms), token)
        return future

    def tell(self, news: News[S]) -> None:
        if self._state is State.ACTIVE:
            self._decide(news)

    def _decide(self, decision: News[S], token: Token | None = None) -> None:
        """Run a decision and apply its outcome; `token` is the request's."""
        try:
            self._apply(decision(self.shard, self._look_at_clocks()))
        except Exception as error:
            # After a defect the state is unknown: parked requests may already be removed from their members.
            log.exception("%r: a decision failed, reloading its %ss from the log", self, self._kind.noun)
            if token is not None:
                self._fail(token, error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR)
            self._reload(ErrorCode.NOT_COORDINATOR)

    def _reload(self, code: ErrorCode) -> None:
        self._end_life(Input.RELOAD, code)
        self._begin()

    def _apply(self, outcome: Outcome) -> None:
        if outcome.records or outcome.marker is not None:
            try:
                if outcome.marker is not None:
                    self._append_marker(outcome.marker)
                else:
                    self._append(outcome.records, outcome.producer)
            except (StorageError, ApiError) as error:
                self._not_appended(outcome, error)
                self._schedule()  # timers that the decision set, to try again
                return
            for record in outcome.records:
                self.shard.replay(record)
        if outcome.notices or outcome.idle_notices:
            self._notices.say(outcome.notices)
            self._notices.say_of_idle(outcome.idle_notices)
        if outcome.deeds:
            self._carry_out(self._life, self._end, outcome.deeds, ErrorCode.NONE)
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

    def _carry_out(self, life: int, end: int, deeds: list[object], code: ErrorCode) -> None:
        """Waits as long as needed until the records below `end` are committed, while this broker leads."""
        if life != self._life:
            return  # they are still due after the next load of the log
        if code in _UNDECIDED:
            self._loop.call_later(RETRY_S, self._carry_out, life, end, deeds, ErrorCode.NONE)
        elif code is not ErrorCode.NONE:
            self._lost(code)
        elif self.partition.high_watermark >= end:
            for deed in deeds:
                self._kind.carry_out(deed, self)
        else:
            self.partition.when_committed(end, partial(self._carry_out, life, end, deeds))

    def _await_commit(self, replies: list[tuple[Token, object]]) -> None:
        timeout_ms = self._kind.commit_timeout_ms
        self._uncommitted.append((self._now_ms() + timeout_ms, replies))
        if self._patience is None:
            self._patience = self._loop.call_later(timeout_ms / 1000, self._look_at_uncommitted)
        self.partition.when_committed(self._end, partial(self._committed, self._life, replies))

    def _look_at_uncommitted(self) -> None:
        """Requests that have waited too long fail; their decisions are in the log and may still be committed."""
        self._patience = None
        now_ms = self._now_ms()
        while self._uncommitted and self._uncommitted[0][0] <= now_ms:
            _, replies = self._uncommitted.popleft()
            for token, _ in replies:
                self._fail(token, _REFUSALS[ErrorCode.REQUEST_TIMED_OUT])
        if self._uncommitted:
            delay_s = (self._uncommitted[0][0] - now_ms) / 1000 + EARLY_TIMER_S
            self._patience = self._loop.call_later(delay_s, self._look_at_uncommitted)

    def _append(self, records: Sequence[CoordinatorRecord], producer: Producer | None) -> None:
        """Append all records; if the disk fails between batches, only the first ones. Raises StorageError, ApiError."""
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
                self._append_batch(pending, producer, now_ms)
                pending, size = [], 0
        if pending:
            self._append_batch(pending, producer, now_ms)
        self._appended()

    def _append_marker(self, marker: Marker) -> None:
        """Append and replay a marker, unless the partition has it already."""
        self.partition.check_min_isr()
        if self.partition.append_marker(marker, self._clock.now_ms()):
            self.shard.replay_marker(marker.producer_id, is_commit=marker.is_commit)
        self._appended()

    def _appended(self) -> None:
        self._end = self.partition.log.log_end_offset
        if self._cannot_write is not None:
            log.info("%r can write again", self)
            self._cannot_write = None

    def _append_batch(self, records: list[Record], producer: Producer | None, now_ms: int) -> None:
        if producer is None:
            data = build_batch(records)
            self.partition.append(read_header(data), data, now_ms)
            return
        producer_id, epoch, guard = producer
        data = build_batch(records, producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL_BIT)
        self.partition.append_transactional(read_header(data), data, now_ms, cast(Guard | None, guard))

    def _not_appended(self, outcome: Outcome, error: StorageError | ApiError) -> None:
        code = _REFUSALS.get(error.code, error.code)
        if error.code is not self._cannot_write and error.code not in _OF_PRODUCERS:  # once, not with every commit
            self._cannot_write = error.code
            log.error("%r cannot write: %s", self, error)
        if outcome.reload_if_lost or self.partition.log.log_end_offset > self._end:  # part of it is in the log
            self._reload(code)
            return
        for token, _ in outcome.replies:
            self._fail(token, code)

    def _committed(self, life: int, replies: list[tuple[Token, object]], code: ErrorCode) -> None:
        if life != self._life:
            return  # the waiters failed when that load ended
        if self._uncommitted and self._uncommitted[0][1] is replies:
            self._uncommitted.popleft()
        if code is ErrorCode.NONE:
            self._release(replies)
            return
        refusal = _REFUSALS.get(code, code)
        for token, _ in replies:
            self._fail(token, refusal)
        if code not in _UNDECIDED:
            self._lost(code)

    def _lost(self, code: ErrorCode) -> None:
        """The state in memory may never become committed."""
        refusal = _REFUSALS.get(code, code)
        if code in _DEPOSED:
            self._reload(refusal)  # if this broker still leads, the log decides
        else:
            self._end_life(Input.LOG_LOST, refusal)  # the log is offline or deleted

    def _release(self, replies: list[tuple[Token, object]]) -> None:
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
        """For deadlines: sessions must not end because the wall clock is set."""
        return int(self._clock.monotonic() * 1000)

    def _look_at_clocks(self) -> int:
        """The current time; also sets the shard's wall clock offset, for stored timestamps."""
        now_ms = self._now_ms()
        self.shard.wall.ahead_ms = self._clock.now_ms() - now_ms
        return now_ms

    def _schedule(self) -> None:
        """One timer, for the earliest deadline. It may fire too early if that deadline was postponed."""
        deadline_ms = self.shard.next_deadline()
        if deadline_ms is None or self._state is not State.ACTIVE:
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
        while self._state is State.ACTIVE and (deadline_ms := self.shard.next_deadline()) is not None:
            if deadline_ms > now_ms:
                break
            self._decide(lambda shard, now_ms: shard.tick(now_ms))
        self._schedule()
