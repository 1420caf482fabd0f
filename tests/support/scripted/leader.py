"""A leader that says what a test tells it to, and a broker that follows it, in a simulated world.

The leader is no broker: it notes every fetch and acknowledgement and answers fetches from a queue; when that is empty
it holds them as a leader without news would. The follower is real from its sockets to its (simulated) disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, cast

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import PartitionState
from penstock.records.batch import read_header, with_prefix
from penstock.records.builder import Record, build_batch
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.log_directories import log_config
from penstock.replica.partition import Partition
from penstock.replica.set_aside import SetAside
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.storage.cut import Cut
from penstock.storage.group_commit import GroupCommit
from penstock.storage.log import Log
from penstock.wire.acknowledgement import ACKNOWLEDGE_KEY, DISOWN_KEY, WAKE_KEY, Acknowledged, read_acknowledgement
from penstock.wire.apis import Api
from penstock.wire.codec import decode_request, encode_response, read_request_header
from penstock.wire.introduction import INTRODUCE_KEY
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.primitives import Message
from support.worlds.hosts import Listening, lone_host
from support.worlds.peers import ScriptedIntroductions, identity

LEADER, FOLLOWER = 1, 2
PORT = 9092
SESSION = 77
TOPIC_ID = bytes(range(16))

Answer: TypeAlias = "FetchResponse | Callable[[FetchRequest], FetchResponse]"


def batch(offset: int, epoch: int, *, value: bytes = b"v", count: int = 1) -> bytes:
    data = build_batch([Record(b"k", value, (), 1_700_000_000_000 + n) for n in range(count)])
    return with_prefix(data, offset, epoch)


def batches(offset: int, count: int, epoch: int) -> bytes:
    return b"".join(batch(offset + n, epoch) for n in range(count))


def says(index: int = 0, topic_id: bytes = TOPIC_ID, **fields: object) -> FetchResponse:
    """An answer about one partition."""
    fields.setdefault("high_watermark", 0)
    fields.setdefault("log_start_offset", 0)
    data = PartitionData(partition_index=index, aborted_transactions=None, **fields)  # type: ignore[arg-type]
    return FetchResponse(session_id=SESSION, responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])])


class ScriptedLeader:
    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.respond: Callable[[FetchRequest], FetchResponse | None] = lambda _: None  # when nothing is queued
        self.show: Callable[[FetchRequest], FetchResponse] = lambda request: self.respond(request) or FetchResponse()
        self.looks: list[FetchRequest] = []
        self.fetches: list[FetchRequest] = []
        self.arrivals_s: list[float] = []
        self.acknowledged: list[Acknowledged] = []
        self.acknowledging_frames = 0
        self.disowned: list[Acknowledged] = []
        self.wakes = 0
        self.connections = 0
        self.others: list[Message] = []
        self.other_answers: deque[Message] = deque()
        self._open: list[_Connection] = []

    async def serve(self, ports: SimPorts) -> asyncio.AbstractServer:
        self.loop = ports.loop
        return await ports.loop.create_server(lambda: _Connection(self), None, PORT)

    def hang_up(self) -> None:
        for connection in self._open:
            connection.transport.abort()
        self._open = []

    def release(self) -> None:
        """Answer what is held, with what is queued now."""
        for connection in self._open:
            connection.answer_held()


class _Connection(asyncio.Protocol):
    def __init__(self, leader: ScriptedLeader) -> None:
        self._leader = leader
        self._buffer = bytearray()
        self._introductions = ScriptedIntroductions()
        self._held: tuple[int, int, FetchRequest] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._leader.connections += 1
        self._leader._open.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._held = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := int.from_bytes(self._buffer[:4], "big")):
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        leader = self._leader
        key, version, correlation_id, _, at = read_request_header(frame)
        if key == INTRODUCE_KEY:
            self.transport.write(self._introductions.answer(correlation_id, frame[at:]))
        elif key == DISOWN_KEY:
            leader.disowned.extend(read_acknowledgement(frame[at:])[2])
            self.answer_held()  # a barrier
        elif key == ACKNOWLEDGE_KEY:
            replica_id, _, entries = read_acknowledgement(frame[at:])
            assert replica_id == FOLLOWER
            leader.acknowledging_frames += 1
            leader.acknowledged.extend(entries)
        elif key == WAKE_KEY:
            leader.wakes += 1
            self.answer_held()
        elif key == Api.FETCH:
            assert version == 17
            request = decode_request(key, version, frame, at)
            assert isinstance(request, FetchRequest)
            if request.session_epoch == -1:  # a look at batches, not replication
                self.answer_held()
                leader.looks.append(request)
                self._write(key, version, correlation_id, leader.show(request))
                return
            assert self._held is None, "one fetch at a time"
            leader.fetches.append(request)
            leader.arrivals_s.append(leader.loop.time())
            self._held = (version, correlation_id, request)
            if not leader.answers and (answer := leader.respond(request)) is not None:
                leader.answers.append(answer)
            if leader.answers or request.max_wait_ms == 0:
                self.answer_held()
            else:
                self._timer = leader.loop.call_later(request.max_wait_ms / 1000, self.answer_held)
        else:
            self.answer_held()
            leader.others.append(decode_request(key, version, frame, at))
            self._write(key, version, correlation_id, leader.other_answers.popleft())

    def answer_held(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._held is None:
            return
        version, correlation_id, request = self._held
        self._held = None
        answer: Answer = self._leader.answers.popleft() if self._leader.answers else FetchResponse(session_id=SESSION)
        self._write(Api.FETCH, version, correlation_id, answer(request) if callable(answer) else answer)

    def _write(self, key: int, version: int, correlation_id: int, message: Message) -> None:
        parts, _ = encode_response(key, version, correlation_id, message)
        self.transport.write(b"".join(cast("list[bytes]", parts)))


class Config:
    """A `Running`."""

    def __init__(self, overrides: dict[str, str]) -> None:
        self.current = BrokerConfig.load(None, {"log.dirs": "/data", **overrides})[0]


class FollowingBroker:
    """The follower's process: partitions by index, all of one topic."""

    def __init__(self, world: SimWorld, count: int = 1, *, settings: dict[str, str] | None = None) -> None:
        self.world = world
        self.machine = world.machine("follower")
        self.leader_machine = world.machine("leader")
        self.leader = ScriptedLeader()
        self._count = count
        self._topic = TopicConfig.resolve(settings or {})
        self.running = Config({"node.id": str(FOLLOWER)})
        self.partitions: list[Partition] = []
        self.broker_epoch = 40
        self.lowered: list[tuple[Partition, int]] = []
        self.persisted = 0
        self.lowering: Coroutine[Any, Any, None] | None = None  # what happens while it is being written
        self.addresses: dict[int, tuple[str, int]] = {LEADER: ("leader", PORT)}

    async def start(self) -> None:
        await self.leader_machine.start(self.leader.serve)
        await self.machine.start(self._run)

    async def _run(self, ports: SimPorts) -> None:
        ports.disk.make_directory("/data")
        self._set_aside = SetAside(ports.disk, "/data", ports.workers, ports.entropy)
        commit = GroupCommit(ports.loop.call_soon, ports.flusher)
        host = lone_host(FOLLOWER, ports.clock)
        for index in range(self._count):
            log = Log.open(
                ports.disk,
                f"/data/topic-{index}",
                log_config(self._topic, self.running.current),
                now_ms=ports.clock.now_ms(),
                topic_id=TOPIC_ID,
            )
            self.partitions.append(Partition("topic", TOPIC_ID, index, log, self._topic, commit, host))
        self.fetchers = ReplicaFetchers(
            ports.loop,
            identity(FOLLOWER),
            lambda: self.broker_epoch,
            self.addresses.get,
            self,
            self.running,
            ports.workers,
            ports.clock,
        )
        host.events = Listening(
            log_unusable=self.fetchers.withdrawals.look_at, damage_found=self.fetchers.repairs.found
        )
        self.clock = ports.clock

    async def least_end_after_cut(self, partition: Partition, offset: int) -> int:
        return partition.log.least_end_after_cut(offset)

    async def deletion_ended(self, partition: Partition) -> None:
        assert not partition.log.is_deleting

    async def lower_recovery_point(self, partition: Partition, offset: int) -> None:
        if self.lowering is not None:
            await self.lowering
        self.lowered.append((partition, offset))
        partition.log.persisted_recovery_point = min(partition.log.persisted_recovery_point, offset)

    async def persist_offsets(self) -> None:
        self.persisted += 1

    @property
    def set_aside(self) -> SetAside:
        return self._set_aside

    def start_over(self, partition: Partition) -> Cut:
        raise NotImplementedError("logs that cannot be opened are the business of real brokers")

    def write_own(self, partition: Partition, data: bytes) -> None:
        """The records of the replica before it follows a leader."""
        partition.log.append_replicated(data, self.clock.now_ms())

    async def follow(self, epoch: int = 1, leader: int = LEADER, isr: tuple[int, ...] = (LEADER,)) -> None:
        """Does the metadata's part, in the follower's process."""

        async def apply() -> None:
            for partition in self.partitions:
                self.change(partition, epoch, leader, isr)

        await self.machine.run(apply())

    def change(self, partition: Partition, epoch: int, leader: int, isr: tuple[int, ...]) -> None:
        state = PartitionState(
            index=partition.index,
            replicas=(LEADER, FOLLOWER, 3),
            leader=leader,
            leader_epoch=epoch,
            isr=isr,
            partition_epoch=partition.partition_epoch + 1,
        )
        partition.apply_state(state)
        self.fetchers.role_changed(partition)


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.002)


def ends_at(partition: Partition, offset: int) -> Callable[[], bool]:
    return lambda: partition.log.log_end_offset == offset


def stored(partition: Partition) -> list[tuple[int, int]]:
    """(offset, leader epoch) of every batch on disk."""
    found: list[tuple[int, int]] = []
    at = partition.log.log_start_offset
    while (piece := partition.log.reader.read(at, 1 << 20)) is not None:
        data = piece.read()
        position = 0
        while position < len(data):
            header = read_header(data, position)
            found.append((header.base_offset, header.leader_epoch))
            position += header.size_bytes
            at = header.next_offset
    return found
