"""The row with a stock client: confluent-kafka with only the address set (and the required group id).

Most of the cost is in the client; the row shows the view of that client's users.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load.client import HOST
from bench.load.driver import STALL_S, LoadFailed


class _Deliveries:
    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed: list[str] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(str(error))


def produce(port: int, topic: str, record_count: int, record_bytes: int) -> float:
    """Seconds from the first produce call to the last acknowledgement."""
    producer = Producer({"bootstrap.servers": f"{HOST}:{port}"})
    deliveries, value = _Deliveries(), b"\0" * record_bytes
    begin = time.perf_counter()
    for _ in range(record_count):
        while True:
            try:
                producer.produce(topic, value, partition=0, on_delivery=deliveries)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(STALL_S)
    seconds = time.perf_counter() - begin
    if deliveries.failed or deliveries.acknowledged != record_count:
        why = deliveries.failed[0] if deliveries.failed else "not all acknowledged in time"
        raise LoadFailed(f"{deliveries.acknowledged} of {record_count} records acknowledged: {why}")
    return seconds


def consume(port: int, topic: str, record_count: int) -> float:
    """Seconds from the assignment to the last record, without joining a group."""
    consumer = Consumer({"bootstrap.servers": f"{HOST}:{port}", "group.id": "bench", "enable.auto.commit": False})
    try:
        begin = time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while count < record_count:
            messages = consumer.consume(min(10_000, record_count - count), timeout=1.0)
            for message in messages:
                error = message.error()
                if error is not None:
                    raise LoadFailed(f"consume: {error}")
            count += len(messages)
            if not messages and time.perf_counter() - begin > STALL_S:
                raise LoadFailed(f"{count} of {record_count} records within {STALL_S:.0f} s")
        return time.perf_counter() - begin
    finally:
        consumer.close()
