"""`penstock.testing`: the real broker in the test process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.model.errors import ConfigError
from penstock.testing import Broker


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(10) == 0
    assert errors == [None] * len(values)


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    for _ in range(100):
        values += [message.value() for message in consumer.consume(count - len(values), 0.2)]
        if len(values) >= count:
            break
    consumer.close()
    return values


def test_with_block_gives_a_broker_and_leaves_nothing() -> None:
    threads = threading.active_count()
    with Broker() as broker:
        produce(broker.bootstrap_servers, "t", [b"one", b"two"])
        assert consume(broker.bootstrap_servers, "t", 2) == [b"one", b"two"]
        directory = broker.data_directory
        assert os.path.isdir(os.path.join(directory, "t-0"))
        port = broker.port
    assert not os.path.exists(directory)
    assert threading.active_count() == threads
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_kept_directory_goes_on_where_it_stopped(tmp_path: os.PathLike[str]) -> None:
    data = str(tmp_path)
    with Broker(data=data) as broker:
        produce(broker.bootstrap_servers, "t", [b"before"])
    with Broker(data=data) as broker:
        produce(broker.bootstrap_servers, "t", [b"after"])
        assert consume(broker.bootstrap_servers, "t", 2) == [b"before", b"after"]


def test_two_brokers_do_not_share_a_directory(tmp_path: os.PathLike[str]) -> None:
    with Broker(data=str(tmp_path)), pytest.raises(ConfigError, match="in use by another broker"):
        Broker(data=str(tmp_path)).start()


def test_a_taken_port_is_said(tmp_path: os.PathLike[str]) -> None:
    with Broker() as broker, pytest.raises(ConfigError, match=f"127.0.0.1:{broker.port}.*taken"):
        Broker(port=broker.port).start()


def test_start_and_stop_may_be_repeated() -> None:
    broker = Broker()
    for _ in range(3):
        broker.start()
        produce(broker.bootstrap_servers, "t", [b"x"])
        broker.stop()
        broker.stop()


def test_fixture_serves(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap_servers, "fixture", [b"x"])
    assert consume(penstock_broker.bootstrap_servers, "fixture", 1) == [b"x"]


def test_factory_takes_settings(penstock_broker_factory: Callable[..., Broker]) -> None:
    broker = penstock_broker_factory({"num.partitions": "7"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("wide", b"x")
    producer.flush(10)
    assert len(producer.list_topics("wide", 10).topics["wide"].partitions) == 7
