"""Kafka Streams' own smoke test under exactly_once_v2: instances and brokers are killed, every aggregate is exact.

As Kafka's system tests do it (streams_smoke_test.py with crashes): the driver writes 20,000 rows over 90 seconds, the
application counts, sums and joins them into a dozen topics, and the driver compares the results. Each instance is
killed with -9 and followed by another one; here each broker is killed, too. Needs Java and Maven, which fetches the
jars. Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.brokers import WORK
from bench.maven import JarsUnavailable, fetch_jars

from support.processes.cluster import ClusterProcesses, NodeProcess

pytestmark = pytest.mark.kafka_jars

POM = Path(__file__).with_name("streams.pom.xml")
SMOKE_TEST = "org.apache.kafka.streams.tests.StreamsSmokeTest"
PARTITIONS = 5
OUTPUTS = (
    *("echo", "min", "min-suppressed", "min-raw", "max", "sum", "sws-raw", "sws-suppressed"),
    *("dif", "cnt", "avg", "wcnt", "tagg", "fk"),
)
SETTINGS = {"transaction.state.log.num.partitions": "6", "offsets.topic.num.partitions": "6"}
PATIENCE_S = 120.0
VERIFIED_S = 600.0
"""The driver writes for 90 s, and gives up after 6 minutes of reading."""
PROPERTIES = {
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "3",
    "replication.factor": "3",
    "num.standby.replicas": "2",
    "buffered.records.per.partition": "100",
    "commit.interval.ms": "1000",
    "auto.offset.reset": "earliest",
    "acks": "all",
    "acceptable.recovery.lag": "9223372036854775807",
    "session.timeout.ms": "10000",
}


@pytest.fixture(scope="module")
def class_path() -> str:
    version = ElementTree.parse(POM).findtext(".//{*}kafka.version")
    try:
        return f"{fetch_jars(POM, WORK / 'kafka-streams' / str(version), 'Kafka Streams')}/*"
    except JarsUnavailable as error:
        pytest.fail(f"{error}: this test needs Java 17 and Maven")


class StreamsProcess:
    """`process`: an instance of the application; `run`: the driver."""

    def __init__(self, class_path: str, properties: Path, command: str, log: Path) -> None:
        self._log = log
        java = ["java", "-Xmx512M", "-cp", class_path, SMOKE_TEST, str(properties), command]
        with log.open("w") as output:
            self._process = subprocess.Popen(java, stdout=output, stderr=subprocess.STDOUT)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.said():
            assert self._process.poll() is None, f"it ended:\n{self.said()[-3000:]}"
            assert time.monotonic() < deadline, f"no {words!r} within {PATIENCE_S:.0f} s:\n{self.said()[-3000:]}"
            time.sleep(0.1)

    def wait(self) -> None:
        self._process.wait(VERIFIED_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path / "cluster", SETTINGS) as processes:
        yield processes


def bounce(cluster: ClusterProcesses, node: NodeProcess) -> None:
    node.kill()
    time.sleep(2)
    node.start()
    for topic in ("data", "__transaction_state", "__consumer_offsets"):
        cluster.wait_in_sync(topic)


@pytest.mark.timeout(0)
def test_every_aggregate_is_exact_after_kills(class_path: str, cluster: ClusterProcesses, tmp_path: Path) -> None:
    for topic in ("data", *OUTPUTS):
        cluster.create_topic(topic, PARTITIONS)
    properties = tmp_path / "streams.properties"
    lines = {"bootstrap.servers": cluster.bootstrap_servers, "state.dir": str(tmp_path / "state"), **PROPERTIES}
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    processes: list[StreamsProcess] = []

    def start(command: str) -> StreamsProcess:
        processes.append(StreamsProcess(class_path, properties, command, tmp_path / f"{command}-{len(processes)}.log"))
        return processes[-1]

    try:
        instance = start("process")
        instance.wait_for("REBALANCING -> RUNNING")
        driver = start("run")
        instance.wait_for("processed")
        for node in cluster.nodes.values():
            bounce(cluster, node)
            assert "Result Verification" not in driver.said(), "the driver was done before all was killed"
            instance.kill()
            instance = start("process")
            instance.wait_for("REBALANCING -> RUNNING")
            instance.wait_for("processed")
        driver.wait()
        said = driver.said()
        assert "SUCCESS" in said, said[-6000:]
        assert "PROCESSED-MORE-THAN-GENERATED" not in said, said[-6000:]
    finally:
        for process in processes:
            process.kill()
    cluster.check_logs()
