"""Damage on disk at start: what stops the broker, what only takes a partition offline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.model.errors import ErrorCode, StorageError
from penstock.records.builder import Record, build_batch
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from support.clients.raw import RawClient


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def create(port: int, *names: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    for name in names:
        for future in admin.create_topics([NewTopic(name, 1)]).values():
            future.result(10)


def test_damaged_metadata_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, "one", "two", "three")
    log = next((tmp_path / "__cluster_metadata-0").glob("*.log"))
    sound = log.read_bytes()
    flip(log, sound.index(b'"two"'))
    damaged = log.read_bytes()
    with pytest.raises(StorageError, match=r"checksum does not match; later records show"):
        Broker(data=str(tmp_path)).start()
    assert log.read_bytes() == damaged
    log.write_bytes(sound)
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, "four")


def test_torn_metadata_tail_is_cut(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, "one", "two")
    log = next((tmp_path / "__cluster_metadata-0").glob("*.log"))
    os.truncate(log, log.stat().st_size - 3)
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, "two")


def test_a_damaged_log_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    batch = build_batch([Record(b"key", b"x" * 100, timestamp_ms=1_700_000_000_000)])
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, "sick", "well")
        client = RawClient(broker.port)
        for topic in ("sick", "well"):
            for _ in range(20):
                assert client.produce(topic, 0, batch).error_code == 0
    log = next((tmp_path / "sick-0").glob("*.log"))
    flip(log, log.stat().st_size - len(batch) + 8)  # the length of the last batch: where the log ends is unknown
    damaged = log.read_bytes()
    with Broker(data=str(tmp_path)) as broker:
        client = RawClient(broker.port)
        for topic, code in (("sick", ErrorCode.KAFKA_STORAGE_ERROR), ("well", ErrorCode.NONE)):
            assert client.fetch(topic, 0, 0).error_code == code
            asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=-1)])
            listed = client.call(Api.LIST_OFFSETS, ListOffsetsRequest(topics=[asked]), ListOffsetsResponse, 5)
            assert listed.topics[0].partitions[0].error_code == code
            assert client.produce(topic, 0, batch).error_code == code
    assert log.read_bytes() == damaged


BATCH = build_batch([Record(b"key", b"x" * 100, timestamp_ms=1_700_000_000_000)])


def fill(directory: Path, topic: str = "t", count: int = 20) -> None:
    with Broker(data=str(directory), durable=True) as broker:
        create(broker.port, topic)
        client = RawClient(broker.port)
        for _ in range(count):
            assert client.produce(topic, 0, BATCH).error_code == 0


def test_an_offline_log_stays_whole_however_often_the_broker_restarts(tmp_path: Path) -> None:
    fill(tmp_path)
    log = next((tmp_path / "t-0").glob("*.log"))
    sound = log.read_bytes()
    flip(log, sound.index(b"xxxx"))
    flip(log, len(sound) - len(BATCH) + 8)
    damaged = log.read_bytes()
    for _ in range(3):
        with Broker(data=str(tmp_path)) as broker:
            assert RawClient(broker.port).fetch("t", 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert log.read_bytes() == damaged
    log.write_bytes(sound)
    with Broker(data=str(tmp_path)) as broker:
        assert RawClient(broker.port).fetch("t", 0, 0).high_watermark == 20


@pytest.mark.parametrize("loss", ["directory", "segment", "emptied"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_missing_data_takes_the_partition_offline(tmp_path: Path, loss: str, was_clean: bool) -> None:
    fill(tmp_path)
    if not was_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    log = next((tmp_path / "t-0").glob("*.log"))
    if loss == "directory":
        (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    elif loss == "segment":
        log.unlink()
    else:
        os.truncate(log, 0)
    for _ in range(2):
        with Broker(data=str(tmp_path)) as broker:
            client = RawClient(broker.port)
            assert client.fetch("t", 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert client.produce("t", 0, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_directory_without_a_topic_is_set_aside_and_not_inherited(tmp_path: Path) -> None:
    fill(tmp_path, "gone")
    (tmp_path / "gone-0").rename(tmp_path / "new-0")
    with Broker(data=str(tmp_path)) as broker:
        assert not (tmp_path / "new-0").exists()
        assert len(list(tmp_path.glob("new-0.*-stray"))) == 1
        create(broker.port, "new")
        client = RawClient(broker.port)
        assert client.fetch("new", 0, 0).high_watermark == 0
        assert client.produce("new", 0, BATCH).base_offset == 0


def test_a_directory_of_another_topic_id_is_set_aside(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    fill(tmp_path, "b")
    for path in (tmp_path / "a-0").iterdir():
        path.unlink()
    (tmp_path / "a-0").rmdir()
    (tmp_path / "b-0").rename(tmp_path / "a-0")
    with Broker(data=str(tmp_path)):
        assert len(list(tmp_path.glob("a-0.*-stray"))) == 1


def test_topics_with_long_names_can_be_deleted(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    name = "n" * 249
    with Broker(data=str(tmp_path)) as broker:
        create(broker.port, name)
        assert RawClient(broker.port).produce(name, 0, BATCH).error_code == 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.delete_topics([name]).values():
            future.result(10)
        create(broker.port, name)
        assert RawClient(broker.port).fetch(name, 0, 0).high_watermark == 0
