"""ListOffsets (key 2), versions 1-11.

Timestamps: -1 latest (the high watermark, or the last stable offset for read_committed), -2 earliest, -3 the record
with the largest timestamp, -4 earliest on local disk (the same, there is no tiered storage), -5 and -6 about tiered
storage (nothing there: -1). Any other: the first record at or after it, or -1.

acks=1 is acknowledged before the flush that makes the record visible to consumers. A request for such records waits for
their flush, so that a client finds all acknowledged records.

Only the leader serves this request. A new leader serves it only when its high watermark has reached the offset where it
took over: until then it may be behind that of the last leader (OFFSET_NOT_AVAILABLE, before version 5
LEADER_NOT_AVAILABLE). For followers (replica id >= 0) the latest is the log end offset; a debugging replica (-2) may
ask any replica.

For lookups by time (also -3) the disk is read and a batch decoded in workers, never on the event loop. A client has one
batch decoded at a time.

Unlike Kafka, only the first 100,000 records of a batch are read. If the record lies beyond them, the result is the
first record of its batch, with the batch's largest timestamp: a consumer that starts there misses nothing. For -3 it is
the last offset of the batch. Kafka reads the whole batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.produce.flushes import flushes_under_way
from penstock.api.produce.produced_batch import is_small
from penstock.api.turns import ITEMS_PER_TURN, drained
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.workers import RecordWorkers, Workers
from penstock.records import examine
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.segments.timestamps import TimeLookup, TimestampOffset
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1
DEBUGGING_REPLICA = -2
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5
MAX_TRIES = 3  # if segments are cut, deleted or swapped during the search
SEARCHED_AT_ONCE = 32  # partitions, by one worker: others need it too


class ListOffsetsHandler:
    api: ClassVar = Api.LIST_OFFSETS
    min_version: ClassVar = 1
    max_version: ClassVar = 11
    bounds: ClassVar = WIDE

    def __init__(self, partitions: HostedPartitions, workers: Workers, records: RecordWorkers) -> None:
        self._partitions = partitions
        self._workers = workers
        self._records = records

    def handle(
        self, ctx: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        if not _is_narrow(request):
            return self._answer_in_turns(ctx, request)
        flushes = drained(self._flushes(request))
        if not flushes and not any(_is_by_time(asked) for topic in request.topics for asked in topic.partitions):
            return drained(self._answer(ctx, request, []))
        return self._answer_after(flushes, ctx, request)

    async def _answer_in_turns(self, ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return await self._answer_after(await ctx.pace.finish(self._flushes(request)), ctx, request)

    def _flushes(self, request: ListOffsetsRequest) -> Generator[None, None, list[asyncio.Future[ErrorCode]]]:
        """Flushes under way that the answer must wait for. In steps."""
        flushes: list[asyncio.Future[ErrorCode]] = []
        done = 0
        for topic in request.topics:
            done += 1
            if done >= ITEMS_PER_TURN:
                done = 0
                yield
            for first in range(0, len(topic.partitions), ITEMS_PER_TURN):
                some = topic.partitions[first : first + ITEMS_PER_TURN]
                flushes += flushes_under_way(self._partitions, ((topic.name, one.partition_index) for one in some))
                done += len(some)
                if done >= ITEMS_PER_TURN:
                    done = 0
                    yield
        return flushes

    async def _answer_after(
        self, flushes: list[asyncio.Future[ErrorCode]], ctx: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        for flush in flushes:
            await flush
        searches: list[_Search] = []
        response = await ctx.pace.finish(self._answer(ctx, request, searches))
        for first in range(0, len(searches), SEARCHED_AT_ONCE):
            await self._search(ctx, request, searches[first : first + SEARCHED_AT_ONCE])
        return response

    def _answer(
        self, ctx: RequestContext, request: ListOffsetsRequest, searches: list[_Search]
    ) -> Generator[None, None, ListOffsetsResponse]:
        """Everything but lookups by time, which are added to `searches`. In steps."""
        topics: list[ListOffsetsTopicResponse] = []
        done = 0
        for topic in request.topics:
            done += 1
            if done >= ITEMS_PER_TURN:
                done = 0
                yield
            seen: set[int] = set()
            results: list[ListOffsetsPartitionResponse] = []
            for asked in topic.partitions:
                result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
                try:
                    if asked.partition_index in seen:
                        raise ApiError(ErrorCode.INVALID_REQUEST)
                    seen.add(asked.partition_index)
                    partition = self._partitions.get(topic.name, asked.partition_index)
                    _check(partition, asked, request)
                    if _is_by_time(asked):
                        searches.append(_begin(ctx.version, partition, asked, result))
                    else:
                        _look_up(ctx.version, partition, asked, request, result)
                except (ApiError, StorageError) as error:
                    _refuse(ctx, result, error)
                results.append(result)
                done += 1
                if done >= ITEMS_PER_TURN:
                    done = 0
                    yield
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
        return ListOffsetsResponse(topics=topics)

    async def _search(self, ctx: RequestContext, request: ListOffsetsRequest, searches: list[_Search]) -> None:
        """In rounds: a worker finds the next batch of each, another process decodes batches with many records."""
        open_ones = searches
        while open_ones:
            await self._workers.run(partial(_look_for_batches, open_ones))
            for search in open_ones:
                if search.batch is not None:
                    await self._look_into(search)
            open_ones = [search for search in open_ones if not search.is_over]
        again: list[_Search] = []
        for search in searches:
            try:
                if not search.partition.log.reader.end_time_lookup(search.lookup) and search.tries < MAX_TRIES:
                    again.append(_begin(ctx.version, search.partition, search.asked, search.result, search.tries + 1))
                    continue
                if search.failure is not None:
                    raise search.failure
                _check(search.partition, search.asked, request)  # the leader may have changed meanwhile
                _take(search, request)
            except (ApiError, StorageError) as error:
                _refuse(ctx, search.result, error)
        if again:
            await self._search(ctx, request, again)

    async def _look_into(self, search: _Search) -> None:
        batch, search.batch = search.batch, None
        assert batch is not None
        lookup = search.lookup
        try:
            if lookup.timestamp is None:
                found: tuple[int, int] | None = await self._records.look_up(examine.largest, batch)
            else:
                found = await self._records.look_up(examine.first_at_or_after, batch, *lookup.question)
        except StorageError as error:
            search.failure, search.is_over = error, True
        else:
            if found is not None:
                search.found, search.is_over = TimestampOffset(*found), True

    def refuse(self, request: ListOffsetsRequest, code: ErrorCode, message: str | None) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


@dataclass(slots=True)
class _Search:
    """One lookup by time. It is over when it has found a record, has no more batches, or has failed."""

    partition: Partition
    asked: ListOffsetsPartition
    result: ListOffsetsPartitionResponse
    lookup: TimeLookup
    tries: int = 1
    batch: bytes | None = None  # to be decoded by another process
    found: TimestampOffset | None = None
    failure: StorageError | None = None
    is_over: bool = False


def _is_narrow(request: ListOffsetsRequest) -> bool:
    left = ITEMS_PER_TURN
    for topic in request.topics:
        left -= 1 + len(topic.partitions)
        if left < 0:
            return False
    return True


def _is_by_time(asked: ListOffsetsPartition) -> bool:
    return asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP


def _check(partition: Partition, asked: ListOffsetsPartition, request: ListOffsetsRequest) -> None:
    partition.check_online()
    partition.check_leader_epoch(asked.current_leader_epoch)
    if request.replica_id != DEBUGGING_REPLICA:
        partition.check_leading()


def _begin(
    version: int,
    partition: Partition,
    asked: ListOffsetsPartition,
    result: ListOffsetsPartitionResponse,
    tries: int = 1,
) -> _Search:
    if version < _SINCE_VERSION.get(asked.timestamp, 0):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    lookup = partition.log.reader.time_lookup(None if asked.timestamp == MAX_TIMESTAMP else asked.timestamp)
    return _Search(partition, asked, result, lookup, tries)


def _look_for_batches(searches: list[_Search]) -> None:
    """Runs in a worker thread. A small uncompressed batch is examined right there."""
    for search in searches:
        try:
            while not search.is_over and search.batch is None:
                batch = search.lookup.next_batch()
                if batch is None:
                    search.is_over = True
                elif is_small(memoryview(batch)):
                    search.found = search.lookup.examine(batch)
                    search.is_over = search.found is not None
                else:
                    search.batch = batch
        except StorageError as error:
            search.failure, search.is_over = error, True
        except OSError as error:
            search.failure, search.is_over = StorageError(f"cannot read {search.partition!r}: {error}"), True


def _limit(partition: Partition, request: ListOffsetsRequest) -> tuple[int, bool]:
    """The end of the records visible to the client, and whether that is behind the last leader's."""
    if request.replica_id >= 0:
        return partition.log.log_end_offset, False
    read_committed = request.isolation_level == READ_COMMITTED
    limit = partition.last_stable_offset if read_committed else partition.high_watermark
    return limit, partition.is_leader and partition.high_watermark < partition.epoch_start_offset


def _take(search: _Search, request: ListOffsetsRequest) -> None:
    found = search.found
    if found is None:
        return
    limit, is_behind = _limit(search.partition, request)
    if found.offset < limit:
        search.result.timestamp, search.result.offset = found
        search.result.leader_epoch = search.partition.log.epochs.epoch_of(found.offset)
    elif is_behind:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _refuse(ctx: RequestContext, result: ListOffsetsPartitionResponse, error: ApiError | StorageError) -> None:
    result.error_code = error.code
    if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and ctx.version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
        result.error_code = ErrorCode.LEADER_NOT_AVAILABLE


def _look_up(
    version: int,
    partition: Partition,
    asked: ListOffsetsPartition,
    request: ListOffsetsRequest,
    result: ListOffsetsPartitionResponse,
) -> None:
    timestamp = asked.timestamp
    if version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    log = partition.log
    limit, is_behind = _limit(partition, request)
    if timestamp == LATEST:
        if is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        result.offset = limit
        result.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset
        epoch = log.epochs.epoch_of(log.log_start_offset)
        result.leader_epoch = epoch if epoch >= 0 else partition.leader_epoch
        return
