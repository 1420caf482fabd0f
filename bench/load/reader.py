"""The fetching load: every partition from start to high watermark, one connection and one request each at a time.

It verifies the data: every batch must start at the expected offset, the checksums of the first answer of each partition
are checked, and the number of records must be the number that was acknowledged.

Like `driver`, one thread and one epoll loop, and no knowledge of the broker.
"""

from __future__ import annotations

import select
import struct
import time

from bench.load import wire
from bench.load.driver import ANSWER_HEAD, STALL_S, LoadFailed, Throughput, connect, quiet_interpreter

_INT32 = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_BATCH_HEAD = struct.Struct(">qi")  # base offset, batch length

FETCH_MAX_BYTES = 1 << 20  # the default of stock consumers, by partition


class _FetchPipe:
    """One connection that reads one partition from its start, one request at a time."""

    __slots__ = ("_buffer", "_checked", "_filled", "_request", "_topic", "_view", "done", "offset", "records", "sock")

    def __init__(self, port: int, topic: str, partition: int) -> None:
        self.sock = connect(port)
        self._topic = topic
        self._request = wire.fetch_request(topic, partition, FETCH_MAX_BYTES, max_wait_ms=500)
        # A broker may answer with one whole batch beyond the limit.
        self._buffer = bytearray(4 * FETCH_MAX_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._checked = False
        self.offset = 0
        self.records = 0
        self.done = False

    def ask(self) -> None:
        frame, offset_at = self._request
        _INT32.pack_into(frame, wire.CORRELATION_AT, self.offset & 0x7FFFFFFF)
        _OFFSET.pack_into(frame, offset_at, self.offset)
        if self.sock.send(frame) != len(frame):
            raise LoadFailed("a fetch request did not fit the socket")

    def receive(self) -> None:
        try:
            count = self.sock.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return
        if count == 0:
            raise LoadFailed("the broker closed the connection")
        self._filled += count
        if self._filled < 8:
            return
        size, correlation = ANSWER_HEAD.unpack_from(self._buffer)
        if size + 4 > len(self._buffer):
            raise LoadFailed(f"answer of {size} bytes to a fetch of {FETCH_MAX_BYTES}")
        if self._filled < size + 4:
            return
        if correlation != self.offset & 0x7FFFFFFF:
            raise LoadFailed("answer to another fetch")
        self._filled = 0
        self._take(self._view[4 : size + 4])

    def _take(self, answer: memoryview) -> None:
        fetched = wire.read_fetch(answer, self._topic)
        if fetched.error:
            raise wire.BrokerError("fetch", fetched.error)
        if not self._checked:  # the checksums of one answer by partition: proof of data without the cost of all
            wire.check_batches(answer[fetched.start : fetched.end])
            self._checked = True
        at, end, offset = fetched.start, fetched.end, self.offset
        while end - at >= 61:
            base, length = _BATCH_HEAD.unpack_from(answer, at)
            if at + 12 + length > end:
                break
            if base != offset:
                raise LoadFailed(f"batch at offset {base} where {offset} was due")
            offset = base + int(_INT32.unpack_from(answer, at + 23)[0]) + 1
            at += 12 + length
        self.records += offset - self.offset
        if offset == self.offset and offset < fetched.high_watermark:
            raise LoadFailed(f"no whole batch at offset {offset} below the high watermark")
        self.offset = offset
        if offset >= fetched.high_watermark:
            self.done = True
        else:
            self.ask()


def fetch(port: int, topic: str, partitions: int, record_bytes: int, expected_records: int) -> Throughput:
    """Read every partition from start to high watermark, each on its own connection."""
    pipes = {pipe.sock.fileno(): pipe for pipe in (_FetchPipe(port, topic, p) for p in range(partitions))}
    poller = select.epoll()
    try:
        for fd in pipes:
            poller.register(fd, select.EPOLLIN)
        with quiet_interpreter():
            cpu, start = time.process_time(), time.perf_counter()
            for pipe in pipes.values():
                pipe.ask()
            left = len(pipes)
            while left:
                events = poller.poll(STALL_S)
                if not events:
                    raise LoadFailed(f"no answer for {STALL_S:.0f} s")
                for fd, _ in events:
                    pipe = pipes[fd]
                    pipe.receive()
                    if pipe.done:
                        left -= 1
                        poller.unregister(fd)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        poller.close()
        for pipe in pipes.values():
            pipe.sock.close()
    records = sum(pipe.records for pipe in pipes.values())
    if records != expected_records:
        raise LoadFailed(f"{records} records read, {expected_records} were acknowledged")
    return Throughput(seconds, 0, records, records * record_bytes, cpu)
