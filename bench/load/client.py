"""A blocking connection for the work around a measurement: create, delete, wait, one record.

It is not for load. It checks the correlation id and the error code of every answer.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from bench.load import wire
from penstock.model.errors import ErrorCode

HOST = "127.0.0.1"

# Errors that a broker may return for a moment after its start or the creation of a topic.
_NOT_YET = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.INVALID_REPLICATION_FACTOR,  # no broker has registered yet
    }
)


class Client:
    def __init__(self, port: int, timeout_s: float = 120.0) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def call(self, frame: bytearray) -> bytes:
        self._correlation += 1
        struct.pack_into(">i", frame, wire.CORRELATION_AT, self._correlation)
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        if int.from_bytes(answer[:4], "big") != self._correlation:
            raise ConnectionError("answer to another request")
        return answer

    def _read(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            part = self._socket.recv(min(size - len(out), 1 << 20))
            if not part:
                raise ConnectionError("closed by the broker")
            out += part
        return bytes(out)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        request = wire.create_topics_request([wire.NewTopic(name, partitions, configs or {})])
        code = wire.read_topic_errors(self.call(request), with_message=True)[name]
        if code:
            raise wire.BrokerError(f"create topic {name}", code)

    def delete_topics(self, names: Sequence[str]) -> None:
        errors = wire.read_topic_errors(self.call(wire.delete_topics_request(names)), with_message=False)
        for name, code in errors.items():
            if code:
                raise wire.BrokerError(f"delete topic {name}", code)

    def metadata(self, names: Sequence[str]) -> wire.ClusterState:
        return wire.read_metadata(self.call(wire.metadata_request(names)))

    def wait_for_leaders(self, partitions_by_topic: Mapping[str, int], timeout_s: float = 60.0) -> None:
        """Waits until every partition has a leader: an earlier produce would count the election as load."""
        deadline = time.monotonic() + timeout_s
        names = list(partitions_by_topic)
        while True:
            topics = self.metadata(names).topics
            if all(
                name in topics
                and not topics[name].error
                and len(topics[name].leaders) == count
                and min(topics[name].leaders) >= 0
                for name, count in partitions_by_topic.items()
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no leader for every partition of {', '.join(names)} within {timeout_s:.0f} s")
            time.sleep(0.01)

    def wait_for_fetch(self, topic: str, partitions: int, timeout_s: float = 60.0) -> None:
        """Waits until every partition can be read: metadata may name a leader before its log is open."""
        deadline = time.monotonic() + timeout_s
        for partition in range(partitions):
            request = wire.fetch_request(topic, partition, max_bytes=1, max_wait_ms=0)
            while (error := wire.read_fetch(memoryview(self.call(request.frame)), topic).error) in _NOT_YET:
                if time.monotonic() > deadline:
                    raise wire.BrokerError(f"fetch from {topic}-{partition}", error)
                time.sleep(0.005)
            if error:
                raise wire.BrokerError(f"fetch from {topic}-{partition}", error)

    def produce_one(self, topic: str, partition: int, batch: bytes) -> None:
        """One batch, once. Raises BrokerError."""
        answer = self.call(wire.produce_request(topic, partition, batch))
        (code,) = struct.unpack_from(">h", answer, wire.produce_error_at(topic))
        if code:
            raise wire.BrokerError(f"produce to {topic}-{partition}", code)

    def produce_when_ready(self, topic: str, partition: int, batch: bytes, timeout_s: float = 60.0) -> None:
        """Like `produce_one`, with retries while the broker is not ready for this partition."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.produce_one(topic, partition, batch)
            except wire.BrokerError as error:
                if error.code not in _NOT_YET or time.monotonic() > deadline:
                    raise
                time.sleep(0.002)


def first_acknowledged(
    port: int, topic: str, partition: int, timeout_s: float, *, create: bool, check_alive: Callable[[], None]
) -> None:
    """Retries until one record is acknowledged. With `create`, it creates the topic first.

    `check_alive` raises if the broker has died.
    """
    deadline = time.monotonic() + timeout_s
    batch = wire.random_batch(100, 1)
    created = not create
    while True:
        try:
            with Client(port, timeout_s=10.0) as client:
                while True:
                    try:
                        if not created:
                            client.create_topic(topic)
                            created = True
                        client.produce_one(topic, partition, batch)
                        return
                    except wire.BrokerError as error:
                        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and create:
                            created = True
                        elif error.code not in _NOT_YET:
                            raise
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"no record acknowledged within {timeout_s:.0f} s")
                    time.sleep(0.002)
        except (ConnectionError, TimeoutError):
            check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no record acknowledged within {timeout_s:.0f} s") from None
            time.sleep(0.002)
