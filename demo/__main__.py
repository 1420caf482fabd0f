"""`make demo`: the main job end to end, with a stock Kafka client. Ends by itself.

Starts a broker process, creates a topic, produces and consumes with confluent-kafka, kills
the broker with SIGKILL and shows that nothing acknowledged is gone, says where the bytes
lie, cleans up. Settings a person would use: none but `bootstrap.servers`; librdkafka's remarks about
a broker that is killed on purpose are kept off the screen.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "demo-events"
PARTITIONS = 3
RECORDS = 200_000
VALUE_BYTES = 200
TIMEOUT_S = 60.0
SILENT = 0  # librdkafka's log_level


def say(text: str) -> None:
    print(f"\033[1m==>\033[0m {text}" if sys.stdout.isatty() else f"==> {text}", flush=True)


def start_broker(data: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "penstock.cli", "start", "--data", data, "--port", str(port)]
    command += ["--set", "penstock.http.listener=", "--set", "penstock.line.listener="]
    command += ["--log-level", "error"]  # what matters is said here
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if " ready on " not in line:
        sys.exit(f"the broker did not start (it said {line!r})")
    say(f"{line}  [{time.perf_counter() - started:.2f} s after the command]")
    return process, line.split(" ready on ")[1].split(": ")[0]


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": SILENT})
    for future in admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)]).values():
        future.result(TIMEOUT_S)
    say(f"created topic {TOPIC} with {PARTITIONS} partitions; default policy: acknowledged means on disk")


def produce(bootstrap: str) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": SILENT})
    acknowledged = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            sys.exit(f"a record was refused: {error}")
        acknowledged += 1

    value = os.urandom(VALUE_BYTES // 2).hex().encode()
    started = time.perf_counter()
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(TOPIC, key=f"key-{number}", value=value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(TIMEOUT_S)
    seconds = time.perf_counter() - started
    megabytes = RECORDS * VALUE_BYTES / 1e6
    say(
        f"produced {acknowledged:,} records ({megabytes:.0f} MB) with confluent-kafka in {seconds:.2f} s: "
        f"{acknowledged / seconds:,.0f} records/s, {megabytes / seconds:.0f} MB/s, "
        "each flushed before its acknowledgement"
    )
    return acknowledged


def consume(bootstrap: str, expected: int) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False, "log_level": SILENT}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    keys: set[bytes] = set()
    received = 0
    started = time.perf_counter()
    while received < expected and time.perf_counter() - started < TIMEOUT_S:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                sys.exit(f"cannot consume: {message.error()}")
            received += 1
            keys.add(bytes(message.key() or b""))
    seconds = time.perf_counter() - started
    consumer.close()
    if received != expected or len(keys) != expected:
        sys.exit(f"expected {expected} records once each, got {received} with {len(keys)} different keys")
    rate = received / seconds
    say(f"consumed all {received:,} records, each exactly once, in {seconds:.2f} s: {rate:,.0f} records/s")


def show_files(data: str) -> None:
    say(f"the bytes lie in {data}, in Kafka's own format:")
    for path in sorted(Path(data).glob(f"{TOPIC}-*/*")):
        print(f"      {path.stat().st_size:>12,}  {path.relative_to(data)}")
    log = next(Path(data).glob(f"{TOPIC}-0/*.log"))
    say(f"penstock log dump {log.relative_to(data)}")
    dump = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "log", "dump", str(log)], capture_output=True, text=True, check=True
    )
    lines = dump.stdout.splitlines()
    print("\n".join(f"      {line}" for line in [*lines[:4], "..." if len(lines) > 5 else "", lines[-1]] if line))


def main() -> None:
    data = tempfile.mkdtemp(prefix="penstock-demo-")
    broker: subprocess.Popen[str] | None = None
    try:
        broker, bootstrap = start_broker(data)
        create_topic(bootstrap)
        acknowledged = produce(bootstrap)
        consume(bootstrap, acknowledged)
        say("kill -9, and start again from the same directory")
        broker.send_signal(signal.SIGKILL)
        broker.wait()
        broker, bootstrap = start_broker(data)
        consume(bootstrap, acknowledged)
        broker.send_signal(signal.SIGTERM)
        if broker.wait(TIMEOUT_S) != 0:
            sys.exit(f"the broker stopped with exit code {broker.returncode}")
        show_files(data)
        say("stopped cleanly; the data directory is removed. `penstock start` keeps yours.")
    finally:
        if broker is not None and broker.poll() is None:
            broker.kill()
            broker.wait()
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
