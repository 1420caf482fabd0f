from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.observability.channel import HEALTH, METRICS, BrokerReader, serve


async def test_pages_of_any_size_and_callers_who_share_one() -> None:
    ours, theirs = socket.socketpair()
    made = 0

    async def page() -> bytes:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return b"x" * 3_000_000 if made == 1 else b""

    serving = asyncio.create_task(serve(ours, {METRICS: page}))
    reader = BrokerReader(theirs)
    pages = await asyncio.wait_for(asyncio.gather(*(reader.page() for _ in range(5))), 10)
    assert {len(found) for found in pages} == {3_000_000}
    assert made == 1
    assert await asyncio.wait_for(reader.page(), 10) == b""
    serving.cancel()
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.page(), 10)


async def test_a_caller_who_hangs_up_leaves_the_stream_in_order() -> None:
    ours, theirs = socket.socketpair()
    numbers = iter(range(10))
    may_answer = asyncio.Event()

    async def page() -> bytes:
        await may_answer.wait()
        return b"%d" % next(numbers)

    serving = asyncio.create_task(serve(ours, {METRICS: page}))
    reader = BrokerReader(theirs)
    impatient = asyncio.create_task(reader.page())
    await asyncio.sleep(0.01)
    impatient.cancel()
    may_answer.set()
    assert await asyncio.wait_for(reader.page(), 10) == b"0"  # the page under way, not a second one
    assert await asyncio.wait_for(reader.page(), 10) == b"1"
    serving.cancel()


async def test_health_and_metrics_asked_for_at_once_are_not_mixed_up() -> None:
    ours, theirs = socket.socketpair()

    async def page() -> bytes:
        await asyncio.sleep(0)
        return b"metrics" * 100_000

    async def health() -> bytes:
        return b"health"

    serving = asyncio.create_task(serve(ours, {METRICS: page, HEALTH: health}))
    reader = BrokerReader(theirs)
    asked = asyncio.gather(reader.page(), reader.health(), reader.health(), reader.page())
    pages = await asyncio.wait_for(asked, 10)
    assert [found[:7] for found in pages] == [b"metrics", b"health", b"health", b"metrics"]
    serving.cancel()
