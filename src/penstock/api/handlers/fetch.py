"""Fetch (key 1), versions 4-18.

- Whole batches only, the first one even when it is larger than the limits (KIP-74). Payload
  leaves by sendfile: the bytes on disk are the bytes on the wire.
- Long poll: parked until min_bytes are readable, an error turns up, or max_wait is over.
- Sessions (KIP-227) for clients that ask for them.
- Data this process has not checked, or that is not in the page cache, is read and its
  checksums verified in a worker first. A damaged batch is CORRUPT_MESSAGE, never bytes.
- Fetches by followers (replica id >= 0) are served like a consumer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, TypeAlias

from penstock.api.context import RequestContext
from penstock.api.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    SessionPartition,
)
from penstock.api.traffic import Traffic
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError
from penstock.ports.disk import FileSlice
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.log import LogSlice
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

log = logging.getLogger(__name__)

READ_COMMITTED = 1
MAX_REPORTED = 1000
CallLater: TypeAlias = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class Fetch:
    """One fetch request under way; a `replica.partition.Waiter` while it is parked."""

    __slots__ = (
        "_handler",
        "_is_notified",
        "_parked_on",
        "_timer",
        "asked",
        "bytes_found",
        "ctx",
        "has_error",
        "is_incremental",
        "max_bytes",
        "min_bytes",
        "read_committed",
        "results",
        "session",
        "session_id",
    )

    def __init__(self, handler: FetchHandler, ctx: RequestContext, request: FetchRequest, max_bytes: int) -> None:
        self._handler = handler
        self.ctx = ctx
        self.min_bytes = request.min_bytes
        self.max_bytes = max_bytes
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.asked: Iterable[SessionPartition] = ()
        self.session: FetchSession | None = None
        self.session_id = NO_SESSION
        self.is_incremental = False
        self.results: list[tuple[SessionPartition, PartitionData, Partition | None]] = []
        self.bytes_found = 0
        self.has_error = False
        self._parked_on: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_notified = False

    def read(self) -> None:
        """Look at every partition once; fills `results`."""
        handler = self._handler
        self.results = []
        self.bytes_found = 0
        self.has_error = False
        budget = self.max_bytes
        for asked in self.asked:
            partition: Partition | None = None
            try:
                partition = handler.find(self.ctx.version, asked)
                data = self._read_one(partition, asked, budget)
            except (ApiError, StorageError) as error:
                data = _error(asked.index, ErrorCode(error.code))
                self.has_error = True
            found = data.records
            if isinstance(found, FileSlice):
                budget -= found.size
                self.bytes_found += found.size
            elif data.diverging_epoch is not None:
                self.has_error = True  # answered at once, like an error
            self.results.append((asked, data, partition))

    def _read_one(self, partition: Partition, asked: SessionPartition, budget: int) -> PartitionData:
        partition.check_leader_epoch(asked.current_leader_epoch)
        data = PartitionData(
            partition_index=asked.index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=[] if self.read_committed else None,
        )
        if asked.last_fetched_epoch >= 0:
            epoch, end = partition.log.epochs.end_offset_for(asked.last_fetched_epoch, partition.log.log_end_offset)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                return data
        limit = min(asked.max_bytes, budget)
        if limit > 0 or not self.bytes_found:
            found = partition.read(asked.fetch_offset, max(limit, 0), read_committed=self.read_committed)
            # Only the first batch of a response may exceed the limits.
            if found is not None and (found.size <= limit or not self.bytes_found):
                data.records = found
        else:
            partition.check_online()
            partition.check_offset(asked.fetch_offset)
        return data

    # -- parking ------------------------------------------------------------------------

    def park(self, timeout_s: float, call_later: CallLater) -> None:
        for _, _, partition in self.results:
            if partition is not None:
                partition.waiters[self] = None
                self._parked_on.append(partition)
        self._timer = call_later(timeout_s, self._complete)
        self.ctx.connection.when_closed[self._unpark] = None

    def notify(self, partition: Partition) -> None:
        """Something happened to a partition. Looked at once, after everything that happens this turn."""
        if not self._is_notified:
            self._is_notified = True
            self._handler.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._is_notified = False
        self._try(is_due=False)

    def _complete(self) -> None:
        self._try(is_due=True)

    def _try(self, *, is_due: bool) -> None:
        if not self._parked_on:
            return
        try:
            self.read()
            if is_due or self.bytes_found >= self.min_bytes or self.has_error:
                self._finish()
        except BaseException:
            # A defect: this client must not wait for ever. The loop logs it.
            self._unpark()
            self.ctx.connection.abort(ProtocolError("internal error"))
            raise

    def _finish(self) -> None:
        self._unpark()
        answer = self._handler.answer(self)
        if isinstance(answer, FetchResponse):
            self.ctx.respond(answer)
        else:
            self._handler.run(self.ctx, answer)

    def _unpark(self) -> None:
        for partition in self._parked_on:
            partition.waiters.pop(self, None)
        self._parked_on = []
        self.ctx.connection.when_closed.pop(self._unpark, None)
        if self._timer is not None:
            self._timer.cancel()


class FetchHandler:
    api: ClassVar = Api.FETCH
    min_version: ClassVar = 4
    max_version: ClassVar = 18

    def __init__(
        self,
        partitions: HostedPartitions,
        sessions: FetchSessions,
        workers: Workers,
        loop: asyncio.AbstractEventLoop,
        traffic: Traffic,
        *,
        max_bytes: int,
    ) -> None:
        self._partitions = partitions
        self.sessions = sessions
        self._workers = workers
        self._loop = loop
        self._max_bytes = max_bytes
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._reported: dict[str, None] = {}
        self._traffic = traffic
        self.cold_reads = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def find(self, version: int, asked: SessionPartition) -> Partition:
        if version >= 13:
            return self._partitions.get_by_id(asked.topic_id, asked.index)
        return self._partitions.get(asked.topic, asked.index)

    def handle(
        self, ctx: RequestContext, request: FetchRequest
    ) -> FetchResponse | Coroutine[Any, Any, FetchResponse] | None:
        fetch = Fetch(self, ctx, request, min(request.max_bytes, self._max_bytes))
        self._resolve_session(fetch, request)
        fetch.read()
        if request.max_wait_ms <= 0 or fetch.bytes_found >= request.min_bytes or fetch.has_error or not fetch.results:
            return self.answer(fetch)
        fetch.park(request.max_wait_ms / 1000, self._loop.call_later)
        return None

    def _resolve_session(self, fetch: Fetch, request: FetchRequest) -> None:
        asked = [
            SessionPartition(
                topic.topic,
                topic.topic_id,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
            for topic in request.topics
            for partition in topic.partitions
        ]
        fetch.asked = asked
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self.sessions.close(request.session_id)
            if request.session_epoch == INITIAL_EPOCH:
                session = self.sessions.start(uses_topic_ids=fetch.ctx.version >= 13, now=self._loop.time())
                if session is not None:
                    for partition in asked:
                        session.put(partition)
                    fetch.session, fetch.session_id = session, session.id
            return
        session = self.sessions.use(
            request.session_id, request.session_epoch, uses_topic_ids=fetch.ctx.version >= 13, now=self._loop.time()
        )
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.forget(forgotten.topic, forgotten.topic_id, index)
        for partition in asked:
            session.put(partition)
        fetch.session, fetch.session_id, fetch.is_incremental = session, session.id, True
        fetch.asked = list(session.partitions.values())

    # -- answering ----------------------------------------------------------------------

    def answer(self, fetch: Fetch) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        cold = [
            (data, partition)
            for _, data, partition in fetch.results
            if isinstance(data.records, LogSlice)
            and partition is not None
            and not (
                partition.log.slice_is_trusted(data.records)
                and data.records.file.is_cached(data.records.position, data.records.size)
            )
        ]
        return self._warm_and_respond(fetch, cold) if cold else self._respond(fetch)

    async def _warm_and_respond(self, fetch: Fetch, cold: list[tuple[PartitionData, Partition]]) -> FetchResponse:
        """Read and check the cold slices in a worker; the pages stay in the cache for sendfile."""
        self.cold_reads += 1
        slices = [(partition.log, data.records) for data, partition in cold if isinstance(data.records, LogSlice)]

        def verify() -> list[LogSlice | StorageError]:
            outcomes: list[LogSlice | StorageError] = []
            for owner, piece in slices:
                try:
                    outcomes.append(owner.verify_slice(piece))
                except StorageError as error:
                    outcomes.append(error)
                except OSError as error:
                    outcomes.append(StorageError(f"cannot read {piece!r}: {error}"))
            return outcomes

        outcomes = await self._workers.run(verify)
        for (data, partition), outcome in zip(cold, outcomes, strict=True):
            if isinstance(outcome, LogSlice):
                partition.log.mark_trusted(outcome)
                data.records = outcome
            else:
                self._report(partition, outcome)
                failed = _error(data.partition_index, outcome.code)
                data.error_code, data.records = failed.error_code, failed.records
        return self._respond(fetch)

    def _report(self, partition: Partition, failure: StorageError) -> None:
        """Once for each damaged batch; clients ask for it again and again."""
        if str(failure) not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported[str(failure)] = None
            log.critical("%r: %s; it is not served", partition, failure)

    def _respond(self, fetch: Fetch) -> FetchResponse:
        response = FetchResponse(session_id=fetch.session_id)
        session = fetch.session
        current: FetchableTopicResponse | None = None
        for asked, data, partition in fetch.results:
            if partition is not None and isinstance(data.records, LogSlice):
                traffic = self._traffic.of(partition.topic)
                traffic.bytes_out += data.records.size
                traffic.records_out += data.records.next_offset - data.records.offset
            if session is not None and not _is_news(asked, data) and fetch.is_incremental:
                continue
            if session is not None:
                asked.sent_high_watermark = data.high_watermark
                asked.sent_log_start_offset = data.log_start_offset
                asked.had_error = data.error_code != 0
                if data.records:
                    session.move_to_end(asked)
            if current is None or current.topic != asked.topic or current.topic_id != asked.topic_id:
                current = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id)
                response.responses.append(current)
            current.partitions.append(data)
        return response

    def run(self, ctx: RequestContext, answer: Coroutine[Any, Any, FetchResponse]) -> None:
        """Finish a parked fetch that turned out cold."""

        async def finish() -> None:
            try:
                ctx.respond(await answer)
            except BaseException:
                ctx.connection.abort(ProtocolError("internal error"))
                raise

        task = asyncio.ensure_future(finish())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def refuse(self, request: FetchRequest, code: ErrorCode, message: str | None) -> FetchResponse:
        return FetchResponse(error_code=code)


def _is_news(asked: SessionPartition, data: PartitionData) -> bool:
    return bool(
        data.records
        or data.error_code
        or asked.had_error
        or data.high_watermark != asked.sent_high_watermark
        or data.log_start_offset != asked.sent_log_start_offset
        or data.diverging_epoch is not None
    )


def _error(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )
