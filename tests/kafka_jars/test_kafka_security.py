"""The blocking wire client against Apache Kafka itself, over SASL (PLAIN and SCRAM) and TLS.

Needs Java and Apache Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.brokers import Kafka, free_ports

from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchStream
from penstock.wire_client.blocking.security import security_from_settings
from penstock.wire_client.requests.errors import AuthenticationFailed
from support.scripted.tls_proxy import CERTIFICATE, KEY

pytestmark = pytest.mark.kafka_jars

MODULES = "org.apache.kafka.common.security"
MECHANISMS = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}
MECHANISMS["SCRAM-SHA-512"] = MECHANISMS["SCRAM-SHA-256"]


class SecuredKafka(Kafka):
    """Also listens with SASL on `sasl_port` and with SASL over TLS on `tls_port`; alice's password is s3cr3t."""

    def __init__(self, home: Path, jars: Path) -> None:
        super().__init__(home, jars)
        self.sasl_port, self.tls_port = free_ports(2)
        more = f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},SASL_SSL://127.0.0.1:{self.tls_port},"
        text = self.properties.read_text()
        text = text.replace("listeners=PLAINTEXT", f"listeners={more}PLAINTEXT")
        text = text.replace("map=PLAINTEXT", "map=SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,PLAINTEXT")
        store = home / "keystore.pem"
        store.write_text(Path(KEY).read_text() + Path(CERTIFICATE).read_text())
        lines = [
            f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
            "connections.max.reauth.ms=60000",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={store}",
            "ssl.client.auth=none",
        ]
        for listener in ("sasl_plaintext", "sasl_ssl"):
            for mechanism, module in MECHANISMS.items():
                users = ' user_alice="s3cr3t"' if mechanism == "PLAIN" else ""
                name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
                lines.append(f"{name}={MODULES}.{module} required{users};")
        self.properties.write_text("\n".join((text, *lines, "")))

    def prepare(self) -> None:
        tool = self._java("kafka.tools.StorageTool", flags="-Xmx256M")
        arguments = ["format", "-t", "cGVuc3RvY2stYmVuY2gtMQ", "-c", str(self.properties), "--standalone"]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            arguments += ["--add-scram", f"{mechanism}=[name=alice,password=s3cr3t]"]
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def kafka(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    kafka = SecuredKafka(tmp_path_factory.mktemp("kafka") / "home", kafka_libs)
    try:
        kafka.prepare()
        kafka.start()
        yield kafka
    finally:
        kafka.kill()


def settings(protocol: str, mechanism: str, password: str = "s3cr3t") -> dict[str, str]:
    jaas = f'{MODULES}.{MECHANISMS[mechanism]} required username="alice" password="{password}";'
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": CERTIFICATE}
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas, **trusted}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_everything_over_sasl(kafka: SecuredKafka, protocol: str, mechanism: str) -> None:
    port = kafka.sasl_port if protocol == "SASL_PLAINTEXT" else kafka.tls_port
    security = security_from_settings(settings(protocol, mechanism))
    cluster = BlockingCluster([("127.0.0.1", port)], security=security, timeout_s=60.0)
    tp = TopicPartition(f"{protocol}-{mechanism}".lower(), 0)
    cluster.topics()
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=tp.topic, num_partitions=1, replication_factor=1)], timeout_ms=30_000
    )
    created = cluster.connection(1, "control").call(Api.CREATE_TOPICS, request, CreateTopicsResponse)
    assert not created.topics[0].error_code
    leader = cluster.leader(tp)
    connection = cluster.connection(leader.node_id, "produce")
    for number in range(50):
        data = PartitionProduceData(index=0, records=build_batch([Record(None, b"%d" % number * 1000)]))
        topic = TopicProduceData(name=tp.topic, partition_data=[data])
        answer = connection.call(
            Api.PRODUCE, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), ProduceResponse
        )
        assert not answer.responses[0].partition_responses[0].error_code
    assert cluster.list_offsets({tp: -1}, read_committed=True)[tp].offset == 50
    topic_id = cluster.topics([tp.topic])[tp.topic].topic_id
    stream = FetchStream(cluster, tp, 0, 50, read_committed=True, max_bytes=20_000, topic_id=topic_id)
    assert sum(count_of_batches(chunk.records) for chunk in stream) == 50
    cluster.commit_offsets("readers", {tp: 50})
    assert cluster.committed_offsets("readers", [tp]) == {tp: 50}
    assert cluster.init_producer_id()[0] >= 0
    cluster.close()


def count_of_batches(records: memoryview) -> int:
    """Whole ones: Kafka cuts the last one off where its budget ends."""
    count = at = 0
    while len(records) - at >= 61 and len(records) - at >= read_header(records, at).size_bytes:
        at += read_header(records, at).size_bytes
        count += 1
    return count


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password(kafka: SecuredKafka, mechanism: str) -> None:
    security = security_from_settings(settings("SASL_PLAINTEXT", mechanism, "wrong"))
    with pytest.raises(AuthenticationFailed, match=f"refuses the {mechanism} credentials: Authentication failed"):
        BlockingCluster([("127.0.0.1", kafka.sasl_port)], security=security, timeout_s=60.0).topics()
