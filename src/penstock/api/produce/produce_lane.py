"""The fast path for the request that a busy producer repeats: one batch for one partition.

A client's produce requests for one partition differ only in correlation id and records: all bytes between are the same
every time. The lane remembers, per connection, how the general decoder and `ProduceHandler` interpreted those bytes. On
a match it goes straight from frame to log and from offset to reply.

    request (flexible versions, 9 to 13)                        response
    0   api key, version                                        size, correlation id
    4   correlation id                                          head: tags, topic, partition
    8   prefix: client id, tags, transactional id, acks,        error code, base offset
        timeout, 1 topic, its name or id, 1 partition           log append time (-1)
    e   length of records + 1, uvarint                          log start offset
        records                                                 tail: no errors, tags, throttle 0
    -3  three empty tag sections

Anything unusual (another prefix, several batches, transactions, an error) returns False and takes the general path,
which then answers: the lane never refuses anything itself. `tests/property/test_produce_lane.py` compares both paths.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from penstock.api.request_times import SAMPLED_EVERY, RequestTimes
from penstock.api.traffic import TopicTraffic, Traffic
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.net.connection import Connection
from penstock.ports.clock import Clock
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, validate_produced
from penstock.records.compression import NAMES
from penstock.replica.partition import Partition
from penstock.wire.primitives import uvarint

if TYPE_CHECKING:
    from penstock.wire.messages.produce import ProduceRequest

FIRST_VERSION = 9
MAX_TARGETS = 256  # prefixes remembered per connection
_HEAD = Struct(">hhi")
_PREFIX_AT = 8
_END = b"\0\0\0"
_TAIL = b"\x01\x00\x00\x00" + b"\0\0\0\0" + b"\0"  # no record errors, no message, tags, throttle, tags
_UNUSUAL = CONTROL_BIT | TRANSACTIONAL_BIT
_CODECS = len(NAMES)
ACKS_ALL = -1


class Target:
    """The meaning of one prefix."""

    __slots__ = ("_head", "_pack", "_size", "acks", "config", "partition", "timeout_s", "times", "traffic")

    def __init__(
        self,
        partition: Partition,
        acks: int,
        timeout_ms: int,
        topic: bytes,
        traffic: TopicTraffic,
        times: RequestTimes,
    ) -> None:
        self.partition = partition
        self.traffic = traffic
        self.times = times
        self.config = partition.config
        self.acks = acks
        self.timeout_s = timeout_ms / 1000
        # response header tags, 1 topic, its name or id, 1 partition, index
        self._head = b"\0\x02" + topic + b"\x02" + partition.index.to_bytes(4, "big")
        reply = Struct(f">ii{len(self._head)}shqqq{len(_TAIL)}s")
        self._pack = reply.pack
        self._size = reply.size - 4

    def reply(self, correlation_id: int, code: int, base_offset: int, log_start_offset: int) -> bytes:
        return self._pack(self._size, correlation_id, self._head, code, base_offset, -1, log_start_offset, _TAIL)


class LaneReply:
    """A written batch whose reply waits for the high watermark."""

    __slots__ = ("_connection", "_correlation_id", "_forget", "_reply", "_slot", "_target", "deadline")

    def __init__(
        self,
        connection: Connection,
        slot: int,
        target: Target,
        correlation_id: int,
        reply: bytes,
        deadline: float,
        forget: Callable[[LaneReply], object],
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._target = target
        self._correlation_id = correlation_id
        self._reply = reply
        self.deadline = deadline
        self._forget = forget

    def committed(self, code: ErrorCode) -> None:
        if self._slot < 0:
            return  # already answered as timed out
        self._forget(self)
        if not self._slot % SAMPLED_EVERY:
            self._observe()
        if code is not ErrorCode.NONE:
            self._reply = self._target.reply(self._correlation_id, code, -1, -1)
        self._connection.reply(self._slot, [self._reply])

    def _observe(self) -> None:
        self._target.times.answered(0, self.deadline - self._target.timeout_s, SAMPLED_EVERY)

    def expire(self) -> None:
        slot, self._slot = self._slot, -1
        if not slot % SAMPLED_EVERY:
            self._observe()
        code = ErrorCode.REQUEST_TIMED_OUT
        self._connection.reply(slot, [self._target.reply(self._correlation_id, code, -1, -1)])


class ProduceLane:
    """One connection's lane. All prefixes in it have the same version and length."""

    __slots__ = ("_clock", "_end", "_pending", "_targets", "_times", "_traffic", "_version", "taken")

    def __init__(self, clock: Clock, traffic: Traffic, times: RequestTimes, pending: dict[LaneReply, None]) -> None:
        self._clock = clock
        self._traffic = traffic
        self._times = times
        self._pending = pending
        self._version = -1
        self.taken = 0
        self._end = 0
        self._targets: dict[bytes, Target] = {}

    def learn(self, version: int, frame: memoryview, request: ProduceRequest, partition: Partition) -> None:
        """Call after the general path has appended `request` (one topic, one partition) without an error."""
        topic = request.topic_data[0]
        records = topic.partition_data[0].records
        if version < FIRST_VERSION or not _is_plain(partition.config) or not isinstance(records, memoryview):
            return
        if partition.topic in INTERNAL_TOPICS:
            return
        length = uvarint(len(records) + 1)
        end = len(frame) - len(_END) - len(records) - len(length)
        if end <= _PREFIX_AT or frame[-3:] != _END or frame[end : end + len(length)] != length:
            return
        if (version, end) != (self._version, self._end) or len(self._targets) >= MAX_TARGETS:
            self._targets.clear()
            self._version, self._end = version, end
        if version >= 13:
            encoded = topic.topic_id
        else:
            name = topic.name.encode()
            encoded = uvarint(len(name) + 1) + name
        traffic = self._traffic.of(partition.topic)
        self._targets[bytes(frame[_PREFIX_AT:end])] = Target(
            partition, request.acks, request.timeout_ms, encoded, traffic, self._times
        )

    def __call__(self, connection: Connection, slot: int, frame: memoryview) -> bool:
        """Handle the request, or return False with nothing done."""
        api_key, version, correlation_id = _HEAD.unpack_from(frame, 0)
        at = self._end
        if api_key or version != self._version:
            return False
        target = self._targets.get(bytes(frame[_PREFIX_AT:at]))
        if target is None:
            return False
        partition = target.partition
        config = target.config
        if partition.config is not config or partition.is_deleted:
            self._targets.clear()
            return False
        size = shift = 0
        try:
            while True:
                byte = frame[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        except IndexError:
            return False
        end = at + size - 1
        if end + 3 != len(frame) or frame[end:] != _END or size <= 1:
            return False
        records = frame[at:end]
        started_s = 0.0 if slot % SAMPLED_EVERY else self._times.now()
        now_ms = self._clock.now_ms()
        acks = target.acks
        try:
            header = validate_produced(records)
            if (
                header.attributes & _UNUSUAL
                or header.attributes & 7 >= _CODECS
                or len(records) > config.max_message_bytes
                or len(records) > config.segment_bytes
                or header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
                or now_ms - header.base_timestamp > config.message_timestamp_before_max_ms
            ):
                return False
            if acks == ACKS_ALL:
                partition.check_min_isr()
            base_offset = partition.append(header, records, now_ms)
        except (ApiError, StorageError):
            return False
        self.taken += 1
        traffic = target.traffic
        traffic.batches_in += 1
        traffic.bytes_in += len(records)
        traffic.records_in += header.record_count
        if acks == 0:
            connection.reply(slot, [])
            if started_s:
                self._times.answered(0, started_s, SAMPLED_EVERY)
            return True
        reply = target.reply(correlation_id, 0, base_offset, partition.log.log_start_offset)
        committed = base_offset + header.record_count
        if acks == ACKS_ALL and committed > partition.high_watermark:
            deadline = self._clock.monotonic() + target.timeout_s
            waiting = LaneReply(connection, slot, target, correlation_id, reply, deadline, self._pending.pop)
            self._pending[waiting] = None
            partition.when_committed(committed, waiting.committed)
        else:
            connection.reply(slot, [reply])
            if started_s:
                self._times.answered(0, started_s, SAMPLED_EVERY)
        return True


def _is_plain(config: TopicConfig) -> bool:
    """Batches go to the log unchanged: no codec of the topic, no checks of records, no new timestamp."""
    return (
        config.compression_type == "producer" and "compact" not in config.cleanup_policy and not config.log_append_time
    )
