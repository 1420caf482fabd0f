"""Produce: acknowledgements, what is refused and with which code, LogAppendTime, recompression, topic ids."""

from __future__ import annotations

import time

import pytest
from group_client import GroupClient
from wire_client import WireClient, batch, batches, produce_request, values

from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import CODEC_BY_NAME, recompress
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.primitives import NULL_UUID

CODECS = ["gzip", "snappy", "lz4", "zstd"]


def compressed(codec: str, *texts: bytes) -> bytes:
    plain = batch(*texts)
    return bytes(recompress(read_header(plain), plain, CODEC_BY_NAME[codec], None))


class TestAcks:
    @pytest.mark.parametrize("acks", [1, -1])
    def test_answered_with_the_offset(self, wire: WireClient, acks: int) -> None:
        topic = wire.create_topic()
        assert wire.produce(topic, batch(b"a", b"b"), acks=acks).base_offset == 0
        entry = wire.produce(topic, batch(b"c"), acks=acks)
        assert (entry.error_code, entry.base_offset, entry.log_append_time_ms, entry.log_start_offset) == (0, 2, -1, 0)

    def test_0_is_not_answered(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"quiet"), acks=0))
        assert wire.is_silent(0.2)
        assert values(wire.fetch(topic)) == [b"quiet"]

    def test_0_with_an_error_closes_the_connection(self, wire: WireClient) -> None:
        wire.send(Api.PRODUCE, 9, produce_request("no-such-topic", batch(b"lost"), acks=0))
        assert wire.is_closed_by_broker()

    def test_0_into_an_internal_topic_closes_the_connection(self, wire: WireClient) -> None:
        GroupClient(wire, "g").find()
        wire.send(Api.PRODUCE, 9, produce_request("__consumer_offsets", batch(b"lost"), acks=0))
        assert wire.is_closed_by_broker()

    @pytest.mark.parametrize("acks", [2, -2, 100])
    def test_any_other_number_is_refused(self, wire: WireClient, acks: int) -> None:
        topic = wire.create_topic()
        assert wire.produce(topic, batch(b"v"), acks=acks).error_code == 21
        assert wire.fetch(topic).high_watermark == 0

    def test_all_waits_for_the_flush(self) -> None:
        with Broker(durable=True) as broker, WireClient(broker.port) as client:
            topic = client.create_topic()
            for number in range(5):
                assert client.produce(topic, batch(b"v")).base_offset == number
            assert client.fetch(topic).high_watermark == 5

    def test_more_in_sync_replicas_than_there_are_replicas_count_as_all_of_them(self, wire: WireClient) -> None:
        topic = wire.create_topic(min_insync_replicas="2")
        assert wire.produce(topic, batch(b"v"), acks=-1).error_code == 0


class TestRefused:
    def refused(self, wire: WireClient, topic: str, records: bytes | None, code: int, version: int = 9) -> None:
        before = wire.fetch(topic).high_watermark
        entry = wire.produce(topic, records, version=version)
        assert (entry.error_code, entry.base_offset, entry.log_append_time_ms) == (code, -1, -1)
        assert wire.fetch(topic, before).high_watermark == before

    def test_unknown_topic_and_partition(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert wire.produce("no-such-topic", batch(b"v")).error_code == 3
        assert wire.produce(topic, batch(b"v"), partition=1).error_code == 3
        assert wire.produce(topic, batch(b"v"), partition=-1).error_code == 3

    @pytest.mark.parametrize("position", [21, 40, 61, 65])
    def test_a_flipped_bit(self, wire: WireClient, position: int) -> None:
        damaged = bytearray(batch(b"value"))
        damaged[position] ^= 1
        self.refused(wire, wire.create_topic(), bytes(damaged), 2)

    @pytest.mark.parametrize("size", [1, 60, 61, 70])
    def test_a_batch_cut_short(self, wire: WireClient, size: int) -> None:
        self.refused(wire, wire.create_topic(), batch(b"value")[:size], 2)

    def test_two_batches(self, wire: WireClient) -> None:
        self.refused(wire, wire.create_topic(), batch(b"one") + batch(b"two"), 87)

    def test_no_batch(self, wire: WireClient) -> None:
        self.refused(wire, wire.create_topic(), None, 87)

    def test_a_control_batch(self, wire: WireClient) -> None:
        self.refused(wire, wire.create_topic(), batch(b"\0\0\0\0\0\0", key=b"\0\0\0\1", attributes=0x20), 87)

    def test_a_transactional_batch(self, wire: WireClient) -> None:
        records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
        self.refused(wire, wire.create_topic(), records, 48)

    def test_a_codec_nobody_knows(self, wire: WireClient) -> None:
        self.refused(wire, wire.create_topic(), batch(b"v", attributes=5), 76)

    @pytest.mark.parametrize("magic", [0, 1])
    def test_an_old_message_format(self, wire: WireClient, magic: int) -> None:
        old = bytearray(batch(b"value"))
        old[16] = magic
        self.refused(wire, wire.create_topic(), bytes(old), 87)

    def test_a_count_that_does_not_fit_the_offsets(self, wire: WireClient) -> None:
        plain = batch(b"a", b"b")
        header = read_header(plain)._replace(last_offset_delta=5)
        self.refused(wire, wire.create_topic(), seal(header, plain[HEADER_SIZE:]), 87)

    def test_an_internal_topic(self, wire: WireClient) -> None:
        GroupClient(wire, "g").find()
        topic_id = wire.describe("__consumer_offsets").topic_id
        before = wire.fetch("__consumer_offsets").high_watermark
        many = batch(*[b"v"] * 300)  # would be looked at in a worker
        for data in (batch(b"v"), batch(b"v"), many):
            entry = wire.produce("__consumer_offsets", data)
            assert (entry.error_code, entry.base_offset) == (17, -1)
            assert entry.error_message == "Cannot append to internal topic __consumer_offsets"
        assert wire.produce("", batch(b"v"), version=13, topic_id=topic_id).error_code == 17
        assert wire.fetch("__consumer_offsets").high_watermark == before

    def test_a_null_key_on_a_compacted_topic(self, wire: WireClient) -> None:
        topic = wire.create_topic(cleanup_policy="compact")
        stamp = int(time.time() * 1000)
        records = [Record(b"k", b"1", timestamp_ms=stamp), Record(None, b"2", timestamp_ms=stamp)]
        entry = wire.produce(topic, build_batch(records))
        assert entry.error_code == 87
        assert [error.batch_index for error in entry.record_errors] == [1]
        assert wire.produce(topic, batch(b"v")).error_code == 0

    @pytest.mark.parametrize("version", [3, 4, 5, 6])
    def test_zstd_in_old_versions(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        self.refused(wire, topic, compressed("zstd", b"v"), 76, version)
        assert wire.produce(topic, compressed("zstd", b"v"), version=7).error_code == 0

    def test_larger_than_max_message_bytes(self, wire: WireClient) -> None:
        topic = wire.create_topic(max_message_bytes="1000")
        self.refused(wire, topic, batch(b"x" * 1001), 10)
        fits = batch(b"x" * (1000 - len(batch(b"x" * 500)) + 500))
        assert len(fits) == 1000
        assert wire.produce(topic, fits).error_code == 0

    def test_larger_than_a_segment(self, wire: WireClient) -> None:
        topic = wire.create_topic(max_message_bytes=str(3 << 20), segment_bytes=str(1 << 20))
        self.refused(wire, topic, batch(b"x" * (2 << 20)), 18)

    def test_a_timestamp_too_far_ahead(self, wire: WireClient) -> None:
        topic = wire.create_topic(message_timestamp_after_max_ms="1000")
        now = int(time.time() * 1000)
        self.refused(wire, topic, batch(b"v", timestamp_ms=now + 60_000), 32)
        assert wire.produce(topic, batch(b"v", timestamp_ms=now)).error_code == 0

    def test_one_bad_partition_does_not_harm_the_others(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=2)
        request = produce_request(topic, batch(b"good"))
        bad = produce_request(topic, batch(b"bad")[:-1], partition=1)
        request.topic_data[0].partition_data += bad.topic_data[0].partition_data
        response = wire.call(Api.PRODUCE, 9, request)
        assert [entry.error_code for entry in response.responses[0].partition_responses] == [0, 2]


class TestWhatIsStored:
    @pytest.mark.parametrize("codec", CODECS)
    def test_compressed_batches_pass_untouched(self, wire: WireClient, codec: str) -> None:
        topic = wire.create_topic()
        sent = compressed(codec, b"a" * 100, b"b")
        wire.produce(topic, batch(b"before"))
        assert wire.produce(topic, sent).base_offset == 1
        stored = bytes(wire.fetch(topic, 1).records)  # type: ignore[arg-type]
        # Only base offset and leader epoch are the broker's.
        assert stored[:8] == (1).to_bytes(8, "big")
        assert stored[8:12] == sent[8:12]
        assert stored[16:] == sent[16:]

    @pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
    def test_compression_type_of_the_topic(self, wire: WireClient, wanted: str) -> None:
        topic = wire.create_topic(compression_type=wanted)
        texts = (b"a" * 200, b"b" * 200)
        assert wire.produce(topic, batch(*texts)).base_offset == 0
        assert wire.produce(topic, compressed("gzip", *texts)).base_offset == 2
        found = batches(wire.fetch(topic))
        codec = 0 if wanted == "uncompressed" else CODEC_BY_NAME[wanted]
        assert [header.compression for header, _ in found] == [codec, codec]
        assert [record.value for _, records in found for record in records] == [*texts, *texts]

    def test_recompression_keeps_the_order_of_pipelined_requests(self, wire: WireClient) -> None:
        topic = wire.create_topic(compression_type="zstd")
        sent = [wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"%d" % n))) for n in range(20)]
        for correlation_id in sent:
            assert wire.receive(Api.PRODUCE, 9)[0] == correlation_id
        assert values(wire.fetch(topic)) == [b"%d" % n for n in range(20)]

    @pytest.mark.parametrize("codec", CODECS)
    def test_recompression_of_what_only_claims_to_be_compressed(self, wire: WireClient, codec: str) -> None:
        topic = wire.create_topic(compression_type="uncompressed")
        plain = batch(b"not compressed at all")
        header = read_header(plain)._replace(attributes=CODEC_BY_NAME[codec])
        assert wire.produce(topic, seal(header, plain[HEADER_SIZE:])).error_code == 2
        assert wire.produce(topic, batch(b"fine")).base_offset == 0

    def test_recompression_checks_what_the_client_sent(self, wire: WireClient) -> None:
        topic = wire.create_topic(compression_type="zstd", max_message_bytes="1000")
        assert wire.produce(topic, batch(b"x" * 2000)).error_code == 10  # though it would compress well
        assert wire.produce(topic, batch(b"x"), version=3).error_code == 0  # zstd is the broker's choice
        other = wire.create_topic(compression_type="gzip")
        assert wire.produce(other, compressed("zstd", b"x"), version=6).error_code == 76

    def test_log_append_time(self, wire: WireClient) -> None:
        topic = wire.create_topic(message_timestamp_type="LogAppendTime")
        before = int(time.time() * 1000)
        entry = wire.produce(topic, compressed("lz4", b"old"))
        wire.produce(topic, batch(b"older", timestamp_ms=1))
        assert before <= entry.log_append_time_ms <= before + 5000
        for header, _ in batches(wire.fetch(topic)):
            assert header.attributes & 8
            assert header.max_timestamp >= before

    def test_leader_epoch_and_base_offset_are_the_brokers(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        wire.produce(topic, batch(b"v", base_offset=77, leader_epoch=9))
        ((header, _),) = batches(wire.fetch(topic))
        assert header.base_offset == 0
        assert header.leader_epoch == wire.describe(topic).partitions[0].leader_epoch


class TestTopicIds:
    def test_produce_by_id(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        topic_id = wire.describe(topic).topic_id
        assert topic_id != NULL_UUID
        assert wire.produce("", batch(b"v"), version=13, topic_id=topic_id).base_offset == 0
        assert values(wire.fetch(topic)) == [b"v"]

    def test_an_unknown_id(self, wire: WireClient) -> None:
        assert wire.produce("", batch(b"v"), version=13, topic_id=b"?" * 16).error_code == 100

    def test_the_id_of_a_topic_that_was_created_anew(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        stale = wire.describe(topic).topic_id
        wire.produce(topic, batch(b"old"))
        wire.delete_topic(topic)
        wire.create_topic(name=topic)
        fresh = wire.describe(topic).topic_id
        assert fresh != stale
        assert wire.produce("", batch(b"v"), version=13, topic_id=stale).error_code == 100
        assert wire.fetch("", version=13, topic_id=stale).error_code == 100
        assert wire.produce("", batch(b"new"), version=13, topic_id=fresh).base_offset == 0
        assert values(wire.fetch("", version=16, topic_id=fresh)) == [b"new"]
