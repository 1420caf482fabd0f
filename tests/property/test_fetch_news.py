"""A session that looks only at what has news answers as one that looks at everything would.

Two sessions of one broker get the same requests while the partitions go through the same life. One of them has its
watch taken away before every request, so it looks at all it remembers: that is the plain way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.api.context import RequestContext
from penstock.api.fetch.fetch_sessions import FetchSessions
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.traffic import Traffic
from penstock.config.broker import BrokerConfig
from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.records import BrokerRegistered, ConfigChanged, TopicCreated, TopicDeleted
from penstock.net.connection import Connection
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.wire.codec import RequestHeader
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from support.worlds.hosted import NOW_MS, HostedWorld

VERSION = 12
TOPICS = ("a", "b", "c")
PARTITIONS = 6
NEVER = str(2**63 - 1)


class Client:
    def __init__(self) -> None:
        self.is_closed = self.is_blocked = False
        self.when_closed: dict[Callable[[], None], None] = {}
        self.when_blocked: Callable[[int], None] | None = None
        self.listener_name = "PLAINTEXT"
        self.channel = SimpleNamespace(local=("127.0.0.1", 9092), peer=("127.0.0.1", 1))

    def hold(self) -> None:
        pass

    def reply(self, slot: int, parts: list[Any]) -> None:
        raise AssertionError("answered late")


class Broker(HostedWorld):
    """Leads some partitions, alone, and follows others."""

    def __init__(self) -> None:
        super().__init__({})
        broker, _ = BrokerConfig.load(None, {"log.dirs": "/data", "node.id": "1"})
        self.hosted.broker = broker
        self.hosted.host.node_id = 1
        self.ids = count(1)
        for broker_id in (1, 2):
            endpoints = {"PLAINTEXT": (f"h{broker_id}", 9092)}
            self.image.replay(BrokerRegistered(broker_id, 100 + broker_id, "00" * 16, endpoints, None, False))
        for name in TOPICS:
            self.create(name)
        sessions = count(1)
        self.fetch = FetchHandler(
            self.hosted,
            FetchSessions(100, lambda: next(sessions)),
            self.workers,
            asyncio.get_running_loop(),
            Traffic(),
            max_bytes=1 << 30,
        )

    def create(self, name: str) -> None:
        topic_id = next(self.ids).to_bytes(16, "big").hex()
        self.image.replay(TopicCreated(name, topic_id, ((1,),) * PARTITIONS))
        self.image.replay(ConfigChanged(2, name, {"flush.messages": NEVER}))
        self.hosted.topic_created(self.image.topics[name])

    async def delete(self, name: str) -> None:
        topic = self.image.topics[name]
        self.image.replay(TopicDeleted(topic.topic_id.hex()))
        await self.hosted.topic_deleted(name, topic.topic_id)

    def lead_by(self, name: str, index: int, leader: int) -> None:
        topic = self.image.topics[name]
        old = topic.partitions[index]
        epoch = old.leader_epoch + (leader != old.leader)
        replicas = tuple(dict.fromkeys((*old.replicas, leader)))
        topic.partitions[index] = PartitionState(index, replicas, leader, epoch, (leader,), old.partition_epoch + 1)
        self.hosted.partition_changed(topic, topic.partitions[index])


class Reader:
    def __init__(self, broker: Broker, *, is_plain: bool) -> None:
        self.broker = broker
        self.is_plain = is_plain
        self.client = Client()
        self.session_id, self.epoch = 0, 0

    async def ask(self, request: FetchRequest) -> FetchResponse:
        handler = self.broker.fetch
        if self.is_plain and self.session_id:
            handler.resolution.stop_watching(self.session_id)
        request.session_id, request.session_epoch = self.session_id, self.epoch
        ctx = RequestContext(cast(Connection, self.client), 0, memoryview(b""), RequestHeader(1, VERSION, 1, "test", 0))
        answer = handler.handle(ctx, request)
        response = answer if isinstance(answer, FetchResponse) else await cast(Any, answer)
        assert response.error_code == 0
        self.session_id = response.session_id
        self.epoch += 1
        return cast(FetchResponse, response)


def told(response: FetchResponse) -> dict[tuple[str, int], tuple[Any, ...]]:
    found: dict[tuple[str, int], tuple[Any, ...]] = {}
    for topic in response.responses:
        for one in topic.partitions:
            records = one.records if isinstance(one.records, bytes) else getattr(one.records, "read", lambda: b"")()
            place = topic.topic, one.partition_index
            assert place not in found
            found[place] = one.error_code, one.high_watermark, one.log_start_offset, records
    return found


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker()
        self.positions: dict[tuple[str, int], int] = {}

    async def live(self) -> None:
        """Something happens."""
        chance, broker = self.chance, self.broker
        name, index = chance.choice(TOPICS), chance.randrange(PARTITIONS)
        kind = chance.choice(("write",) * 6 + ("delete records", "move", "remake", "nothing"))
        if name not in broker.image.topics:
            broker.create(name)
            return
        partition = broker.hosted.by_name[name][index]
        if kind == "remake":
            await broker.delete(name)
        elif kind == "move":
            broker.lead_by(name, index, chance.choice((1, 1, 2)))
        elif partition is not None and partition.is_leader:
            if kind == "write":
                data = build_batch([Record(None, b"v", (), NOW_MS)])
                partition.append(read_header(data), data, NOW_MS)
                if partition.followers is not None:
                    end = partition.log.log_end_offset
                    partition.follower_fetched(2, end, 0, broker.hosted.host.now_ms(), 102)
            elif kind == "delete records" and partition.high_watermark:
                partition.delete_records(chance.randrange(partition.high_watermark + 1))

    def request(self, *, is_first: bool) -> FetchRequest:
        """As a consumer does: it often moves on behind the records that it got, and sometimes changes its mind."""
        chance = self.chance
        places = [(name, index) for name in TOPICS for index in range(PARTITIONS + 1)]
        forgotten: list[ForgottenTopic] = []
        if is_first:
            self.positions = dict.fromkeys(chance.sample(places, 12), 0)
            changed = dict(self.positions)
        else:
            changed = {place: self.positions[place] for place in self.positions if chance.random() < 0.1}
            for place in chance.sample(places, chance.choice((0, 0, 1))):
                changed[place] = self.positions[place] = chance.randrange(3)
            for place in chance.sample(sorted(self.positions), min(chance.choice((0, 0, 1)), len(self.positions))):
                del self.positions[place]
                changed.pop(place, None)
                forgotten.append(ForgottenTopic(topic=place[0], partitions=[place[1]]))
        topics = [
            FetchTopic(
                topic=name, partitions=[FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=900)]
            )
            for (name, at), offset in changed.items()
        ]
        return FetchRequest(topics=topics, forgotten_topics_data=forgotten, max_wait_ms=0, min_bytes=1)

    def move_on(self, found: dict[tuple[str, int], tuple[Any, ...]]) -> None:
        for place, (error, high_watermark, _, records) in found.items():
            if not error and records and place in self.positions and self.chance.random() < 0.8:
                self.positions[place] = high_watermark


@pytest.mark.parametrize("seed", range(60))
async def test_what_has_news_is_all_there_is_to_say(seed: int) -> None:
    world = World(seed)
    watching = Reader(world.broker, is_plain=False)
    plain = Reader(world.broker, is_plain=True)
    looks = [0, 0]
    hosted = world.broker.hosted
    find = hosted.get
    which = 0

    def counting(*asked: Any) -> Any:
        looks[which] += 1
        return find(*asked)

    hosted.get = counting  # type: ignore[method-assign]
    for turn in range(80):
        for _ in range(world.chance.randrange(3)):
            await world.live()
        state = world.chance.getstate()
        positions = dict(world.positions)
        answers = []
        for which, reader in enumerate((watching, plain)):  # noqa: B007
            world.chance.setstate(state)
            world.positions = dict(positions)
            answers.append(told(await reader.ask(world.request(is_first=turn == 0))))
        assert answers[0] == answers[1], f"request {turn}"
        world.move_on(answers[0])
    assert looks[0] < looks[1]


async def test_an_idle_session_looks_at_nothing() -> None:
    world = World(1)
    reader = Reader(world.broker, is_plain=False)
    asked = [
        FetchTopic(
            topic=name, partitions=[FetchPartition(partition=at, partition_max_bytes=900) for at in range(PARTITIONS)]
        )
        for name in TOPICS
    ]
    first = await reader.ask(FetchRequest(topics=asked, max_wait_ms=0, min_bytes=1))
    assert len(told(first)) == len(TOPICS) * PARTITIONS
    looked: list[Any] = []
    find = world.broker.hosted.get
    world.broker.hosted.get = lambda *asked: looked.append(asked) or find(*asked)  # type: ignore
    for _ in range(10):
        assert told(await reader.ask(FetchRequest(max_wait_ms=0, min_bytes=1))) == {}
    assert looked == []


async def test_no_partition_starves_behind_a_busy_one() -> None:
    """Each answer has room for one batch: those that got theirs go to the end."""
    world = World(2)
    broker, reader = world.broker, Reader(world.broker, is_plain=False)
    sizes = []
    for index in range(PARTITIONS):
        partition = broker.hosted.get("a", index)
        for _ in range(50):
            data = build_batch([Record(None, b"v", (), NOW_MS)])
            partition.append(read_header(data), data, NOW_MS)
            sizes.append(len(data))
    asked = [FetchPartition(partition=at, partition_max_bytes=sizes[0]) for at in range(PARTITIONS)]
    request = FetchRequest(
        topics=[FetchTopic(topic="a", partitions=asked)], max_wait_ms=0, min_bytes=1, max_bytes=sizes[0]
    )
    served: list[int] = []
    for _ in range(3 * PARTITIONS):
        found = told(await reader.ask(request))
        served += [place[1] for place, (_, _, _, records) in found.items() if records]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=sizes[0])
    assert served == [*range(PARTITIONS)] * 3


async def test_the_end_of_a_connection_ends_the_watch_and_not_the_session() -> None:
    world = World(3)
    reader = Reader(world.broker, is_plain=False)
    asked = [FetchPartition(partition=at, partition_max_bytes=900) for at in range(PARTITIONS)]
    await reader.ask(FetchRequest(topics=[FetchTopic(topic="a", partitions=asked)], max_wait_ms=0, min_bytes=1))
    partitions = [world.broker.hosted.get("a", at) for at in range(PARTITIONS)]
    assert all(partition.waiters for partition in partitions)
    for callback in list(reader.client.when_closed):
        callback()
    assert not any(partition.waiters for partition in partitions)
    assert not reader.client.when_closed
    data = build_batch([Record(None, b"v", (), NOW_MS)])
    partitions[4].append(read_header(data), data, NOW_MS)
    reader.client = Client()
    assert list(told(await reader.ask(FetchRequest(max_wait_ms=0, min_bytes=1)))) == [("a", 4)]


async def test_an_evicted_session_is_watched_no_more() -> None:
    world = World(4)
    world.broker.fetch.sessions._slots = 1
    reader = Reader(world.broker, is_plain=False)
    asked = [FetchPartition(partition=0, partition_max_bytes=900)]
    await reader.ask(FetchRequest(topics=[FetchTopic(topic="a", partitions=asked)], max_wait_ms=0, min_bytes=1))
    assert world.broker.hosted.get("a", 0).waiters
    assert world.broker.fetch.sessions._evict(now=1e9)
    assert not world.broker.hosted.get("a", 0).waiters
