"""`penstock.testing`: the real broker in the test process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

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


def test_start_and_stop_may_be_repeated_and_keep_the_port() -> None:
    broker = Broker()
    ports = set()
    for _ in range(3):
        broker.start()
        ports.add(broker.port)
        produce(broker.bootstrap_servers, "t", [b"x"])
        broker.stop()
        broker.stop()
    assert len(ports) == 1


def test_what_runs_is_not_started_again() -> None:
    with Broker() as broker, pytest.raises(RuntimeError, match="already running"):
        broker.start()


@pytest.mark.parametrize("name", ["bootstrap_servers", "port", "data_directory"])
def test_a_broker_that_does_not_run_has_no_address(name: str) -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="not running"):
        getattr(broker, name)
    with broker:
        assert getattr(broker, name)
    with pytest.raises(RuntimeError, match="not running"):
        getattr(broker, name)


def test_settings_may_be_numbers_and_bools() -> None:
    settings = {"num.partitions": 7, "auto.create.topics.enable": False, "log.cleaner.min.cleanable.ratio": 0.25}
    with Broker(settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for made in admin.create_topics([NewTopic("wide")]).values():
            made.result(10)
        assert len(admin.list_topics("wide", timeout=10).topics["wide"].partitions) == 7


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num.partition": 3}, r"^unknown setting 'num.partition': did you mean num.partitions\?$"),
        ({"num.partitions": 0}, r"Value must be at least 1 \(in settings\)"),
        ({"log.dirs": "/elsewhere"}, "data="),
        ({"log.dir": "/elsewhere"}, "data="),
        ({"num.partitions": None}, "num.partitions in settings is None"),
    ],
)
def test_bad_settings_are_refused_and_leave_nothing(
    settings: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=sentence):
        Broker(settings).start()  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_port_beside_listeners_is_refused() -> None:
    with pytest.raises(ConfigError, match="not both"):
        Broker({"listeners": "PLAINTEXT://127.0.0.1:0"}, port=9999).start()


def test_every_interface_has_an_address_to_use() -> None:
    for host in ("", "0.0.0.0"):
        with Broker({"listeners": f"PLAINTEXT://{host}:0"}) as broker:
            produce(broker.bootstrap_servers, "t", [b"x"])


def test_fixture_serves(penstock_broker: Broker) -> None:
    produce(penstock_broker.bootstrap_servers, "fixture", [b"x"])
    assert consume(penstock_broker.bootstrap_servers, "fixture", 1) == [b"x"]


def test_factory_takes_settings(penstock_broker_factory: Callable[..., Broker]) -> None:
    broker = penstock_broker_factory({"num.partitions": 7})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("wide", b"x")
    producer.flush(10)
    assert len(producer.list_topics("wide", 10).topics["wide"].partitions) == 7
