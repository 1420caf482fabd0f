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
from raw_client import RawClient


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
    with pytest.raises(StorageError, match=r"checksum does not match; sound records follow"):
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
