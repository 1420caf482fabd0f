"""Order on one connection, parked requests, back-pressure, idle connections, tagged fields."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from wire_client import WireClient, batch, fetch_request, produce_request, values

from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

WAIT_MS = 400


class TestOrder:
    def test_pipelined_produces_are_answered_in_order(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        sent = [wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"%d" % n))) for n in range(50)]
        answers = [wire.receive(Api.PRODUCE, 9) for _ in sent]
        assert [correlation_id for correlation_id, _ in answers] == sent
        offsets = [response.responses[0].partition_responses[0].base_offset for _, response in answers]
        assert offsets == list(range(50))

    def test_acks_0_in_between_leaves_no_gap(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"0"), acks=0))
        first = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"1"), acks=1))
        wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"2"), acks=0))
        second = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"3"), acks=-1))
        assert [wire.receive(Api.PRODUCE, 9)[0] for _ in range(2)] == [first, second]
        assert values(wire.fetch(topic)) == [b"0", b"1", b"2", b"3"]

    def test_a_parked_fetch_holds_back_the_answers_behind_it(self, wire: WireClient) -> None:
        """A produce behind it takes effect at once, and so wakes the fetch before it."""
        topic = wire.create_topic()
        started = time.monotonic()
        fetch = wire.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=5000, min_bytes=1))
        produce = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"wakes")))
        correlation_id, response = wire.receive(Api.FETCH, 12)
        assert correlation_id == fetch
        assert values(response.responses[0].partitions[0]) == [b"wakes"]
        assert wire.receive(Api.PRODUCE, 9)[0] == produce
        assert time.monotonic() - started < 2

    def test_any_other_request_waits_for_those_before_it(self, wire: WireClient, wire_broker: Broker) -> None:
        """Metadata behind a parked fetch: a barrier, answered when the fetch is, with what is true then."""
        topic = wire.create_topic()
        new_topic = f"{topic}-later"
        started = time.monotonic()
        fetch = wire.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=WAIT_MS, min_bytes=1))
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=new_topic)], allow_auto_topic_creation=False)
        metadata = wire.send(Api.METADATA, 12, asked)
        with WireClient(wire_broker.port) as other:
            other.create_topic(name=new_topic)
        assert wire.receive(Api.FETCH, 12)[0] == fetch
        correlation_id, response = wire.receive(Api.METADATA, 12)
        assert correlation_id == metadata
        assert response.topics[0].error_code == 0
        assert time.monotonic() - started >= WAIT_MS / 1000 * 0.9

    def test_more_in_flight_than_the_bound(self, penstock_bounded: WireClient) -> None:
        topic = penstock_bounded.create_topic()
        sent = [penstock_bounded.send(Api.PRODUCE, 9, produce_request(topic, batch(b"v"))) for _ in range(200)]
        assert [penstock_bounded.receive(Api.PRODUCE, 9)[0] for _ in sent] == sent

    def test_frames_in_any_pieces(self, wire: WireClient) -> None:
        body = struct.pack(">hhih", Api.API_VERSIONS, 0, 9, -1)
        stream = (struct.pack(">i", len(body)) + body) * 3
        for byte in stream:
            wire.socket.sendall(bytes((byte,)))
        assert [struct.unpack(">i", wire.receive_frame()[:4])[0] for _ in range(3)] == [9, 9, 9]

    def test_a_large_frame_after_small_ones(self, wire: WireClient) -> None:
        topic = wire.create_topic(max_message_bytes=str(8 << 20))
        small = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"small")))
        large = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"L" * (5 << 20))))
        last = wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"last")))
        for correlation_id in (small, large, last):
            got, response = wire.receive(Api.PRODUCE, 9)
            assert got == correlation_id
            assert response.responses[0].partition_responses[0].error_code == 0
        data = wire.fetch(topic, 1, partition_max_bytes=16 << 20, max_bytes=16 << 20)
        assert values(data) == [b"L" * (5 << 20), b"last"]


class TestHeaders:
    def test_unknown_tagged_fields_are_skipped(self, wire: WireClient) -> None:
        header = struct.pack(">hhih", Api.METADATA, 12, 3, -1) + b"\x01\x63\x02xy"
        body = b"\x01" + b"\x01\x00\x00" + b"\x01\x64\x03abc"  # no topics, two bools, one tagged field
        wire.send_frame(header + body)
        correlation_id, response = wire.receive(Api.METADATA, 12)
        assert correlation_id == 3
        assert response.topics == []

    def test_client_id_may_be_null_or_empty(self, wire: WireClient) -> None:
        for client_id in (None, "", "naïve"):
            wire.send(Api.API_VERSIONS, 0, ApiVersionsRequest(), client_id)
            assert wire.receive(Api.API_VERSIONS, 0)[1].error_code == 0


class TestSlowReader:
    def test_answers_queue_up_to_a_bound_and_the_rest_waits(self, wire_broker: Broker) -> None:
        """A client that asks and does not read: the broker stops reading from it, and goes on when it reads."""
        with WireClient(wire_broker.port, receive_buffer_bytes=4096) as slow:
            topic = slow.create_topic()
            slow.produce(topic, batch(b"x" * 500_000))
            # Long frames, so that what the kernel's buffers hold is little beside what is sent.
            most, client_id, frames = 2500, "c" * 30_000, 0
            slow.socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while frames < most:
                    slow.send(Api.FETCH, 12, fetch_request(topic), client_id)
                    frames += 1
            assert 0 < frames < most, "the broker took every request, so it holds every answer"
            with WireClient(wire_broker.port) as other:
                assert len(values(other.fetch(topic))) == 1
            slow.socket.settimeout(10)
            for _ in range(min(frames, 50)):
                assert len(values(slow.receive(Api.FETCH, 12)[1].responses[0].partitions[0])) == 1


class TestIdle:
    def test_an_idle_connection_is_closed_and_a_busy_one_is_not(self) -> None:
        with (
            Broker({"connections.max.idle.ms": "1000"}) as broker,
            WireClient(broker.port) as idle,
            WireClient(broker.port) as parked,
        ):
            topic = parked.create_topic()
            parked.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=3500, min_bytes=1))
            started = time.monotonic()
            assert idle.is_closed_by_broker()
            assert time.monotonic() - started < 4
            assert parked.receive(Api.FETCH, 12)[1].error_code == 0

    def test_half_a_frame_does_not_hold_the_broker(self, wire_broker: Broker) -> None:
        with WireClient(wire_broker.port) as half, WireClient(wire_broker.port) as other:
            half.socket.sendall(struct.pack(">ihhih", 100, Api.METADATA, 1, 1, -1))
            assert other.call(Api.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
            half.socket.shutdown(socket.SHUT_WR)
            assert half.is_closed_by_broker()
