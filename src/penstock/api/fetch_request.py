"""One fetch request under way: what it found so far, and its time in the car park.

A consumer reads below the high watermark, a follower to the end of the log. The first look is at all that was asked
for; with a session only at what was asked for anew and at what has news (`FetchWatch`). A later look is at what has
news, and what was found before stays found. What is offered to a consumer is read again just before the answer: a log
may have been cut meanwhile. Looks are made in steps (`api.turns`); most take one.
Must not know: sessions' epochs, how an answer is put on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from penstock.api.context import RequestContext
from penstock.api.fetch_sessions import NO_SESSION, FetchSession, SessionPartition
from penstock.api.fetch_watch import FetchWatch
from penstock.model.errors import ApiError, ErrorCode, NotCached, ProtocolError, StorageError
from penstock.ports.disk import FileSlice
from penstock.replica.partition import Partition
from penstock.storage.lookups import Lookup
from penstock.wire.messages.fetch import EpochEndOffset, FetchRequest, PartitionData

READ_COMMITTED = 1
FIRST_FROM_FOLLOWERS = 11  # KIP-392: older consumers may read from the leader only
PARTITIONS_PER_STEP = 64
NOTHING: dict[SessionPartition, None] = {}
CallLater: TypeAlias = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class Found(NamedTuple):
    asked: SessionPartition
    data: PartitionData
    partition: Partition | None


class Reading(Protocol):
    """What a fetch needs of its handler."""

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def now_ms(self) -> int: ...

    def find(self, version: int, asked: SessionPartition) -> Partition: ...

    def preferred_replica(self, partition: Partition, rack: str, offset: int) -> int | None: ...

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether a throttled follower gets nothing for now."""
        ...

    def finish(self, fetch: Fetch) -> None:
        """Answer a fetch that was parked."""
        ...


