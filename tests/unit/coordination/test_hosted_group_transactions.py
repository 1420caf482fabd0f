"""Offsets of transactions on their partition: written as the producer's, fenced like its records, ended by markers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_hosted_shard import World

from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    EndTransactionReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    TransactionalCommitRequest,
    Unstable,
)
from penstock.core.shard.exchange import Marker, Producer
from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import BatchHeader, iterate_headers

PRODUCER = 7
DONE = CommitReply(ErrorCode.NONE, (ErrorCode.NONE,))


class Transactional(World):
    def guard(self, epoch: int = 0, *, raises_epoch: bool = True) -> Producer:
        producers = self.partition.log.producers
        return Producer(PRODUCER, epoch, producers.begin_verification(PRODUCER, -1, epoch, raises_epoch=raises_epoch))

    def commit_in(self, producer: Producer, offset: int) -> asyncio.Future[Any]:
        commit = CommitRequest("g", "", None, -1, (OffsetToCommit("t", 0, offset, -1, ""),))
        request = TransactionalCommitRequest(commit, producer)
        return self.hosted.call(lambda shard, token, now_ms: shard.commit_transactional(request, token, now_ms))

    def end(self, epoch: int = 1, *, commit: bool = True, version: int = 2, coordinator: int = 0) -> Any:
        marker = Marker(PRODUCER, epoch, commit, coordinator, version)
        return self.hosted.call(lambda shard, token, now_ms: shard.end_transaction(marker, token, now_ms))

    async def stable(self) -> object:
        request = FetchOffsetsRequest("g", {"t": (0,)}, require_stable=True)
        reply = await self.hosted.call(lambda shard, token, now_ms: shard.fetch_offsets(request, token, now_ms))
        return reply.topics["t"][0]

    async def flushed(self, asked: asyncio.Future[Any]) -> Any:
        self.flusher.let_go()
        return await asked

    async def reload(self) -> None:
        self.flusher.let_go()
        self.hosted.stop(ErrorCode.NOT_COORDINATOR)
        self.open()
        await self.loaded()

    def headers(self) -> list[BatchHeader]:
        piece = self.partition.log.reader.read(0, 1 << 20)
        assert piece is not None
        return [header for _, header in iterate_headers(piece.read(), "log")]


async def code_of(asked: asyncio.Future[Any]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        await asked
    return refused.value.code


async def test_offsets_are_written_as_the_producers_and_the_marker_ends_them() -> None:
    world = Transactional()
    committing = world.commit_in(world.guard(), 5)
    await asyncio.sleep(0)
    assert not committing.done(), "nor is this told before it is stable"
    assert await world.flushed(committing) == DONE
    assert await world.offset() is None
    assert await world.stable() is Unstable.OFFSET
    assert await world.flushed(world.end()) == EndTransactionReply()
    assert await world.offset() == 5
    data, marker = world.headers()
    assert (data.producer_id, data.producer_epoch, data.is_transactional, data.is_control) == (PRODUCER, 0, True, False)
    assert (marker.producer_id, marker.producer_epoch, marker.is_control) == (PRODUCER, 1, True)
    await world.reload()
    assert await world.offset() == 5


async def test_a_transaction_that_is_open_at_a_load_goes_on() -> None:
    world = Transactional()
    await world.flushed(world.commit_in(world.guard(), 5))
    await world.reload()
    assert await world.stable() is Unstable.OFFSET
    open_here = world.guard()
    assert open_here.guard is None, "the coordinator of transactions need not be asked again"
    await world.flushed(world.commit_in(open_here, 6))
    await world.flushed(world.end())
    assert await world.offset() == 6


async def test_an_abort_leaves_what_counted_before() -> None:
    world = Transactional()
    await world.flushed(world.commit(3))
    await world.flushed(world.commit_in(world.guard(), 5))
    await world.flushed(world.end(commit=False))
    assert (await world.offset(), world.hosted.shard.pending.has_group("g")) == (3, False)
    await world.reload()
    assert (await world.offset(), world.hosted.shard.pending.has_group("g")) == (3, False)


async def test_a_commit_that_was_not_verified_is_refused() -> None:
    world = Transactional()
    assert await code_of(world.commit_in(Producer(PRODUCER, 0), 5)) is ErrorCode.INVALID_TXN_STATE
    assert world.partition.log.log_end_offset == 0
    assert not world.hosted.shard.pending


async def test_a_commit_that_was_verified_before_the_marker_comes_too_late() -> None:
    """Else it would open a transaction that nobody ends."""
    world = Transactional()
    early = world.guard(raises_epoch=False)
    await world.flushed(world.end(0, version=1))
    assert await code_of(world.commit_in(early, 5)) is ErrorCode.INVALID_TXN_STATE
    assert not world.hosted.shard.pending


async def test_a_producer_with_an_old_epoch_is_fenced() -> None:
    world = Transactional()
    await world.flushed(world.commit_in(world.guard(), 5))
    await world.flushed(world.end())
    with pytest.raises(ApiError) as refused:
        world.guard(0)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await code_of(world.commit_in(Producer(PRODUCER, 0), 6)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await world.offset() == 5


async def test_a_marker_that_comes_again_ends_nothing_of_the_next_transaction() -> None:
    world = Transactional()
    await world.flushed(world.commit_in(world.guard(), 5))
    await world.flushed(world.end())
    await world.flushed(world.commit_in(world.guard(1), 6))
    assert await world.flushed(world.end()) == EndTransactionReply()
    assert await world.stable() is Unstable.OFFSET
    assert len(world.headers()) == 3
    await world.flushed(world.end(2))
    assert await world.offset() == 6


async def test_a_marker_that_is_there_already_is_confirmed_when_it_is_stable() -> None:
    world = Transactional()
    await world.flushed(world.commit_in(world.guard(), 5))
    first, again = world.end(), world.end()
    await asyncio.sleep(0)
    assert not first.done()
    assert not again.done()
    world.flusher.let_go()
    assert await asyncio.gather(first, again) == [EndTransactionReply()] * 2
    assert len(world.headers()) == 2


async def test_markers_that_are_refused_change_nothing() -> None:
    world = Transactional()
    await world.flushed(world.end(3, coordinator=5))
    await world.flushed(world.commit_in(world.guard(3), 5))
    assert await code_of(world.end(2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await code_of(world.end(4, coordinator=4)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await world.stable() is Unstable.OFFSET


async def test_a_marker_that_cannot_be_written_ends_nothing() -> None:
    world = Transactional()
    await world.flushed(world.commit_in(world.guard(), 5))
    world.fail_next_write()
    assert await code_of(world.end()) is ErrorCode.NOT_COORDINATOR
    assert await world.stable() is Unstable.OFFSET
    await world.flushed(world.end())
    assert await world.offset() == 5
