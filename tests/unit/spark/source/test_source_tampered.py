"""Bytes that were changed between a log and the reader, on a real socket: named, never skipped.

The checksum of a batch leaves out its base offset, its length and its format: each of them is changed here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.arrow.decode import CorruptRecordBatch
from penstock.records.batch import with_prefix
from penstock.records.builder import Record, build_batch
from penstock.spark.source import reading
from penstock.spark.source.columns import arrow_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.reading import read_split
from penstock.spark.source.splits import Split
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.primitives import Message
from support.scripted.broker import ScriptedBroker

TOPIC_ID = bytes(range(16))
RECORDS = 10
BATCHES = 5
END = RECORDS * BATCHES


def batch(number: int) -> bytes:
    base = number * RECORDS
    return with_prefix(build_batch([Record(None, b"%d" % n) for n in range(base, base + RECORDS)]), base, 0)


class Log:
    """Five batches of ten, a batch an answer or all that follow; `tamper` is what happens to the third."""

    def __init__(self, answers_all: bool) -> None:
        self.answers_all = answers_all
        self.tamper: Callable[[bytes], bytes] = lambda data: data
        self.high_watermark = END

    def fetch(self, request: Message) -> Message:
        assert isinstance(request, FetchRequest)
        first = request.topics[0].partitions[0].fetch_offset // RECORDS
        numbers = range(first, BATCHES if self.answers_all else min(first + 1, BATCHES))
        records = b"".join(self.tamper(batch(number)) if number == 2 else batch(number) for number in numbers)
        data = PartitionData(
            partition_index=0, high_watermark=self.high_watermark, last_stable_offset=END, log_start_offset=0
        )
        data.records = records
        answer = FetchableTopicResponse(topic="clicks", topic_id=TOPIC_ID, partitions=[data])
        return FetchResponse(responses=[answer])

    def offsets(self, request: Message) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        found = ListOffsetsPartitionResponse(partition_index=0, timestamp=-1, offset=END)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="clicks", partitions=[found])])


@pytest.fixture(params=[True, False], ids=["all in one answer", "an answer a batch"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(reading, "spare_the_heap", lambda kind: None)
    return Log(request.param)


@pytest.fixture
def broker(log: Log) -> Iterator[ScriptedBroker]:
    scripts = {Api.FETCH: log.fetch, Api.LIST_OFFSETS: log.offsets}
    with ScriptedBroker(scripts, {"clicks": TOPIC_ID}) as running:
        yield running


def offsets(broker: ScriptedBroker, end: int = END) -> Iterator[int]:
    options = SourceOptions.for_batch(
        {"subscribe": "clicks", "kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "failOnDataLoss": "false"}
    )
    for rows in read_split(Split("clicks", 0, 0, end, TOPIC_ID), options, arrow_schema(source_schema(False))):
        yield from rows.column("offset").to_pylist()


def changed(at: int, *new: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes(new) + data[at + len(new) :]


def test_untouched(log: Log, broker: ScriptedBroker) -> None:
    assert list(offsets(broker)) == list(range(END))


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "at base offset 20: checksum does not match"),
        (changed(23, 0, 0, 0, 3), "at base offset 20: checksum does not match"),
        (changed(16, 3), "at base offset 20: magic 3"),
        (changed(8, 0, 0, 0, 9), "at base offset 20: batch length 9"),
        (changed(0, 0, 0, 0, 1), r"beyond the end of the log \(50\), at the place of offset 20"),
        (changed(7, 5), "at base offset 5: it"),
    ],
    ids=["value", "last offset delta", "magic", "length", "base offset raised", "base offset lowered"],
)
def test_tampered(log: Log, broker: ScriptedBroker, tamper: Callable[[bytes], bytes], reason: str) -> None:
    log.tamper = tamper
    seen: list[int] = []
    with pytest.raises(CorruptRecordBatch, match=reason) as refused:
        seen.extend(offsets(broker))
    assert (refused.value.topic, refused.value.partition) == ("clicks", 0)
    assert seen in ([], list(range(20)))


def test_log_that_grew_since_its_end_was_told(log: Log, broker: ScriptedBroker) -> None:
    """Kafka tells the high watermark of before it reads."""
    log.high_watermark = 20
    assert list(offsets(broker)) == list(range(END))