class Fetch:
    """A `replica.partition.Waiter` while it is parked without a watch."""

    __slots__ = (
        "_handler",
        "_is_notified",
        "_is_parked",
        "_later",
        "_may_wait",
        "_news",
        "_parked_on",
        "_timer",
        "_wake_wide",
        "asked",
        "bytes_found",
        "cold",
        "ctx",
        "found",
        "is_incremental",
        "is_urgent",
        "is_wide",
        "max_bytes",
        "min_bytes",
        "rack",
        "read_committed",
        "replica_epoch",
        "replica_id",
        "session",
        "session_id",
        "watch",
    )

    def __init__(self, handler: Reading, ctx: RequestContext, request: FetchRequest, max_bytes: int) -> None:
        self._handler = handler
        self.ctx = ctx
        self.min_bytes = request.min_bytes
        self.max_bytes = max_bytes
        self._may_wait = request.max_wait_ms > 0 and request.min_bytes > 0
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.rack = request.rack_id
        self.replica_id, self.replica_epoch = request.replica_id, -1
        if request.replica_state is not None:
            self.replica_id = request.replica_state.replica_id
            self.replica_epoch = request.replica_state.replica_epoch
        self.asked: Sequence[SessionPartition] = ()
        self.session: FetchSession | None = None
        self.session_id = NO_SESSION
        self.is_incremental = False
        self.watch: FetchWatch | None = None
        self.found: dict[SessionPartition, Found] = {}
        self.cold: list[SessionPartition] = []  # where they lie has to be looked up in a worker
        self.bytes_found = 0
        self.is_wide = False  # looked at and answered in turns of its own
        self.is_urgent = False  # an error, say: not worth waiting for bytes
        self._is_parked = False
        self._wake_wide: Callable[[], None] | None = None
        self._parked_on: dict[Partition, SessionPartition] = {}
        self._news: dict[SessionPartition, None] = {}
        self._later: dict[SessionPartition, None] = NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._is_notified = False

    @property
    def is_of_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def manner(self) -> tuple[bool, bool]:
        """What decides, beside what was asked of a partition, what is found there."""
        return self.read_committed, self.ctx.version < FIRST_FROM_FOLLOWERS

    @property
    def is_satisfied(self) -> bool:
        return self.bytes_found >= self.min_bytes or self.is_urgent or bool(self.cold)

    # -- reading --------------------------------------------------------------------------------------------------

    def first_look(self, asked: Collection[SessionPartition]) -> None:
        """At what was asked, and at what has news; a follower's fetch says what it holds, once."""
        for one in self._first_of(asked):
            self._look_at(one, is_first=True)

    def first_look_in_steps(self, asked: Collection[SessionPartition]) -> Generator[None, None, None]:
        """The same. It listens from now on, because there will be other turns before it is parked."""
        yield from self._look(self._first_of(asked), is_first=True, listens=True)

    def _first_of(self, asked: Collection[SessionPartition]) -> Collection[SessionPartition]:
        if self.watch is None:
            return asked
        news = self.watch.take_all()
        if not self.is_of_follower:
            return news | dict.fromkeys(asked)
        if not news:
            return asked
        first = dict.fromkeys(asked)
        self._later = {one: None for one in news if one not in first}
        return first | self._later

    def _look(
        self, asked: Iterable[SessionPartition], *, is_first: bool = False, listens: bool = False
    ) -> Generator[None, None, None]:
        for at, one in enumerate(asked, 1):
            self._look_at(one, is_first=is_first, listens=listens)
            if not at % PARTITIONS_PER_STEP:
                yield

    def _look_at(self, one: SessionPartition, *, is_first: bool = False, listens: bool = False) -> None:
        """What it brings takes the place of what was found before."""
        if is_first and one in self._later:
            is_first = False  # a follower did not ask for it: that says nothing about what it holds
        before = self.found.get(one)
        if before is not None and isinstance(before.data.records, FileSlice):
            self.bytes_found -= before.data.records.size
        partition: Partition | None = None
        try:
            partition = self._handler.find(self.ctx.version, one)
            if self.watch is not None:
                self.watch.watch(one, partition)
            elif listens:
                self._listen_to(partition, one)
            if is_first and self._has_all(partition, one):
                return
            if self.is_of_follower:
                data = self._read_for_follower(partition, one, is_first=is_first)
            else:
                data = self._read_for_consumer(partition, one)
        except NotCached:
            assert partition is not None, "somebody has read from it"
            data = self._data(partition, one)
            self._stands(one)
            self.cold.append(one)
        except (ApiError, StorageError) as error:
            data = error_data(one.index, ErrorCode(error.code))
            self._stands(one)
            self.is_urgent = True
        if isinstance(data.records, FileSlice):
            self._stands(one)
            self.bytes_found += data.records.size
        self.found[one] = Found(one, data, partition)

    def _stands(self, asked: SessionPartition) -> None:
        """A consumer may ask for it again without a word."""
        if self.watch is not None and not self.is_of_follower:
            self.watch.standing[asked] = None

    def look_at_news(self) -> Generator[None, None, None]:
        yield from self._look(self._take_news())

    def _take_news(self) -> Collection[SessionPartition]:
        if self.watch is not None:
            return self.watch.take_news()
        news, self._news = self._news, {}
        return news

    def look_once_more(self) -> Generator[None, None, None]:
        """Before the answer: at what a consumer is about to be given."""
        yield from self._look(self._offered())

    def _offered(self) -> list[SessionPartition]:
        if self.is_of_follower:
            return []
        return [one for one, found in self.found.items() if found.data.records]

    def take_cold(self) -> list[tuple[SessionPartition, Partition, Lookup]]:
        """The lookups that need a worker, to be followed by `look_at`."""
        cold, self.cold = self.cold, []
        lookups: list[tuple[SessionPartition, Partition, Lookup]] = []
        for one in cold:
            partition = self.found[one].partition
            assert partition is not None
            try:
                lookup = partition.lookup(
                    one.fetch_offset,
                    min(one.max_bytes, self.max_bytes),
                    to_end=self.is_of_follower,
                    read_committed=self.read_committed,
                )
            except StorageError as error:
                self.put_error(one, partition, ErrorCode(error.code))
            else:
                lookups.append((one, partition, lookup))
        return lookups

    def look_at(self, asked: Iterable[SessionPartition]) -> Generator[None, None, None]:
        yield from self._look(asked)

    def leave_cold(self) -> None:
        """For the next fetch: the answer is sent without."""
        for one in self.cold:
            self._put_back(one)
        self.cold = []

    def put_error(self, asked: SessionPartition, partition: Partition, code: ErrorCode) -> None:
        self.found[asked] = Found(asked, error_data(asked.index, code), partition)
        self._stands(asked)
        self.is_urgent = True

    def _read_for_consumer(self, partition: Partition, asked: SessionPartition) -> PartitionData:
        partition.check_leader_epoch(asked.current_leader_epoch)
        if self.ctx.version < FIRST_FROM_FOLLOWERS:
            partition.check_leading()
        data = self._data(partition, asked)
        if self.rack:
            preferred = self._handler.preferred_replica(partition, self.rack, asked.fetch_offset)
            if preferred is not None:
                data.preferred_read_replica = preferred
                self._stands(asked)
                self.is_urgent = True
                return data
        if self._diverges(partition, asked, data):
            self._stands(asked)
            return data
        limit = min(asked.max_bytes, self.max_bytes - self.bytes_found)
        if limit > 0 or not self.bytes_found:
            found = partition.read(asked.fetch_offset, max(limit, 0), read_committed=self.read_committed)
            # Only the first batch of a response may exceed the limits.
            if found is not None and (found.size <= limit or not self.bytes_found):
                data.records = found
            elif found is not None:
                self._stands(asked)
        else:
            partition.check_online()
            partition.check_offset(asked.fetch_offset)
            self._stands(asked)
        return data

    def _has_all(self, partition: Partition, asked: SessionPartition) -> bool:
        """A follower that keeps pace asks for what is not there yet: noted, and looked at when there is news."""
        if (
            not self._may_wait
            or self.watch is None
            or self.watch.is_eager
            or asked.fetch_offset != partition.log.log_end_offset
            or asked.last_fetched_epoch != partition.leader_epoch
            or asked.current_leader_epoch != partition.leader_epoch
            or asked.sent_log_start_offset != partition.log.log_start_offset
            or asked.had_error
        ):
            return False
        partition.check_follower(self.replica_id, asked.current_leader_epoch)
        partition.check_online()
        self._take_note(partition, asked)
        if asked.sent_high_watermark != partition.high_watermark:
            self.watch.put_back(asked)  # told with the next answer
        return True

    def _read_for_follower(self, partition: Partition, asked: SessionPartition, *, is_first: bool) -> PartitionData:
        partition.check_leader_epoch(asked.current_leader_epoch)
        partition.check_follower(self.replica_id, asked.current_leader_epoch)
        data = self._data(partition, asked)
        if self._diverges(partition, asked, data):
            return data
        partition.check_online()
        partition.check_offset(asked.fetch_offset)
        if is_first:
            self._take_note(partition, asked)
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
        if 0 <= asked.sent_log_start_offset < data.log_start_offset:
            self.is_urgent = True  # somebody waits for records to be deleted everywhere
        if self.watch is not None and self.watch.is_eager and asked.sent_high_watermark < data.high_watermark:
            self.is_urgent = True
        if self._handler.is_held_back(partition, self.replica_id):
            self._put_back(asked)
            return data
        limit = min(asked.max_bytes, self.max_bytes - self.bytes_found)
        if limit > 0 or not self.bytes_found:
            found = partition.read_to_end(asked.fetch_offset, max(limit, 0))
            if found is not None and (found.size <= limit or not self.bytes_found):
                data.records = found
            elif found is not None:
                self._put_back(asked)
        elif asked.fetch_offset < partition.log.log_end_offset:
            self._put_back(asked)
        return data

    def _put_back(self, asked: SessionPartition) -> None:
        if self.watch is not None:
            self.watch.put_back(asked)

    def _take_note(self, partition: Partition, asked: SessionPartition) -> None:
        """What it asks for it has not got; what lies before, it has, and on durable topics says apart."""
        now_ms = self._handler.now_ms()
        if partition.is_durable:
            partition.follower_asked(self.replica_id, asked.log_start_offset, now_ms, self.replica_epoch)
        else:
            partition.follower_fetched(
                self.replica_id, asked.fetch_offset, asked.log_start_offset, now_ms, self.replica_epoch
            )

    def _data(self, partition: Partition, asked: SessionPartition) -> PartitionData:
        return PartitionData(
            partition_index=asked.index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=[] if self.read_committed else None,
        )

    def _diverges(self, partition: Partition, asked: SessionPartition, data: PartitionData) -> bool:
        """Whether the reader's log parts from ours before the offset it asks for: it is told where."""
        if asked.last_fetched_epoch < 0:
            return False
        epoch, end = partition.end_of_epoch(asked.last_fetched_epoch)
        if epoch < 0 or end < 0:  # an answer that names neither says that nothing diverges
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known of epoch {asked.last_fetched_epoch}")
        if epoch == asked.last_fetched_epoch and end >= asked.fetch_offset:
            return False
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
        self.is_urgent = True
        return True

    # -- parking --------------------------------------------------------------------------------------------------

    def park(self, timeout_s: float, call_later: CallLater) -> None:
        self._is_parked = True
        connection = self.ctx.connection
        if self.watch is not None:
            self.watch.wake = self._wake
        else:
            for one, _, partition in self.found.values():
                if partition is not None:
                    self._listen_to(partition, one)
        if self.is_of_follower:
            connection.when_blocked = self._make_way
        self._timer = call_later(timeout_s, self._complete)
        connection.when_closed[self.unpark] = None

    def _listen_to(self, partition: Partition, asked: SessionPartition) -> None:
        (partition.tail_waiters if self.is_of_follower else partition.waiters)[self] = None
        self._parked_on[partition] = asked

    def _make_way(self, api_key: int) -> None:
        """A follower has more to ask for: it gets what there is."""
        self._handler.call_soon(self._complete)

    def notify(self, source: Partition) -> None:
        """Something happened to a partition. Looked at once, after everything that happens this turn."""
        asked = self._parked_on.get(source)
        if asked is not None:
            self._news[asked] = None
            self._wake()

    def _wake(self) -> None:
        if self._wake_wide is not None:
            self._wake_wide()
        elif self._is_parked and not self._is_notified:
            self._is_notified = True
            self._handler.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_notified = False
        self._try(is_due=False)

    def _complete(self) -> None:
        self._try(is_due=True)

    def _try(self, *, is_due: bool) -> None:
        if not self._is_parked:
            return
        try:
            looked = self._take_news()
            for one in looked:
                self._look_at(one)
            if is_due or self.is_satisfied:
                for one in self._offered():
                    if one not in looked:
                        self._look_at(one)
                self.unpark()
                self._handler.finish(self)
        except BaseException:
            # A defect: this client must not wait for ever. The loop logs it.
            self.unpark()
            self.ctx.connection.abort(ProtocolError("internal error"))
            raise

    def unpark(self) -> None:
        self._is_parked = False
        self._wake_wide = None
        if self.watch is not None:
            self.watch.wake = None
        for partition in self._parked_on:
            partition.waiters.pop(self, None)
            partition.tail_waiters.pop(self, None)
        self._parked_on = {}
        if self.is_of_follower:
            self.ctx.connection.when_blocked = None
        self.ctx.connection.when_closed.pop(self.unpark, None)
        if self._timer is not None:
            self._timer.cancel()

    # -- parking, of a wide one -----------------------------------------------------------------------------------

    async def wait_in_turns(self, timeout_s: float, call_later: CallLater) -> bool:
        """What `park` is for others: looks are made in turns of their own. False: the client is gone.

        What it reads it has listened to since `first_look`.
        """
        connection = self.ctx.connection
        woken = asyncio.Event()
        is_due = self.is_of_follower and connection.is_blocked

        def due(api_key: int = 0) -> None:
            nonlocal is_due
            is_due = True
            woken.set()

        self._is_parked = True
        self._wake_wide = woken.set
        if self.watch is not None:
            self.watch.wake = woken.set
        if self.is_of_follower:
            connection.when_blocked = due
        self._timer = call_later(timeout_s, due)
        connection.when_closed[due] = None
        try:
            while True:
                await self.ctx.pace.finish(self.look_at_news())
                if connection.is_closed:
                    return False
                if is_due or self.is_satisfied:
                    break
                await woken.wait()
                woken.clear()
            await self.ctx.pace.finish(self.look_once_more())
            return not connection.is_closed
        finally:
            connection.when_closed.pop(due, None)
            self.unpark()


def error_data(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )
