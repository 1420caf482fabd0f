"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import pytest
from wire_client import WireClient, batch

from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import CODEC_BY_NAME, recompress
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

T0 = 1_700_000_000_000


@pytest.fixture
def stamped(wire: WireClient) -> str:
    """Offsets 0-5 with timestamps T0 + 0, 10, 20, 50, 40, 45; the first three in one compressed batch."""
    topic = wire.create_topic()
    plain = build_batch([Record(None, b"v", timestamp_ms=T0 + delta) for delta in (0, 10, 20)])
    wire.produce(topic, bytes(recompress(read_header(plain), plain, CODEC_BY_NAME["lz4"], None)))
    for delta in (50, 40, 45):
        wire.produce(topic, batch(b"v", timestamp_ms=T0 + delta))
    return topic


class TestListOffsets:
    @pytest.mark.parametrize("version", range(1, 12))
    def test_earliest_and_latest(self, wire: WireClient, stamped: str, version: int) -> None:
        latest = wire.list_offset(stamped, -1, version=version)
        earliest = wire.list_offset(stamped, -2, version=version)
        assert (latest.error_code, latest.offset, latest.timestamp) == (0, 6, -1)
        assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 0, -1)
        assert latest.leader_epoch == (0 if version >= 4 else -1)

    @pytest.mark.parametrize(
        ("delta", "offset", "found"),
        [(-1000, 0, 0), (0, 0, 0), (1, 1, 10), (10, 1, 10), (11, 2, 20), (21, 3, 50), (41, 3, 50), (50, 3, 50)],
    )
    def test_by_time(self, wire: WireClient, stamped: str, delta: int, offset: int, found: int) -> None:
        """The first record that is not older, also inside a compressed batch and with stamps out of order."""
        answer = wire.list_offset(stamped, T0 + delta)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, T0 + found)

    def test_after_the_last(self, wire: WireClient, stamped: str) -> None:
        answer = wire.list_offset(stamped, T0 + 51)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)

    def test_the_largest_timestamp(self, wire: WireClient, stamped: str) -> None:
        answer = wire.list_offset(stamped, -3, version=7)
        assert (answer.offset, answer.timestamp) == (3, T0 + 50)

    def test_the_earliest_local(self, wire: WireClient, stamped: str) -> None:
        assert wire.list_offset(stamped, -4, version=8).offset == 0

    def test_nothing_is_tiered(self, wire: WireClient, stamped: str) -> None:
        for timestamp in (-5, -6):
            answer = wire.list_offset(stamped, timestamp)
            assert (answer.error_code, answer.offset) == (0, -1)

    @pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11)])
    def test_special_timestamps_of_later_versions(self, wire: WireClient, timestamp: int, version: int) -> None:
        assert wire.list_offset(wire.create_topic(), timestamp, version=version).error_code == 35

    def test_an_empty_log(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert [wire.list_offset(topic, special).offset for special in (-1, -2, -3, -4)] == [0, 0, -1, 0]
        assert wire.list_offset(topic, T0).offset == -1

    def test_what_acks_1_told_is_there(self) -> None:
        """Answered before the flush that shows the record to readers, and counted all the same."""
        with Broker(durable=True) as broker, WireClient(broker.port) as client:
            topic = client.create_topic()
            for number in range(20):
                assert client.produce(topic, batch(b"v"), acks=1).base_offset == number
                assert client.list_offset(topic, -1).offset == number + 1
                assert client.list_offset(topic, -3).offset >= 0

    def test_an_unknown_topic(self, wire: WireClient) -> None:
        answer = wire.list_offset("no-such-topic", -1)
        assert (answer.error_code, answer.offset) == (3, -1)


class TestDeleteRecords:
    def delete(self, wire: WireClient, topic: str, offset: int) -> tuple[int, int]:
        asked = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=offset)])
        result = wire.call(Api.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[asked])).topics[0].partitions[0]
        return result.error_code, result.low_watermark

    def test_the_log_start_moves(self, wire: WireClient, stamped: str) -> None:
        assert self.delete(wire, stamped, 4) == (0, 4)
        assert wire.list_offset(stamped, -2).offset == 4
        assert wire.list_offset(stamped, T0).offset == 4
        assert wire.fetch(stamped, 3).error_code == 1

    def test_it_never_moves_back(self, wire: WireClient, stamped: str) -> None:
        self.delete(wire, stamped, 4)
        assert self.delete(wire, stamped, 2) == (0, 4)

    def test_minus_one_means_everything(self, wire: WireClient, stamped: str) -> None:
        assert self.delete(wire, stamped, -1) == (0, 6)
        assert wire.fetch(stamped, 6).error_code == 0

    def test_beyond_the_end(self, wire: WireClient, stamped: str) -> None:
        assert self.delete(wire, stamped, 7) == (1, -1)
        assert self.delete(wire, stamped, -2) == (1, -1)

    def test_unknown_and_compacted_topics(self, wire: WireClient) -> None:
        assert self.delete(wire, "no-such-topic", 0) == (3, -1)
        assert self.delete(wire, wire.create_topic(cleanup_policy="compact"), 0) == (44, -1)


class TestOffsetForLeaderEpoch:
    def ask(self, wire: WireClient, topic: str, version: int, epoch: int, current: int = -1) -> EpochEndOffset:
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
        )
        found: EpochEndOffset = wire.call(Api.OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions[0]
        return found

    @pytest.mark.parametrize("version", [2, 3, 4])
    def test_the_only_epoch_ends_at_the_log_end(self, wire: WireClient, stamped: str, version: int) -> None:
        answer = self.ask(wire, stamped, version, 0)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 6)

    def test_an_epoch_that_never_was(self, wire: WireClient, stamped: str) -> None:
        answer = self.ask(wire, stamped, 4, 9)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)

    def test_fencing(self, wire: WireClient, stamped: str) -> None:
        assert self.ask(wire, stamped, 4, 0, current=7).error_code == 75
        assert self.ask(wire, "no-such-topic", 4, 0).error_code == 3
