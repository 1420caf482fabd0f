"""The consumers as members of a group: sharing, commits, rebalance callbacks, replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Literal

import pytest

from penstock.sdk import (
    Admin,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    GroupNotEmpty,
    Record,
    TopicPartition,
    UnknownGroup,
)
from penstock.sdk.consumer_config import Strategy
from penstock.testing import Broker

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker that does not wait for more members before a group's first assignment."""
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap_servers


def fill(servers: str, topic: str, partitions: int = 1, records: int = 10) -> None:
    """Record n has value n, timestamp START_MS + n seconds, in partition n % partitions."""
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, partitions)
    produce(servers, topic, partitions, range(records))


def produce(servers: str, topic: str, partitions: int, numbers: range) -> None:
    with BlockingProducer(servers) as producer:
        for number in numbers:
            producer.submit(topic, str(number), partition=number % partitions, timestamp_ms=START_MS + number * 1000)


async def take(consumer: Consumer, count: int) -> list[str]:
    values: list[str] = []
    async with asyncio.timeout(30):
        async for record in consumer:
            values.append(record.text())
            if len(values) == count:
                break
    return values


async def eventually(ask: Callable[[], Awaitable[object]], expected: object) -> bool:
    for _ in range(400):
        if await ask() == expected:
            return True
        await asyncio.sleep(0.05)
    return False


async def committed(servers: str, group: str) -> dict[TopicPartition, int]:
    async with Admin(servers) as admin:
        return await admin.group_offsets(group)


async def test_the_group_goes_on_where_it_stopped(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)
    async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic)
        assert await take(consumer, 4) == ["0", "1", "2", "3"]
    assert await committed(servers, group) == {TopicPartition(topic, 0): 4}
    async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic)
        assert await take(consumer, 6) == [str(number) for number in range(4, 10)]


async def test_a_record_whose_handling_failed_comes_again(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)

    async def fail_at_the_fourth() -> None:
        async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
            await consumer.subscribe(topic)
            async for record in consumer:
                assert record.offset < 3

    with pytest.raises(AssertionError):
        await fail_at_the_fourth()
    assert await committed(servers, group) == {TopicPartition(topic, 0): 3}


async def test_automatic_commits_cover_what_is_done_and_no_more(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)
    options = {"group": group, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
    async with Consumer(servers, **options) as consumer:  # type: ignore[arg-type]
        await consumer.subscribe(topic)
        await take(consumer, 3)
        await asyncio.sleep(1.2)
        await anext(consumer)  # says that the third is done; more than a second went by, so it is stored
        assert await eventually(lambda: committed(servers, group), {TopicPartition(topic, 0): 3})
        metrics = consumer.metrics()
        assert metrics.rebalances == 1


async def test_manual_commits(servers: str, topic: str, group: str) -> None:
    fill(servers, topic, partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(servers, group=group, auto_commit=False, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic)
        records: list[Record] = []
        async with asyncio.timeout(30):
            while len(records) < 10:
                records += await consumer.poll()
        assert await committed(servers, group) == {}
        third = [record for record in records if record.partition == 0][2]
        await consumer.commit(third)
        assert await consumer.committed(zero, one) == {zero: 3, one: None}
        await consumer.commit({one: 2})
        await consumer.commit()
        assert await consumer.committed() == {zero: 5, one: 5}
        await consumer.poll(timeout_s=0.2)
        assert consumer.metrics().commits == 3
    assert await committed(servers, group) == {zero: 5, one: 5}


@pytest.mark.parametrize(
    ("strategy", "protocol"),
    [
        ("range", "classic"),
        ("round-robin", "classic"),
        ("sticky", "classic"),
        ("cooperative-sticky", "classic"),
        ("range", "consumer"),
        ("sticky", "consumer"),
    ],
)
async def test_two_members_share_and_one_takes_over(
    servers: str, topic: str, group: str, strategy: Strategy, protocol: Literal["classic", "consumer"]
) -> None:
    fill(servers, topic, partitions=6, records=0)

    def member() -> Consumer:
        return Consumer(servers, group=group, strategy=strategy, group_protocol=protocol, auto_offset_reset="earliest")

    seen: list[str] = []

    async def read(consumer: Consumer, until: Callable[[], bool]) -> None:
        while not until():
            seen.extend(record.text() for record in await consumer.poll(timeout_s=0.1))

    async with asyncio.timeout(60), member() as first:
        async with member() as second:
            await first.subscribe(topic)
            await second.subscribe(topic)
            readers = [asyncio.create_task(read(one, lambda: len(seen) >= 60)) for one in (first, second)]
            while True:
                held = [await first.assignment(), await second.assignment()]
                if sorted(map(len, held)) == [3, 3]:
                    break
                await asyncio.sleep(0.05)
            assert sorted(held[0] + held[1]) == [TopicPartition(topic, number) for number in range(6)]
            await asyncio.to_thread(produce, servers, topic, 6, range(60))
            await asyncio.gather(*readers)
        await asyncio.to_thread(produce, servers, topic, 6, range(60, 120))
        await read(first, lambda: len(seen) >= 120)
        assert len(await first.assignment()) == 6
    assert sorted(map(int, seen)) == list(range(120))  # each once: what the second did was committed when it left


async def test_callbacks_may_be_coroutines_that_use_the_consumer(servers: str, topic: str, group: str) -> None:
    fill(servers, topic, partitions=2)
    told: list[tuple[str, list[TopicPartition]]] = []
    async with Consumer(servers, group=group, auto_commit=False) as consumer:

        async def on_assign(partitions: list[TopicPartition]) -> None:
            told.append(("assigned", partitions))
            await consumer.seek(3)

        async def on_revoke(partitions: list[TopicPartition]) -> None:
            told.append(("revoked", partitions))
            await consumer.commit()

        await consumer.subscribe(topic, on_assign=on_assign, on_revoke=on_revoke)
        assert sorted(await take(consumer, 4)) == ["6", "7", "8", "9"]
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert [(what, sorted(partitions)) for what, partitions in told] == [("assigned", both), ("revoked", both)]
    assert await committed(servers, group) == dict.fromkeys(both, 5)


async def test_plain_callbacks_and_their_exceptions(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)

    def on_assign(partitions: list[TopicPartition]) -> None:
        raise RuntimeError("not these")

    async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic, on_assign=on_assign)
        with pytest.raises(RuntimeError, match="not these"):
            await take(consumer, 1)
        assert await take(consumer, 1) == ["0"]  # the assignment holds all the same


@pytest.mark.parametrize("place", ["earliest", "offset", "time"])
async def test_a_group_is_reset_and_reads_again(servers: str, topic: str, group: str, place: str) -> None:
    fill(servers, topic)
    async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic)
        await take(consumer, 10)
        async with Admin(servers) as admin:
            with pytest.raises(GroupNotEmpty, match="1 active member"):
                await admin.reset_offsets(group, await consumer.assignment(), "earliest")
    moment = datetime.fromtimestamp(START_MS / 1000 + 6.5, UTC)
    to, first = {"earliest": ("earliest", 0), "offset": (4, 4), "time": (moment, 7)}[place]
    async with Admin(servers) as admin:
        (change,) = await admin.reset_offsets(group, [TopicPartition(topic, 0)], to)  # type: ignore[arg-type]
    assert (change.old, change.new) == (10, first)
    async with Consumer(servers, group=group) as consumer:
        await consumer.subscribe(topic)
        assert await take(consumer, 10 - first) == [str(number) for number in range(first, 10)]


