"""Produce, fetch and their kin on partitions with several replicas: who is answered, with what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.api.context import RequestContext
from penstock.api.fetch.fetch_sessions import FetchSessions
from penstock.api.handler import Handler
from penstock.api.handlers.delete_records import DeleteRecordsHandler
from penstock.api.handlers.fetch import FetchHandler
from penstock.api.handlers.list_offsets import ListOffsetsHandler
from penstock.api.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from penstock.api.handlers.produce import ProduceHandler
from penstock.api.request_times import RequestTimes
from penstock.api.traffic import Traffic
from penstock.config.broker import BrokerConfig
from penstock.coordination.verification import Verifier
from penstock.core.metadata.image import BrokerState, PartitionState
from penstock.core.metadata.records import ConfigChanged, TopicCreated
from penstock.core.partition.followers import RACK_AWARE_SELECTOR
from penstock.model.errors import ErrorCode
from penstock.net.connection import Connection
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from penstock.sim.machine.threads import SimRecordWorkers
from penstock.wire.codec import RequestHeader, decode, read_response_header
from penstock.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.primitives import Message
from support.worlds.hosted import NOW_MS, HostedWorld

NEVER = str(2**63 - 1)
T, U = bytes([7] * 16), bytes([8] * 16)
ADDRESSES = {1: ("one", 9092), 2: ("two", 9092), 3: ("three", 9092)}


class Client:
    """One connection; answers come in the order of their leaving."""

    made = count(1)

    def __init__(self) -> None:
        self.number = next(self.made)
        self.is_hung_up = False
        self.is_peer = True
        self.when_closed: dict[Callable[[], None], None] = {}
        self.when_blocked: Callable[[int], None] | None = None
        self.shortcut = None
        self.listener_name = "PLAINTEXT"
        self.channel = SimpleNamespace(local=("127.0.0.1", 9092), peer=("127.0.0.1", 1))
        self.answers: list[bytes] = []

    def reply(self, slot: int, parts: list[Any]) -> None:
        self.answers.append(b"".join(part if isinstance(part, bytes) else part.read() for part in parts))

    def abort(self, error: Exception | None = None) -> None:
        if error is not None:
            raise error
        self.is_hung_up = True

    def close(self) -> None:
        for callback in list(self.when_closed):
            callback()


class Broker(HostedWorld):
    """Broker 1 of three, with one topic of two partitions, and another of one."""

    def __init__(self, overrides: dict[str, str] | None = None, settings: dict[str, str] | None = None) -> None:
        super().__init__({})
        broker, _ = BrokerConfig.load(None, {"log.dirs": "/data", "node.id": "1", **(settings or {})})
        self.hosted.broker = broker
        self.hosted.host.node_id = 1
        for broker_id in (1, 2, 3):
            self.image.brokers[broker_id] = BrokerState(
                broker_id, 100 + broker_id, bytes(16), {"PLAINTEXT": ADDRESSES[broker_id]}, f"rack{broker_id}", False
            )
        for name, topic_id, partitions in (("t", T, 2), ("u", U, 1)):
            self.image.replay(TopicCreated(name, topic_id.hex(), ((1, 2, 3),) * partitions))
            self.image.replay(ConfigChanged(2, name, {"flush.messages": NEVER, **(overrides or {})}))
            self.hosted.topic_created(self.image.topics[name])
        loop = asyncio.get_running_loop()
        traffic, times = Traffic(), RequestTimes(self.clock)
        ids = count(1)
        where = lambda broker_id, ctx: ADDRESSES.get(broker_id)  # noqa: E731
        self.fetch = FetchHandler(
            self.hosted,
            FetchSessions(1, lambda: next(ids)),
            self.workers,
            loop,
            traffic,
            max_bytes=1 << 20,
            endpoint_of=where,
        )
        self.records = SimRecordWorkers(self.workers)
        nobody = cast(Verifier, None)  # nothing here is transactional
        self.produce = ProduceHandler(self.hosted, self.clock, self.records, traffic, times, nobody, endpoint_of=where)

    @property
    def partition(self) -> Partition:
        return self.hosted.get("t", 0)

    def lead_by(self, leader: int, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        topic = self.image.topics["t"]
        old = topic.partitions[0]
        epoch = old.leader_epoch + (leader != old.leader)
        topic.partitions[0] = PartitionState(0, (1, 2, 3), leader, epoch, isr, old.partition_epoch + 1)
        self.hosted.partition_changed(topic, topic.partitions[0])

    def fill(self, topic: str = "t", index: int = 0, value: bytes = b"v") -> None:
        partition = self.hosted.get(topic, index)
        data = build_batch([Record(None, value, (), NOW_MS)])
        partition.append(read_header(data), data, NOW_MS)

    def commit(self, offset: int) -> None:
        for replica in (2, 3):
            self.partition.follower_fetched(replica, offset, 0, self.hosted.host.now_ms(), 100 + replica)


def ask(handler: Handler, client: Client, request: Message, version: int) -> Any:
    """The response if it comes at once, else None: it will be in `client.answers`."""
    ctx = RequestContext(
        cast(Connection, client), 0, memoryview(b""), RequestHeader(int(handler.api), version, 1, "test", 0)
    )
    outcome = handler.handle(ctx, request)
    if outcome is None or isinstance(outcome, Message):
        return outcome
    return asyncio.ensure_future(outcome)


def late(client: Client, kind: type[Message], api_key: int, version: int) -> Any:
    (data,) = client.answers
    client.answers = []
    frame = memoryview(data)[4:]
    _, offset = read_response_header(api_key, version, frame)
    return decode(kind, version, frame[offset:])


def fetch_of(
    *asked: tuple[bytes, int, int],
    replica: int = -1,
    session: tuple[int, int] = (0, -1),
    forgotten: tuple[tuple[bytes, int], ...] = (),
    epoch: int = -1,
    last_epoch: int = -1,
    log_start: int = 0,
    **options: Any,
) -> FetchRequest:
    topics = [
        FetchTopic(
            topic_id=topic_id,
            partitions=[
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=1 << 20,
                    current_leader_epoch=epoch,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=log_start,
                )
            ],
        )
        for topic_id, index, offset in asked
    ]
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=100 + replica) if replica >= 0 else None,
        topics=topics,
        session_id=session[0],
        session_epoch=session[1],
        forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=[index]) for topic_id, index in forgotten],
        **{"max_wait_ms": 60_000, "min_bytes": 1, **options},
    )


def data_of(response: FetchResponse) -> dict[tuple[bytes, int], Any]:
    return {(topic.topic_id, one.partition_index): one for topic in response.responses for one in topic.partitions}


class TestFollowers:
    async def test_they_read_to_the_end_and_what_they_ask_for_says_what_they_have(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        response = ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2), 17)
        assert data_of(response)[T, 0].records
        assert broker.partition.high_watermark == 0
        assert ask(broker.fetch, client, fetch_of((T, 0, 1), replica=2), 17) is None
        assert ask(broker.fetch, Client(), fetch_of((T, 0, 1), replica=3), 17) is None
        assert broker.partition.high_watermark == 1
        client.close()

    async def test_an_append_answers_a_parked_follower_and_not_a_consumer(self) -> None:
        broker, follower, consumer = Broker(), Client(), Client()
        assert ask(broker.fetch, follower, fetch_of((T, 0, 0), replica=2), 17) is None
        assert ask(broker.fetch, consumer, fetch_of((T, 0, 0)), 17) is None
        broker.fill()
        broker.fill()
        await asyncio.sleep(0)
        assert data_of(late(follower, FetchResponse, 1, 17))[T, 0].records
        assert consumer.answers == []
        broker.commit(2)
        await asyncio.sleep(0)
        assert data_of(late(consumer, FetchResponse, 1, 17))[T, 0].high_watermark == 2

    async def test_on_durable_topics_a_fetch_says_nothing_of_what_is_stable(self) -> None:
        broker, client = Broker({"flush.messages": "1"}), Client()
        broker.fill()
        for replica in (2, 3):
            ask(broker.fetch, client, fetch_of((T, 0, 1), replica=replica), 17)
        assert broker.partition.high_watermark == 0
        broker.commit(1)
        assert broker.partition.high_watermark == 1

    async def test_what_was_long_under_way_on_an_older_connection_is_no_news(self) -> None:
        broker, before, now = Broker(), Client(), Client()
        broker.fill()
        assert ask(broker.fetch, now, fetch_of((T, 0, 1), replica=2), 17) is None
        assert ask(broker.fetch, before, fetch_of((T, 0, 0), replica=2), 17) is None
        assert (before.is_hung_up, now.is_hung_up) == (True, False)
        assert broker.partition.followers is not None
        assert broker.partition.followers.by_id[2].end_offset == 1
        other = Client()
        assert ask(broker.fetch, other, fetch_of((T, 0, 1), replica=3), 17) is None
        assert not other.is_hung_up
        now.close()

    async def test_strangers_and_those_of_another_epoch_are_told_so(self) -> None:
        broker, client = Broker(), Client()
        for replica, epoch, code in (
            (9, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (9, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (2, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            response = ask(broker.fetch, client, fetch_of((T, 0, 0), replica=replica, epoch=epoch), 17)
            assert data_of(response)[T, 0].error_code == code
        broker.lead_by(2)
        broker.lead_by(1)
        response = ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2, epoch=1), 17)
        assert data_of(response)[T, 0].error_code == ErrorCode.FENCED_LEADER_EPOCH

    async def test_a_log_that_parted_from_ours_is_told_where(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        broker.lead_by(2)
        broker.lead_by(1)
        broker.fill()
        response = ask(broker.fetch, client, fetch_of((T, 0, 5), replica=2, epoch=2, last_epoch=1), 17)
        diverging = data_of(response)[T, 0].diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 1)
        assert broker.partition.followers is not None
        assert broker.partition.followers.by_id[2].end_offset == -1, "what it has is not what we have"

    async def test_an_epoch_that_no_leader_had_yet_is_out_of_range(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        response = ask(broker.fetch, client, fetch_of((T, 0, 1), replica=2, epoch=0, last_epoch=9), 17)
        assert data_of(response)[T, 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    async def test_a_session_looks_only_at_what_has_news(self) -> None:
        broker, client = Broker(), Client()
        first = ask(broker.fetch, client, fetch_of((T, 0, 0), (T, 1, 0), (U, 0, 0), replica=2, session=(0, 0)), 17)
        assert first is None
        broker.fill("u")
        await asyncio.sleep(0)
        opened = late(client, FetchResponse, 1, 17)
        assert set(data_of(opened)) == {(T, 0), (T, 1), (U, 0)}, "a full fetch is answered in full"
        looked: list[tuple[bytes, int]] = []
        find = broker.hosted.get_by_id

        def counting(topic_id: bytes, index: int) -> Partition:
            looked.append((topic_id, index))
            return find(topic_id, index)

        broker.hosted.get_by_id = counting  # type: ignore[method-assign]
        session = opened.session_id
        broker.fill("t", 1)
        again = ask(broker.fetch, client, fetch_of((U, 0, 1), replica=2, session=(session, 1)), 17)
        assert looked == [(U, 0), (T, 1)]
        assert set(data_of(again)) == {(T, 1)}, "an append between two fetches is not missed"
        looked.clear()
        assert ask(broker.fetch, client, fetch_of((T, 1, 1), replica=2, session=(session, 2)), 17) is None
        assert looked == [(T, 1)]
        broker.fill()
        await asyncio.sleep(0)
        assert set(data_of(late(client, FetchResponse, 1, 17))) == {(T, 0)}
        assert looked == [(T, 1), (T, 0)]
        nothing = fetch_of((T, 0, 1), replica=2, session=(session, 3), forgotten=((U, 0),), max_wait_ms=0)
        ask(broker.fetch, client, nothing, 17)
        broker.fill("u")
        assert ask(broker.fetch, client, fetch_of(replica=2, session=(session, 4)), 17) is None
        client.close()
        assert not broker.partition.tail_waiters
        assert not broker.partition.waiters
        assert len(broker.fetch.sessions) == 0

    async def test_a_session_hears_of_the_high_watermark_with_the_next_answer(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        opened = ask(broker.fetch, client, fetch_of((T, 0, 0), (T, 1, 0), replica=2, session=(0, 0)), 17)
        session = opened.session_id
        assert ask(broker.fetch, client, fetch_of((T, 0, 1), replica=2, session=(session, 1)), 17) is None
        broker.commit(1)
        await asyncio.sleep(0)
        assert client.answers == []
        assert client.when_blocked is not None
        client.when_blocked(0x7004)  # it has more to ask for
        await asyncio.sleep(0)
        assert data_of(late(client, FetchResponse, 1, 17))[T, 0].high_watermark == 1

    async def test_one_that_begins_anew_leaves_no_session_behind(self) -> None:
        """As one does whose only partition had to wait; else every append would tell all that it ever began."""
        broker, client, other = Broker(), Client(), Client()
        ask(broker.fetch, other, fetch_of((T, 0, 0), replica=3, session=(0, 0), max_wait_ms=0), 17)
        for _ in range(5):
            opened = ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2, session=(0, 0), max_wait_ms=0), 17)
        assert len(broker.fetch.sessions) == len(broker.partition.tail_waiters) == 2
        assert ask(broker.fetch, client, fetch_of(replica=2, session=(opened.session_id, 1)), 17) is None
        broker.fill()
        await asyncio.sleep(0)
        assert set(data_of(late(client, FetchResponse, 1, 17))) == {(T, 0)}
        client.close()
        assert len(broker.fetch.sessions) == 1
        other.close()
        assert len(broker.fetch.sessions) == 0
        assert not client.when_closed

    async def test_losing_leadership_answers_a_parked_follower(self) -> None:
        broker, client = Broker(), Client()
        assert ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2, session=(0, 0)), 17) is None
        broker.lead_by(3)
        await asyncio.sleep(0)
        response = late(client, FetchResponse, 1, 17)
        data = data_of(response)[T, 0]
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (3, 1)
        (node,) = response.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (3, "three", 9092, "rack3")

    async def test_throttled_ones_wait_unless_they_are_in_sync(self) -> None:
        broker, client = Broker({"leader.replication.throttled.replicas": "*"}), Client()
        broker.hosted.broker = BrokerConfig.load(
            None, {"log.dirs": "/data", "node.id": "1", "leader.replication.throttled.rate": "1"}
        )[0]
        broker.lead_by(1, isr=(1, 2))
        for _ in range(3):
            broker.fill()
        assert data_of(ask(broker.fetch, client, fetch_of((T, 0, 0), replica=3, max_wait_ms=0), 17))[T, 0].records
        assert not data_of(ask(broker.fetch, client, fetch_of((T, 0, 0), replica=3, max_wait_ms=0), 17))[T, 0].records
        assert data_of(ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2, max_wait_ms=0), 17))[T, 0].records


class TestConsumers:
    async def test_a_follower_serves_up_to_its_high_watermark(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        broker.fill()
        broker.commit(1)
        broker.lead_by(2)
        now = fetch_of((T, 0, 0), max_wait_ms=0)
        data = data_of(ask(broker.fetch, client, now, 13))[T, 0]
        assert data.high_watermark == 1
        assert read_header(data.records).next_offset == 1
        ahead = data_of(ask(broker.fetch, client, fetch_of((T, 0, 2), max_wait_ms=0), 13))[T, 0]
        assert (ahead.error_code, bool(ahead.records)) == (0, False)
        gone = data_of(ask(broker.fetch, client, fetch_of((T, 0, 3), max_wait_ms=0), 13))[T, 0]
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    async def test_old_consumers_read_from_the_leader_only(self) -> None:
        broker, client = Broker(), Client()
        broker.lead_by(2)
        request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])])
        (topic,) = ask(broker.fetch, client, request, 10).responses
        assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.parametrize(
        ("rack", "offset", "isr", "preferred"),
        [
            ("rack2", 1, (1, 2, 3), 2),
            ("rack2", 2, (1, 2, 3), -1),
            ("rack2", 1, (1, 3), -1),
            ("rack1", 1, (1, 2, 3), -1),
            ("elsewhere", 1, (1, 2, 3), -1),
            ("", 1, (1, 2, 3), -1),
        ],
    )
    async def test_a_follower_in_the_rack_that_has_the_offset_is_named(
        self, rack: str, offset: int, isr: tuple[int, ...], preferred: int
    ) -> None:
        broker, client = Broker(settings={"replica.selector.class": RACK_AWARE_SELECTOR}), Client()
        broker.fill()
        broker.fill()
        broker.commit(1)
        broker.lead_by(1, isr)
        request = fetch_of((T, 0, offset), rack_id=rack, max_wait_ms=0)
        data = data_of(ask(broker.fetch, client, request, 13))[T, 0]
        assert (data.error_code, data.preferred_read_replica) == (0, preferred)

    async def test_without_the_selector_nobody_is_named(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        broker.commit(1)
        data = data_of(ask(broker.fetch, client, fetch_of((T, 0, 0), rack_id="rack2"), 13))[T, 0]
        assert data.preferred_read_replica == -1
        assert data.records


def produce_of(acks: int = -1, **producer: int) -> ProduceRequest:
    data = build_batch([Record(None, b"v", (), NOW_MS)], **producer)
    entry = PartitionProduceData(index=0, records=memoryview(data))
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name="t", partition_data=[entry])])


class TestProducers:
    async def test_whoever_does_not_lead_says_who_does(self) -> None:
        broker, client = Broker(), Client()
        broker.lead_by(2)
        response = ask(broker.produce, client, produce_of(), 12)
        entry = response.responses[0].partition_responses[0]
        assert entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (entry.current_leader.leader_id, entry.current_leader.leader_epoch) == (2, 1)
        assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "two")]
        old = ask(broker.produce, client, produce_of(), 9)
        assert old.responses[0].partition_responses[0].current_leader is None
        assert old.node_endpoints == []

    @pytest.mark.parametrize(
        "code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    )
    async def test_acks_all_waits_for_the_replicas(self, code: ErrorCode) -> None:
        broker, client = Broker({"min.insync.replicas": "2"}), Client()
        assert ask(broker.produce, client, produce_of(), 12) is None
        assert client.answers == []
        if code is ErrorCode.NONE:
            broker.commit(1)
        elif code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            broker.lead_by(3)
        else:
            broker.lead_by(1, isr=(1,))
        response = late(client, ProduceResponse, 0, 12)
        entry = response.responses[0].partition_responses[0]
        assert entry.error_code == code
        assert (entry.current_leader is not None) == (code is ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def test_too_few_in_sync_is_said_before_anything_is_written(self) -> None:
        broker, client = Broker({"min.insync.replicas": "2"}), Client()
        broker.lead_by(1, isr=(1,))
        response = ask(broker.produce, client, produce_of(), 12)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert broker.partition.log.log_end_offset == 0
        written = ask(broker.produce, client, produce_of(acks=1), 12)
        assert written.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    async def test_what_follows_a_refused_first_batch_does_not_come_before_it(self) -> None:
        broker, client = Broker({"min.insync.replicas": "2"}), Client()

        def produced(sequence: int) -> int:
            request = produce_of(acks=-1, producer_id=7, producer_epoch=0, base_sequence=sequence)
            answer = ask(broker.produce, client, request, 12)
            return int(answer.responses[0].partition_responses[0].error_code)

        broker.lead_by(1, isr=(1,))
        assert produced(0) == ErrorCode.NOT_ENOUGH_REPLICAS
        broker.lead_by(1)
        assert produced(1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert broker.partition.log.log_end_offset == 0


class TestOffsets:
    async def latest(self, broker: Broker, version: int = 9, timestamp: int = -1, replica: int = -1) -> tuple[int, int]:
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=replica, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        handler = ListOffsetsHandler(broker.hosted, broker.workers, broker.records)
        response = ask(handler, Client(), request, version)
        if isinstance(response, asyncio.Future):
            response = await response
        result = response.topics[0].partitions[0]
        return result.error_code, result.offset

    async def test_a_new_leader_does_not_show_less_than_the_last_one_may_have(self) -> None:
        broker = Broker()
        broker.fill()
        broker.lead_by(2)
        assert await self.latest(broker) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        broker.lead_by(1)
        assert await self.latest(broker) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await self.latest(broker, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await self.latest(broker, timestamp=NOW_MS) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await self.latest(broker, timestamp=-2) == (0, 0)
        assert await self.latest(broker, replica=2) == (0, 1)
        broker.commit(1)
        assert await self.latest(broker) == (0, 1)
        broker.fill()
        assert await self.latest(broker) == (0, 1), "not what is not committed"

    async def test_epochs_end_by_the_leader_alone(self) -> None:
        broker = Broker()
        broker.fill()
        broker.lead_by(2)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
        handler = OffsetForLeaderEpochHandler(broker.hosted)
        refused = (await ask(handler, Client(), request, 4)).topics[0].partitions[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.lead_by(1)
        found = (await ask(handler, Client(), request, 4)).topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 1)


class TestDeleteRecords:
    def request(self, timeout_ms: int) -> DeleteRecordsRequest:
        asked = DeleteRecordsPartition(partition_index=0, offset=1)
        return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=timeout_ms)

    async def test_it_is_done_when_all_replicas_have_done_it(self) -> None:
        broker = Broker()
        broker.fill()
        broker.commit(1)
        task = ask(DeleteRecordsHandler(broker.hosted), Client(), self.request(60_000), 2)
        await asyncio.sleep(0)
        assert not task.done()
        for replica in (2, 3):
            broker.partition.follower_fetched(replica, 1, 1, broker.hosted.host.now_ms(), 100 + replica)
        response = await task
        result = response.topics[0].partitions[0]
        assert (result.error_code, result.low_watermark) == (0, 1)

    async def test_one_that_takes_too_long_is_said(self) -> None:
        broker = Broker()
        broker.fill()
        broker.commit(1)
        response = await ask(DeleteRecordsHandler(broker.hosted), Client(), self.request(10), 2)
        assert response.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    async def test_parked_followers_hear_of_it_at_once(self) -> None:
        broker, client = Broker(), Client()
        broker.fill()
        opened = ask(broker.fetch, client, fetch_of((T, 0, 0), replica=2, session=(0, 0)), 17)
        ask(broker.fetch, client, fetch_of((T, 0, 1), replica=2, session=(opened.session_id, 1)), 17)
        broker.commit(1)
        broker.partition.delete_records(1)
        await asyncio.sleep(0)
        assert data_of(late(client, FetchResponse, 1, 17))[T, 0].log_start_offset == 1
