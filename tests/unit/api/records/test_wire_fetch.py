"""Fetch: limits, long polls, out of range, errors, incremental sessions."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from wire_client import WireClient, batch, batches, fetch_request, produce_request, values

from penstock.model.errors import ErrorCode
from penstock.runtime.disk import OsFile
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic


def delete_records(client: WireClient, topic: str, before_offset: int) -> None:
    asked = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=before_offset)])
    response = client.call(Api.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[asked]))
    assert response.topics[0].partitions[0].error_code == 0


class TestLimits:
    def test_the_first_batch_comes_whole_however_small_the_limits(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        for number in range(3):
            wire.produce(topic, batch(b"%d" % number * 10_000))
        data = wire.fetch(topic, 1, partition_max_bytes=1, max_bytes=1)
        assert values(data) == [b"1" * 10_000]

    def test_whole_batches_up_to_the_limit(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        one = batch(b"x" * 1000)
        for _ in range(10):
            wire.produce(topic, one)
        data = wire.fetch(topic, partition_max_bytes=len(one) * 3 + 5)
        assert len(batches(data)) == 3
        assert len(batches(wire.fetch(topic, max_bytes=len(one) * 4))) == 4

    def test_only_one_partition_may_exceed_the_limits(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        for index in range(3):
            wire.produce(topic, batch(b"x" * 5000), partition=index)
        response = wire.call(Api.FETCH, 12, fetch_request(topic, partitions=(0, 1, 2), max_bytes=100))
        sizes = [len(batches(partition)) for partition in response.responses[0].partitions]
        assert sizes == [1, 0, 0]

    def test_it_begins_with_the_batch_that_holds_the_offset(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        wire.produce(topic, batch(b"0", b"1", b"2"))
        wire.produce(topic, batch(b"3", b"4"))
        assert values(wire.fetch(topic, 1)) == [b"0", b"1", b"2", b"3", b"4"]
        assert values(wire.fetch(topic, 3)) == [b"3", b"4"]
        assert values(wire.fetch(topic, 4)) == [b"3", b"4"]
        assert values(wire.fetch(topic, 5)) == []


class TestIsolation:
    def test_without_transactions_both_levels_see_the_same(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        wire.produce(topic, batch(b"v"))
        uncommitted = wire.fetch(topic, isolation_level=0)
        committed = wire.fetch(topic, isolation_level=1)
        assert uncommitted.aborted_transactions is None
        assert committed.aborted_transactions == []
        for data in (uncommitted, committed):
            assert (data.high_watermark, data.last_stable_offset, values(data)) == (1, 1, [b"v"])


def test_what_was_written_before_a_restart(tmp_path: Path) -> None:
    """Batches this process has not seen are checked before they are served."""
    data = str(tmp_path / "data")
    sent = [b"%d" % number * 1000 for number in range(50)]
    with Broker(data=data) as broker, WireClient(broker.port) as client:
        topic = client.create_topic(name="kept")
        for value in sent:
            client.produce(topic, batch(value))
    with Broker(data=data) as broker, WireClient(broker.port) as client:
        waiting = client.send(Api.FETCH, 12, fetch_request(topic, 50, max_wait_ms=5000, min_bytes=1))
        with WireClient(broker.port) as other:
            assert values(other.fetch(topic)) == sent
            assert values(other.fetch(topic, 25)) == sent[25:]
            other.produce(topic, batch(b"new"))
        correlation_id, response = client.receive(Api.FETCH, 12)
        assert correlation_id == waiting
        assert values(response.responses[0].partitions[0]) == [b"new"]


class TestErrors:
    @pytest.mark.parametrize("offset", [-1, 2, 100, 2**62])
    def test_out_of_range_is_told_at_once(self, wire: WireClient, offset: int) -> None:
        topic = wire.create_topic()
        wire.produce(topic, batch(b"v"))
        started = time.monotonic()
        data = wire.fetch(topic, offset, max_wait_ms=5000, min_bytes=1)
        assert data.error_code == 1
        assert bytes(data.records) == b""  # type: ignore[arg-type]  # empty, not null
        assert time.monotonic() - started < 2

    def test_below_the_log_start(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        for _ in range(3):
            wire.produce(topic, batch(b"v"))
        delete_records(wire, topic, 2)
        assert wire.fetch(topic, 1).error_code == 1
        data = wire.fetch(topic, 2)
        assert (data.error_code, data.log_start_offset, len(values(data))) == (0, 2, 1)

    def test_unknown_topic_and_partition(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert wire.fetch("no-such-topic").error_code == 3
        assert wire.fetch(topic, partitions=(7,)).error_code == 3
        assert wire.fetch("", version=13, topic_id=b"?" * 16).error_code == 100

    def test_leader_epochs_are_fenced(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        request = fetch_request(topic)
        request.topics[0].partitions[0].current_leader_epoch = 1000
        response = wire.call(Api.FETCH, 12, request)
        assert response.responses[0].partitions[0].error_code == 75

    def test_an_error_in_one_partition_does_not_park_the_rest(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        started = time.monotonic()
        response = wire.call(Api.FETCH, 12, fetch_request(topic, partitions=(0, 9), max_wait_ms=5000, min_bytes=1))
        assert [partition.error_code for partition in response.responses[0].partitions] == [0, 3]
        assert time.monotonic() - started < 2


class TestLongPoll:
    def test_it_waits_no_longer_than_asked(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        started = time.monotonic()
        assert values(wire.fetch(topic, max_wait_ms=300, min_bytes=1)) == []
        assert 0.28 <= time.monotonic() - started < 1.5

    def test_it_does_not_wait_when_nothing_is_asked_for(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        started = time.monotonic()
        wire.fetch(topic, max_wait_ms=5000, min_bytes=0)
        assert time.monotonic() - started < 2

    def test_a_produce_wakes_it(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic()
        wire.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=8000, min_bytes=1))
        assert wire.is_silent(0.15)
        started = time.monotonic()
        with WireClient(wire_broker.port) as other:
            other.produce(topic, batch(b"news"))
        assert values(wire.receive(Api.FETCH, 12)[1].responses[0].partitions[0]) == [b"news"]
        assert time.monotonic() - started < 2

    def test_it_waits_for_min_bytes(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic()
        one = batch(b"x" * 100)
        wire.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=8000, min_bytes=len(one) * 3))
        with WireClient(wire_broker.port) as other:
            other.produce(topic, one)
            other.produce(topic, one)
            assert wire.is_silent(0.2)
            other.produce(topic, one)
        assert len(batches(wire.receive(Api.FETCH, 12)[1].responses[0].partitions[0])) == 3

    def test_min_bytes_may_come_from_several_partitions(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic(partitions=2)
        one = batch(b"x" * 100)
        request = fetch_request(topic, partitions=(0, 1), max_wait_ms=8000, min_bytes=len(one) * 2)
        wire.send(Api.FETCH, 12, request)
        with WireClient(wire_broker.port) as other:
            other.produce(topic, one, partition=0)
            assert wire.is_silent(0.1)
            other.produce(topic, one, partition=1)
        found = wire.receive(Api.FETCH, 12)[1].responses[0].partitions
        assert [len(batches(partition)) for partition in found] == [1, 1]

    def test_deleting_the_topic_wakes_it(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic()
        wire.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=8000, min_bytes=1))
        assert wire.is_silent(0.1)
        started = time.monotonic()
        with WireClient(wire_broker.port) as other:
            other.delete_topic(topic)
        assert wire.receive(Api.FETCH, 12)[1].responses[0].partitions[0].error_code == 3
        assert time.monotonic() - started < 2

    def test_many_wait_for_one_partition(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic()
        waiting = [WireClient(wire_broker.port) for _ in range(30)]
        for client in waiting:
            client.send(Api.FETCH, 12, fetch_request(topic, max_wait_ms=8000, min_bytes=1))
        assert waiting[-1].is_silent(0.1)
        wire.produce(topic, batch(b"for all"))
        for client in waiting:
            with client:
                assert values(client.receive(Api.FETCH, 12)[1].responses[0].partitions[0]) == [b"for all"]

    def test_a_reader_that_follows_a_writer(self, wire: WireClient, wire_broker: Broker) -> None:
        topic = wire.create_topic()
        wanted = 200

        def write() -> None:
            with WireClient(wire_broker.port) as other:
                for number in range(wanted):
                    other.produce(topic, batch(b"%d" % number))

        writer = threading.Thread(target=write)
        writer.start()
        offset = 0
        while offset < wanted:
            for header, records in batches(wire.fetch(topic, offset, max_wait_ms=1000, min_bytes=1)):
                assert [record.value for record in records] == [b"%d" % header.base_offset]
                offset = header.next_offset
        writer.join()


class TestSessions:
    def session(self, wire: WireClient, topic: str, **options: Any) -> FetchResponse:
        response: FetchResponse = wire.call(
            Api.FETCH, 12, fetch_request(topic, partitions=(0, 1, 2), session_epoch=0, **options)
        )
        return response

    def next(self, wire: WireClient, session_id: int, epoch: int, **options: Any) -> FetchResponse:
        response: FetchResponse = wire.call(
            Api.FETCH, 12, FetchRequest(session_id=session_id, session_epoch=epoch, **options)
        )
        return response

    def told(self, response: FetchResponse) -> dict[int, int]:
        """Partition -> number of values."""
        return {
            partition.partition_index: len(values(partition))
            for topic in response.responses
            for partition in topic.partitions
        }

    def test_a_session_tells_everything_first_and_then_what_changed(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        response = self.session(wire, topic)
        assert response.session_id > 0
        assert self.told(response) == {0: 0, 1: 0, 2: 0}
        wire.produce(topic, batch(b"v"), partition=1)
        second = self.next(wire, response.session_id, 1)
        assert second.session_id == response.session_id
        assert self.told(second) == {1: 1}

    def test_nothing_new_is_an_empty_answer(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        session_id = self.session(wire, topic).session_id
        response = self.next(wire, session_id, 1, max_wait_ms=50, min_bytes=1)
        assert (response.error_code, response.session_id, response.responses) == (0, session_id, [])

    def test_changed_offsets_and_added_partitions(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=4)
        session_id = self.session(wire, topic).session_id
        wire.produce(topic, batch(b"v"), partition=0)
        wire.produce(topic, batch(b"w"), partition=3)
        changed = [
            FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20),
            FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1 << 20),
        ]
        response = self.next(wire, session_id, 1, topics=[FetchTopic(topic=topic, partitions=changed)])
        # Partition 0 has a new high watermark to tell, though nothing after the asked offset.
        assert self.told(response) == {0: 0, 3: 1}

    def test_forgotten_partitions(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        session_id = self.session(wire, topic).session_id
        for index in range(3):
            wire.produce(topic, batch(b"v"), partition=index)
        response = self.next(
            wire, session_id, 1, forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=[0, 2])]
        )
        assert self.told(response) == {1: 1}

    def test_a_wrong_epoch_and_an_unknown_session(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        session_id = self.session(wire, topic).session_id
        assert self.next(wire, session_id, 5).error_code == 71
        assert self.next(wire, session_id ^ 0x5555, 1).error_code == 70
        assert self.next(wire, session_id, 1).error_code == 0

    def test_a_closed_session_is_gone(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        session_id = self.session(wire, topic).session_id
        closing = self.next(wire, session_id, -1)
        assert (closing.error_code, closing.session_id) == (0, 0)
        assert self.next(wire, session_id, 1).error_code == 70

    def test_epoch_0_with_an_id_starts_anew(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        first = self.session(wire, topic).session_id
        second = self.session(wire, topic, session_id=first).session_id
        assert second not in (0, first)
        assert self.next(wire, first, 1).error_code == 70

    def test_without_a_session(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert wire.call(Api.FETCH, 12, fetch_request(topic, session_epoch=-1)).session_id == 0

    def test_names_and_ids_do_not_mix(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=3)
        session_id = self.session(wire, topic).session_id
        asked = FetchRequest(session_id=session_id, session_epoch=1)
        assert wire.call(Api.FETCH, 13, asked).error_code == 106

    def test_a_full_cache_serves_without_sessions(self) -> None:
        with (
            Broker({"max.incremental.fetch.session.cache.slots": "2"}) as broker,
            WireClient(broker.port) as client,
        ):
            topic = client.create_topic(partitions=3)
            ids = [self.session(client, topic).session_id for _ in range(3)]
            assert ids[0] > 0
            assert ids[1] > 0
            assert ids[2] == 0

    def test_topics_of_a_session_by_id(self, wire: WireClient) -> None:
        topic = wire.create_topic(partitions=2)
        topic_id = wire.describe(topic).topic_id
        asked = fetch_request("", partitions=(0, 1), topic_id=topic_id, session_epoch=0)
        response = wire.call(Api.FETCH, 16, asked)
        assert response.responses[0].topic_id == topic_id
        wire.send(Api.PRODUCE, 9, produce_request(topic, batch(b"v"), partition=1, acks=0))
        later = wire.call(Api.FETCH, 16, FetchRequest(session_id=response.session_id, session_epoch=1))
        assert self.told(later) == {1: 1}


def test_an_input_error_in_one_partition_leaves_the_others_served(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = wire.create_topic(partitions=3)
    for index in range(3):
        wire.produce(topic, batch(b"%d" % index), partition=index)
    read = OsFile.read

    def failing_read(file: OsFile, position: int, size: int) -> bytes:
        if f"{topic}-1/" in file.path:
            raise OSError(errno.EIO, "Input/output error", file.path)
        return read(file, position, size)

    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size: False)
    monkeypatch.setattr(OsFile, "read_cached", lambda file, position, size: None)
    monkeypatch.setattr(OsFile, "read", failing_read)
    response = wire.call(Api.FETCH, 12, fetch_request(topic, partitions=(0, 1, 2)))
    answers = response.responses[0].partitions
    assert [answer.error_code for answer in answers] == [0, ErrorCode.KAFKA_STORAGE_ERROR, 0]
    assert [values(answers[0]), values(answers[2])] == [[b"0"], [b"2"]]
    monkeypatch.undo()
    assert values(wire.fetch(topic, partitions=(1,))) == [b"1"]  # the disk is well again


def test_nothing_is_read_on_the_event_loop(wire: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a batch lies, nor the batch."""
    topic = wire.create_topic()
    for number in range(200):
        wire.produce(topic, batch(b"%d" % number * 100))
    readers: dict[str, None] = {}
    read = OsFile.read

    def noting(file: OsFile, position: int, size: int) -> bytes:
        if topic in file.path:
            readers[threading.current_thread().name.rpartition("_")[0]] = None
        return read(file, position, size)

    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size: "penstock-worker" in readers)
    monkeypatch.setattr(OsFile, "read_cached", lambda file, position, size: None)
    monkeypatch.setattr(OsFile, "read", noting)
    data = wire.fetch(topic, 100, partition_max_bytes=5000)
    assert values(data)[0] == b"100" * 100
    assert next(iter(readers)) == "penstock-worker"