async def test_seek_to_what_is_committed(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)
    async with Consumer(servers, group=group, auto_commit=False, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(topic)
        await take(consumer, 2)
        await consumer.commit()
        await take(consumer, 5)
        await consumer.seek("committed")
        assert await take(consumer, 1) == ["2"]


async def test_admin_on_groups(servers: str, topic: str, group: str) -> None:
    fill(servers, topic, partitions=2)
    async with Admin(servers) as admin:
        with pytest.raises(UnknownGroup):
            await admin.group(group)
        async with Consumer(servers, group=group, client_id="me", instance_id="one", strategy="range") as consumer:
            await consumer.subscribe(topic)
            async with asyncio.timeout(30):
                while not await consumer.assignment():
                    await consumer.poll(timeout_s=0.1)
            described = await admin.group(group)
            assert (described.state, described.protocol, described.assignor) == ("Stable", "classic", "range")
            (member,) = described.members
            assert (member.client_id, member.instance_id, member.host) == ("me", "one", "127.0.0.1")
            assert member.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
            assert described.names() == {member.member_id: "one"}
            await consumer.commit({TopicPartition(topic, 0): 2})
            zero, one = await admin.lag(group)
            assert (zero.committed, zero.end_offset, zero.lag, zero.member_id) == (2, 5, 3, member.member_id)
            assert (one.committed, one.lag) == (None, None)
            assert group in [listing.group_id for listing in await admin.groups()]


def test_blocking_member(servers: str, topic: str, group: str) -> None:
    fill(servers, topic)
    assigned: list[TopicPartition] = []
    with BlockingConsumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic, on_assign=assigned.extend)
        values: list[str] = []
        deadline = time.monotonic() + 30
        while len(values) < 10 and time.monotonic() < deadline:
            values += [record.text() for record in consumer.poll()]
    assert values == [str(number) for number in range(10)]
    assert assigned == [TopicPartition(topic, 0)]
    with BlockingAdmin(servers) as admin:
        assert admin.group_offsets(group) == {TopicPartition(topic, 0): 10}


async def test_a_pattern(servers: str, topic: str, group: str) -> None:
    fill(servers, f"{topic}-a")
    fill(servers, f"{topic}-b")
    async with Consumer(servers, group=group, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(f"^{topic}-.*")
        assert len(await take(consumer, 20)) == 20
