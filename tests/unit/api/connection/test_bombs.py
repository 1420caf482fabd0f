"""A few KB that unpack to millions of records: nobody in the broker's own process unpacks or walks over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wire_client import WireClient

from penstock.model.errors import ErrorCode
from penstock.ports.workers import RecordWorkers
from penstock.records import builder, compression, examine
from penstock.records.batch import BatchHeader
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import ZSTD, compress
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

NOW_MS = 1_700_000_000_000


def bomb(count: int) -> bytes:
    header = BatchHeader(0, 0, 0, 2, 0, ZSTD, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
    return seal(header, compress(ZSTD, b"\x0e\x00\x00\x00\x02k\x01\x00" * count))


@pytest.fixture
def nobody_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker under test shares this process with the test; the process for records does not."""

    def here(*_: object) -> None:
        raise AssertionError("in the broker's own process")

    for module, name in (
        (compression, "decompress"),
        (compression, "stream"),
        (examine, "stream"),
        (examine, "whole_records"),
        (builder, "iterate_records"),
    ):
        monkeypatch.setattr(module, name, here)


@pytest.mark.parametrize("timestamp", [NOW_MS - 1, -3])
def test_an_offset_by_time_in_it_is_found_elsewhere(wire: WireClient, timestamp: int, nobody_here: None) -> None:
    topic = wire.create_topic()
    wire.produce(topic, bomb(3_000_000))
    found = wire.list_offset(topic, timestamp, version=7)
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, NOW_MS)


class Counting:
    """How many lookups there are at the same time."""

    def __init__(self, records: RecordWorkers) -> None:
        self._records = records
        self.now = self.most = self.all = 0

    async def look_up(self, work: Callable[..., Any], *args: object) -> Any:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        try:
            return await self._records.look_up(work, *args)
        finally:
            self.now -= 1


def test_a_client_has_one_looked_into_at_a_time(
    wire: WireClient, wire_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = {int(handler.api): handler for handler in wire_broker._running.apis.handlers}
    handler: Any = handlers[Api.LIST_OFFSETS]
    counting = Counting(handler._records)
    monkeypatch.setattr(handler, "_records", counting)
    topic = wire.create_topic(4)
    for partition in range(4):
        wire.produce(topic, bomb(1000), partition=partition)
    asked = [ListOffsetsPartition(partition_index=at, timestamp=NOW_MS) for at in range(4)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    (found,) = wire.call(Api.LIST_OFFSETS, 7, request).topics
    assert [one.offset for one in found.partitions] == [0] * 4
    assert (counting.all, counting.most) == (4, 1)


def test_one_that_nobody_walks_to_its_end_is_found_whole(wire: WireClient, nobody_here: None) -> None:
    topic = wire.create_topic()
    wire.produce(topic, build_batch([Record(None, b"old", (), NOW_MS - 10)]))
    data = bomb(3_000_000)
    header = BatchHeader(0, 0, 0, 2, 0, ZSTD, 2_999_999, NOW_MS, NOW_MS + 50, -1, -1, -1, 3_000_000)
    wire.produce(topic, seal(header, data[61:]))
    found = wire.list_offset(topic, NOW_MS + 20, version=7)
    assert (found.error_code, found.offset, found.timestamp) == (0, 1, NOW_MS + 50)


def test_on_a_compacted_topic_its_keys_are_checked_elsewhere(wire: WireClient, nobody_here: None) -> None:
    topic = wire.create_topic(cleanup_policy="compact")
    assert wire.produce(topic, bomb(1000)).error_code == 0
    refused = wire.produce(topic, bomb(3_000_000))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert "1000000 records" in str(refused.error_message)


def test_it_is_packed_otherwise_elsewhere(wire: WireClient, nobody_here: None) -> None:
    topic = wire.create_topic(compression_type="gzip")
    assert wire.produce(topic, bomb(1_000_000)).error_code == 0
