"""The speed of the driver against a sink that does nothing: the upper limit of what it can measure.

The sink is a separate process that reads requests of a known size into one buffer and answers each with the same few
bytes. If a broker comes near this figure, the driver was the bottleneck.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
from multiprocessing.connection import Connection

from bench.load import wire
from bench.load.client import HOST
from bench.load.driver import ProduceLoad, Throughput, produce

_TOPIC = "sink"


def _answer(topic: str) -> bytearray:
    body = (
        struct.pack(">iBBB", 0, 0, 2, len(topic) + 1) + topic.encode() + b"\2" + struct.pack(">ihqqq", 0, 0, 0, -1, 0)
    )
    body += b"\1\0\0\0" + struct.pack(">i", 0) + b"\0"
    return bytearray(struct.pack(">i", len(body)) + body)


def _sink(ready: Connection, request_bytes: int) -> None:
    with socket.create_server((HOST, 0)) as server:
        ready.send(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer, answer = bytearray(1 << 20), _answer(_TOPIC)
        received = answered = 0
        while count := connection.recv_into(buffer):
            received += count
            while received >= request_bytes:
                received -= request_bytes
                struct.pack_into(">i", answer, 4, answered & 0x7FFFFFFF)
                connection.sendall(answer)
                answered += 1


def against_sink(record_bytes: int, batch_bytes: int, request_count: int) -> Throughput:
    """Produce into a sink. Its request size equals the real one's for the same record and batch size."""
    load = ProduceLoad(_TOPIC, 1, record_bytes, batch_bytes, request_count, max_seconds=10.0)
    batch = wire.random_batch(record_bytes, load.records_per_request)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sink = context.Process(
        target=_sink, args=(theirs, len(wire.produce_request(_TOPIC, 0, batch))), daemon=True, name="sink"
    )
    sink.start()
    theirs.close()  # so that a sink that could not start is an EOFError below, not a wait
    try:
        return produce(int(ours.recv()), load)
    finally:
        sink.join(10.0)
        if sink.is_alive():
            sink.terminate()
