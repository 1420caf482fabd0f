"""`penstock.testing.Cluster`: real nodes beside the test, killed and started again by it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config.properties import parse_properties
from penstock.model.errors import ConfigError
from penstock.sdk import BlockingAdmin
from penstock.testing import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedded.md"
PATIENCE_S = 60.0
QUIET = {"log_level": 0}


def produce(servers: str, topic: str, *values: bytes) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * len(values)


def consume(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "enable.auto.commit": False, **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, PATIENCE_S)]
    finally:
        consumer.close()


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def processes_of(directory: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if directory in (process / "cmdline").read_text() and "State:\tZ" not in (process / "status").read_text():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_cluster_serves_loses_nodes_gets_them_back_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    with Cluster({"num.partitions": 1, "auto.create.topics.enable": False}) as cluster:
        servers = cluster.bootstrap_servers
        assert cluster.node_ids == [1, 2, 3]
        admin = AdminClient({"bootstrap.servers": servers, **QUIET})
        for made in admin.create_topics([NewTopic("t")]).values():
            made.result(PATIENCE_S)
        state = admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions
        assert len(state) == 1
        assert sorted(state[0].replicas) == [1, 2, 3]
        produce(servers, "t", b"all")

        cluster.kill(state[0].leader)
        assert cluster.node_ids == [node for node in (1, 2, 3) if node != state[0].leader]
        produce(servers, "t", b"two")
        cluster.start(state[0].leader)
        assert cluster.node_ids == [1, 2, 3]
        cluster.wait_in_sync(PATIENCE_S)
        assert len(admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions[0].isrs) == 3

        follower = next(node for node in (1, 2, 3) if node != state[0].leader)
        cluster.stop(follower)
        assert "stopped cleanly" in cluster.log(follower)
        produce(servers, "t", b"stopped")
        with pytest.raises(TimeoutError, match=r"not in sync within 0\.2 s: .*t-0 \(replicas .*running nodes: "):
            cluster.wait_in_sync(0.2)
        assert consume(servers, "t", 3) == [b"all", b"two", b"stopped"]
        cluster.start(follower)
        assert cluster.bootstrap_servers == servers
        directory = cluster.data_directory
        assert os.path.isdir(os.path.join(directory, "node-3", "t-0"))
    assert not os.path.exists(directory)
    assert [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("penstock")] == []
    assert cluster.node_ids == []
    for address in servers.split(","):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_kept_directory_and_what_is_refused_of_a_running_cluster(tmp_path: Path) -> None:
    cluster = Cluster(data=tmp_path, nodes=2)
    with cluster:
        produce(cluster.bootstrap_servers, "t", b"before")
        with pytest.raises(RuntimeError, match="already running"):
            cluster.start()
        with pytest.raises(RuntimeError, match="node 1 is already running"):
            cluster.start(1)
        with pytest.raises(ValueError, match="there is no node 3: use one of 1, 2"):
            cluster.kill(3)
        with pytest.raises(ConfigError, match="is in use: stop its cluster"):
            Cluster(data=tmp_path, nodes=2).start()
        cluster.kill(2)
        with pytest.raises(RuntimeError, match="node 2 is not running"):
            cluster.kill(2)
        with pytest.raises(RuntimeError, match="node 2 is not running"):
            cluster.stop(2)
        cluster.start(2)
        assert len(processes_of(str(tmp_path))) == 2
        servers = cluster.bootstrap_servers
    assert processes_of(str(tmp_path)) == []
    cluster.stop()
    with cluster:
        assert cluster.bootstrap_servers == servers
        produce(servers, "t", b"after")
        assert consume(servers, "t", 2) == [b"before", b"after"]
        settings = parse_properties((tmp_path / "node-1.properties").read_text())
        assert settings["default.replication.factor"] == "2"
    assert "stopped cleanly" in (tmp_path / "node-1.log").read_text()


@pytest.mark.parametrize(
    ("settings", "nodes", "sentence"),
    [
        ({"num.partition": 3}, 3, r"^unknown setting 'num.partition': did you mean num.partitions\?$"),
        ({"num.partitions": 0}, 3, r"Value must be at least 1 \(in settings\)"),
        ({"num.partitions": None}, 3, "num.partitions in settings is None"),
        ({"log.dirs": "/elsewhere"}, 3, "data="),
        ({"node.id": 7}, 3, "node.id is in settings: a Cluster sets it for each node"),
        ({"listeners": "PLAINTEXT://:0"}, 3, "listeners is in settings: a Cluster sets it for each node"),
        ({}, 1, "nodes=1: use a number from 2 to 9, or a Broker for a single node"),
        ({}, 10, "nodes=10: use a number from 2 to 9"),
        ({}, "x", "nodes='x': use a number from 2 to 9"),
        ({"broker.heartbeat.interval.ms": 9000}, 3, "^node 1 could not be started: broker.heartbeat.interval.ms=9000"),
    ],
)
def test_what_is_refused_leaves_nothing(
    settings: dict[str, object], nodes: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=sentence):
        Cluster(settings, nodes=nodes).start()  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_admin_client_survives_the_controller() -> None:
    """librdkafka alone asks the dead one for minutes, unless it has a broker left to connect to."""
    with Cluster() as cluster, BlockingAdmin(cluster.bootstrap_servers, settings={"log_level": "0"}) as admin:
        admin.create_topic("t", 3, 3)
        for node in cluster.node_ids:
            assert admin.configs("broker", str(node))
        controller = admin.cluster().controller_id
        assert controller is not None
        cluster.kill(controller)
        assert [partition.id for partition in admin.topic("t").partitions] == [0, 1, 2]
        assert admin.cluster().controller_id != controller


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    with pytest.raises(ConfigError, match=f"cannot write to {re.escape(str(file))}: "):
        Cluster(data=file).start()
    assert file.read_text() == "hello"


@pytest.mark.parametrize("name", ["bootstrap_servers", "data_directory"])
def test_a_cluster_that_does_not_run_has_no_address(name: str) -> None:
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="not running"):
        getattr(cluster, name)
    for call in (cluster.kill, cluster.start, cluster.log):
        with pytest.raises(RuntimeError, match="not running"):
            call(1)
    assert cluster.node_ids == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a signal at the parent's death")
def test_nodes_end_with_a_test_process_that_is_killed(tmp_path: Path) -> None:
    program = f"from penstock.testing import Cluster\nCluster(data={str(tmp_path)!r}).start()\nprint('up')\ninput()"
    test = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with test:
        assert test.stdout is not None
        assert test.stdout.readline() == b"up\n"
        assert len([pid for pid in processes_of(str(tmp_path)) if pid != test.pid]) == 3
        test.send_signal(signal.SIGKILL)
        test.wait(PATIENCE_S)
    until(lambda: not processes_of(str(tmp_path)))


def test_the_example_of_the_page(penstock_cluster: Cluster) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "penstock_cluster" in block)
    names: dict[str, Callable[[Cluster], None]] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    names["test_orders_survive_a_broker"](penstock_cluster)
    assert penstock_cluster.node_ids == [1, 2, 3]
