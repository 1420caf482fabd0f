"""The produce lane against the general way: the same requests, byte for byte the same replies."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.dispatch import PIPELINED
from penstock.api.produce.produce_lane import ProduceLane
from penstock.config.broker import BrokerConfig
from penstock.config.gateway import CLOSED
from penstock.model.new_topic import NewTopic
from penstock.net.connection import Connection, ConnectionLimits
from penstock.node.node import Node, no_supervisor
from penstock.ports.channel import Part
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import recompress
from penstock.wire.apis import Api
from penstock.wire.codec import encode_request
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

NOW_MS = 1_700_000_000_000


class FixedClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class FakeChannel:
    peer = ("127.0.0.1", 1)
    local = ("127.0.0.1", 2)
    queued_bytes = 0

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False

    def send(self, parts: Iterable[Part]) -> None:
        for part in parts:
            assert isinstance(part, bytes)
            self.sent += part

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, *, drain: bool = False) -> None:
        self.is_closed = True


class Side:
    """A broker and one client connection, with or without the lane."""

    def __init__(self, directory: str, *, has_lane: bool, is_durable: bool) -> None:
        flush = "1" if is_durable else str(2**63 - 1)
        config, _ = BrokerConfig.load(
            None,
            {**CLOSED, "log.dirs": directory, "listeners": "PLAINTEXT://127.0.0.1:0"}
            | {"log.flush.interval.messages": flush},
        )
        self.node = Node(config, no_supervisor)
        self.node.clock = FixedClock()  # type: ignore[assignment]
        self.has_lane = has_lane
        self.channel = FakeChannel()
        self.lane_hits = 0

    async def start(self) -> None:
        await self.node.start()
        self.node.apis.produce._clock = FixedClock()
        for name in ("left", "right"):
            topic_id = bytes([7]) * 15 + name[:1].encode()
            self.node.controller.topics._new_topic_id = lambda topic_id=topic_id: topic_id  # type: ignore[method-assign]
            await self.node.controller.topics.create_topic(NewTopic(name, 2, 1, configs={"max.message.bytes": "2000"}))
        self.connection = Connection(
            asyncio.get_running_loop(),
            self.channel,
            self.node.apis.dispatcher,
            ConnectionLimits(1 << 20, 1000, PIPELINED),
            lambda connection, error: None,
        )

    def send(self, frame: bytes) -> None:
        if not self.has_lane:
            self.connection.shortcut = None
        rest = memoryview(frame)
        while rest and not self.channel.is_closed:
            buffer = self.connection.receive_buffer()
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self.connection.received(size)
            rest = rest[size:]
        if isinstance(self.connection.shortcut, ProduceLane):
            self.lane_hits = self.connection.shortcut.taken

    async def settle(self) -> None:
        idle = asyncio.Event()
        self.node.commit.when_idle(idle.set)
        await idle.wait()
        await asyncio.sleep(0.001)


def make_frame(chance: random.Random, version: int, sequences: dict[tuple[str, int], int]) -> bytes:
    topic = chance.choice(("left", "right", "right", "gone"))
    partition = chance.choice((0, 0, 1, 9))
    kind = chance.choice(
        ("plain",) * 6 + ("idempotent",) * 3 + ("gap", "large", "future", "corrupt", "control", "empty")
    )
    timestamp = NOW_MS + (10**9 if kind == "future" else -5)
    value = b"v" * (3000 if kind == "large" else chance.randrange(200))
    records = [Record(b"k", value, timestamp_ms=timestamp) for _ in range(chance.randrange(1, 4))]
    producer: dict[str, int] = {}
    if kind in ("idempotent", "gap"):
        known = sequences.get((topic, partition), 0)
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": known + (7 if kind == "gap" else 0)}
        if kind == "idempotent" and chance.random() < 0.8:  # else the next one repeats it
            sequences[topic, partition] = known + len(records)
    batch = build_batch(records, attributes=0x20 if kind == "control" else 0, **producer)
    if chance.random() < 0.3:
        batch = recompress(read_header(batch), batch, chance.choice((1, 2, 3, 4)))
    if kind == "corrupt":
        batch = batch[:-1] + bytes([batch[-1] ^ 1])
    if kind == "empty":
        batch = b""
    data = TopicProduceData(
        name=topic,
        topic_id=bytes([7]) * 15 + topic[:1].encode(),
        partition_data=[PartitionProduceData(index=partition, records=batch)],
    )
    request = ProduceRequest(acks=chance.choice((1, -1, -1)), timeout_ms=10_000, topic_data=[data])
    if chance.random() < 0.1:
        request.topic_data.append(data)
    parts, _ = encode_request(Api.PRODUCE, version, chance.randrange(2**31), "client", request)
    return b"".join(part for part in parts if isinstance(part, bytes))


async def compare(seed: int, version: int, is_durable: bool) -> int:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        sides = [
            Side(one, has_lane=False, is_durable=is_durable),
            Side(other, has_lane=True, is_durable=is_durable),
        ]
        chance = random.Random(seed)
        sequences: dict[tuple[str, int], int] = {}
        for side in sides:
            await side.start()
        for _ in range(60):
            frame = make_frame(chance, version, sequences)
            for side in sides:
                side.send(frame)
            if chance.random() < 0.05:  # a setting changes under the lane's feet
                for side in sides:
                    await side.node.controller.topics.change_config(
                        2, "left", lambda _: {"message.timestamp.type": "LogAppendTime"}, validate_only=False
                    )
            if chance.random() < 0.3:
                for side in sides:
                    await side.settle()
        for side in sides:
            await side.settle()
        general, lane = sides
        assert general.channel.sent == lane.channel.sent
        assert general.channel.sent
        assert general.channel.is_closed == lane.channel.is_closed
        for name in ("left", "right"):
            for a, b in zip(general.node.partitions.by_name[name], lane.node.partitions.by_name[name], strict=True):
                assert a.log.log_end_offset == b.log.log_end_offset
                assert a.high_watermark == b.high_watermark
        for side in sides:
            await side.node.stop()
        return lane.lane_hits


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), version=st.integers(8, 13), is_durable=st.booleans())
def test_lane_answers_as_the_general_way(seed: int, version: int, is_durable: bool) -> None:
    hits = asyncio.run(compare(seed, version, is_durable))
    if version < 9:
        assert hits == 0


def test_lane_is_really_taken() -> None:
    """Without this the comparison could pass by never taking the lane."""
    assert sum(asyncio.run(compare(seed, 9, False)) for seed in range(3)) > 10
