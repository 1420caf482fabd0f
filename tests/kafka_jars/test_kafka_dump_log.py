"""Kafka's own dump-log tool reads our segments, indexes and snapshots without complaint.

Needs Java and Apache Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.processes.broker import BrokerProcess

pytestmark = pytest.mark.kafka_jars

TOOL = "org.apache.kafka.tools.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "created": {"segment.bytes": str(1 << 20)},
    "appended": {"segment.bytes": str(1 << 20), "message.timestamp.type": "LogAppendTime"},
    "recompressed": {"segment.bytes": str(1 << 20), "compression.type": "zstd", "index.interval.bytes": "512"},
}
RECORDS = 1500  # by codec and topic
COMPLAINT = re.compile(
    r"isvalid: false|mismatch|non-consecutive|out of order|corrupt|exception|not found|invalid|error", re.IGNORECASE
)
# With --deep-iteration 4.3.1 misses offset 0 in every segment that does not begin with it, also in Kafka's own.
FALSE_ALARM = re.compile(r"Non-consecutive offsets in \S*?(\d{20})\.log\n +-1 is followed by (\d+)\n")


@pytest.fixture(scope="module")
def data(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that served all sorts of batches and was stopped cleanly."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for made in admin.create_topics(topics).values():
            made.result(10)
        for number, codec in enumerate(CODECS):
            produce(broker.bootstrap_servers, codec, idempotent=number % 2 == 0)
        # A crash in the middle of its life must leave no trace that the tool minds.
        broker.kill()
        broker.start()
        produce(broker.bootstrap_servers, "lz4", idempotent=True)
        assert broker.terminate() == 0
        return broker.data


def produce(bootstrap_servers: str, codec: str, *, idempotent: bool) -> None:
    rng = random.Random(codec)
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "batch.num.messages": 20,
        }
    )
    for topic in TOPICS:
        for number in range(RECORDS):
            value = None if number % 50 == 0 else rng.randbytes(rng.randrange(1000)).hex()
            headers = [("codec", codec.encode())] if number % 3 else None
            producer.produce(topic, value, b"key-%d" % number, 0, headers=headers, on_delivery=on_delivery)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not failed


def kafka_dump(jars: str, files: list[Path], *flags: str) -> str:
    """The standard output of the tool; its complaints go to standard error, and there are none."""
    assert files
    command = ["java", "-cp", jars, TOOL, *flags, "--files", ",".join(map(str, files))]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    complaints = FALSE_ALARM.sub(lambda match: "" if int(match[1]) == int(match[2]) else match[0], result.stderr)
    assert not COMPLAINT.search(complaints), complaints
    return result.stdout


def files_of(data: Path, topic: str, suffix: str) -> list[Path]:
    return sorted((data / f"{topic}-0").glob(f"*{suffix}"))


@pytest.mark.parametrize("topic", TOPICS)
def test_batches_and_records(jars: str, data: Path, topic: str) -> None:
    logs = files_of(data, topic, ".log")
    assert len(logs) > 2
    said = kafka_dump(jars, logs, "--deep-iteration")
    assert not COMPLAINT.search(said)
    said = kafka_dump(jars, logs, "--deep-iteration", "--print-data-log", "--skip-record-metadata")
    batches = [line for line in said.splitlines() if line.startswith("baseOffset")]
    assert all("isvalid: true" in line for line in batches)
    offsets = [int(word) for line in batches for word in re.findall(r"(?:baseOffset|lastOffset): (\d+)", line)]
    ends, starts = offsets[1::2], offsets[::2]
    assert starts == [0, *(end + 1 for end in ends[:-1])]
    assert ends[-1] == RECORDS * (len(CODECS) + 1) - 1
    codecs = set(re.findall(r"compresscodec: (\w+)", said))
    assert codecs == ({"zstd"} if topic == "recompressed" else set(CODECS))


@pytest.mark.parametrize("topic", TOPICS)
def test_indexes(jars: str, data: Path, topic: str) -> None:
    indexes = files_of(data, topic, ".index") + files_of(data, topic, ".timeindex")
    assert len(indexes) == 2 * len(files_of(data, topic, ".log"))
    assert any(index.stat().st_size for index in indexes)
    said = kafka_dump(jars, indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes), said
    for flags in (("--verify-index-only",), ()):
        said = kafka_dump(jars, indexes, *flags)
        assert not COMPLAINT.search(said), said


@pytest.mark.parametrize("topic", TOPICS)
def test_producer_snapshots(jars: str, data: Path, topic: str) -> None:
    snapshots = files_of(data, topic, ".snapshot")
    said = kafka_dump(jars, snapshots)
    assert not COMPLAINT.search(said)
    assert len(set(re.findall(r"producerId: (\d+)", said))) == 4  # none, snappy, zstd and the second lz4


def test_metadata_log(jars: str, data: Path) -> None:
    said = kafka_dump(jars, files_of(data, "__cluster_metadata", ".log"), "--deep-iteration", "--print-data-log")
    assert not COMPLAINT.search(said)
    assert "topic-created" in said


@pytest.mark.parametrize(("suffix", "at"), [(".index", 11), (".timeindex", 19), (".log", 100)])
def test_damage_would_be_noticed(jars: str, data: Path, tmp_path: Path, suffix: str, at: int) -> None:
    """Otherwise the silence of the tool would show nothing."""
    copy = tmp_path / "created-0"
    shutil.copytree(data / "created-0", copy)
    file = sorted(copy.glob(f"*{suffix}"))[0]
    damaged = bytearray(file.read_bytes())
    damaged[at] ^= 0x10
    file.write_bytes(damaged)
    with pytest.raises(AssertionError):
        assert not COMPLAINT.search(kafka_dump(jars, [file]))
