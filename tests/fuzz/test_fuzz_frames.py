"""100,000 mutated and random frames at a real broker: it answers or closes, never hangs, never grows.

A frame counts when the broker has answered it or has closed its connection over it; what was sent behind such a
frame does not. PENSTOCK_FUZZ_FRAMES and PENSTOCK_FUZZ_SEED change the number and the seed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from frames import TOPIC, FrameFactory, Script

from penstock.model.errors import ProtocolError
from penstock.wire.apis import Api
from penstock.wire.codec import decode_request, encode_request, read_request_header
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.produce import ProduceRequest
from support.clients.raw import RawClient, join
from support.processes.broker import BrokerProcess

FRAMES = int(os.environ.get("PENSTOCK_FUZZ_FRAMES", "100000"))
SEED = int(os.environ.get("PENSTOCK_FUZZ_SEED", "5"))
CONNECTIONS = 48
FRAMES_A_CONNECTION = 6
PATIENCE_S = 10.0
IDLE_MS = 3000
SETTINGS = {
    "num.partitions": "2",
    "fetch.max.bytes": "4096",
    "connections.max.idle.ms": str(IDLE_MS),
    "log.flush.interval.messages": str(2**63 - 1),
}
MAX_GROWTH_BYTES = 16 << 20
SENTINEL = 0x5E271E1
_SIZE_AND_ID = struct.Struct(">ii")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, SETTINGS)
    with process:
        with RawClient(process.port) as client:
            client.make_topic(TOPIC)
        process.terminate()
        # From here on a name in a Metadata request is only a name.
        process.settings["auto.create.topics.enable"] = "false"
        process.start()
        yield process


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_sockets(pid: int) -> int:
    """Not all descriptors: a log opens its file when it is first written to, and groups are written to many."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return count


def await_true(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def settled_sockets(pid: int) -> int:
    """Their number once the broker has closed what its clients closed: the same for half a second."""
    count, since, deadline = open_sockets(pid), time.monotonic(), time.monotonic() + PATIENCE_S
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline, "the number of sockets does not settle"
        time.sleep(0.02)
        if (now := open_sockets(pid)) != count:
            count, since = now, time.monotonic()
    return count


class Conversation:
    """One connection: everything is sent at once, then answers are counted until the sentinel's or the end."""

    def __init__(self, port: int, script: Script, sentinel: bytes) -> None:
        self.script = script
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.answered = 0
        self.is_closed_by_broker = False
        self.deadline = time.monotonic() + 1.0
        self.is_late = False
        self._unsent = memoryview(b"".join(script.frames) + (b"" if script.is_open_ended else sentinel))
        self._received = bytearray()
        self.is_done = False
        self.send()

    @property
    def is_sending(self) -> bool:
        return len(self._unsent) > 0

    @property
    def handled(self) -> int:
        """Frames that had an effect."""
        return min(self.answered + self.is_closed_by_broker, len(self.script.frames))

    def send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            if self.script.is_open_ended:
                self.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # closed already; what it said before may still be read

    def receive(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed_by_broker = True
            self.is_done = True
            return
        self._received += data
        while len(self._received) >= 8:
            size, correlation_id = _SIZE_AND_ID.unpack_from(self._received)
            assert size >= 4, "an answer that is no frame"
            if len(self._received) < 4 + size:
                return
            del self._received[: 4 + size]
            if correlation_id == SENTINEL:
                self.answered = len(self.script.frames)
                self.is_done = True
                return
            self.answered += 1

    def may_wait(self) -> bool:
        """Whether one of the frames really asks to be answered later than we care to wait."""
        return any(_waiting_ms(frame) > 900 for frame in self.script.frames)


def _waiting_ms(frame: bytes) -> int:
    try:
        key, version, _, _, at = read_request_header(frame, 4)
        request = decode_request(key, version, frame, at)
    except ProtocolError:
        return 0
    if isinstance(request, FetchRequest):
        return request.max_wait_ms
    return request.timeout_ms if isinstance(request, ProduceRequest) else 0


class Fuzzer:
    """Keeps many conversations going until enough frames were handled."""

    def __init__(self, port: int, factory: FrameFactory) -> None:
        self.port = port
        self.factory = factory
        parts, _ = encode_request(Api.API_VERSIONS, 0, SENTINEL, None, ApiVersionsRequest())
        self.sentinel = join(parts)
        self.handled = self.answered = self.closed = self.connections = self.waiting = 0

    def run(self, frames: int) -> None:
        goal = self.handled + frames
        with selectors.DefaultSelector() as selector:
            while self.handled < goal or selector.get_map():
                while self.handled < goal and len(selector.get_map()) < CONNECTIONS:
                    self._open(selector)
                for key, _ in selector.select(0.1):
                    conversation = key.data
                    if conversation.is_sending:
                        conversation.send()
                        selector.modify(conversation.socket, _events(conversation), conversation)
                    conversation.receive()
                now = time.monotonic()
                for key in list(selector.get_map().values()):
                    if key.data.is_done or now > key.data.deadline:
                        self._settle(selector, key.data)

    def _open(self, selector: selectors.BaseSelector) -> None:
        script = self.factory.script(FRAMES_A_CONNECTION)
        conversation = Conversation(self.port, script, self.sentinel)
        selector.register(conversation.socket, _events(conversation), conversation)
        self.connections += 1

    def _settle(self, selector: selectors.BaseSelector, conversation: Conversation) -> None:
        if not conversation.is_done and not conversation.may_wait():
            if not conversation.is_late:
                conversation.is_late = True
                conversation.deadline += PATIENCE_S
                return
            frames = [frame.hex() for frame in conversation.script.frames]
            pytest.fail(f"neither answered nor closed after {conversation.answered} answers to {frames}")
        selector.unregister(conversation.socket)
        conversation.socket.close()
        self.handled += conversation.handled
        self.answered += conversation.answered
        self.closed += conversation.is_closed_by_broker
        self.waiting += not conversation.is_done


def _events(conversation: Conversation) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if conversation.is_sending else 0)


def factory_for(broker: BrokerProcess, seed: int) -> FrameFactory:
    with RawClient(broker.port) as client:
        versions = client.call(Api.API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, 0)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        topic = client.call(Api.METADATA, request, MetadataResponse).topics[0]
    served = {entry.api_key: (entry.min_version, entry.max_version) for entry in versions.api_keys}
    assert Api.PRODUCE in served
    assert Api.FETCH in served
    return FrameFactory(seed, served, topic.topic_id)


def check_good_client(broker: BrokerProcess) -> None:
    outcome: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(TOPIC, b"good", partition=1, on_delivery=lambda error, message: outcome.append((error, message)))
    assert producer.flush(10) == 0
    [(error, message)] = outcome
    assert error is None
    offset = message.offset()
    assert offset is not None
    with RawClient(broker.port) as client:
        answer = client.fetch(TOPIC, 1, offset)
        assert answer.error_code == 0
        assert isinstance(answer.records, bytes | memoryview)
        assert b"good" in bytes(answer.records)


def test_mutated_and_random_frames(broker: BrokerProcess) -> None:
    fuzzer = Fuzzer(broker.port, factory_for(broker, SEED))
    fuzzer.run(FRAMES // 10)  # caches, code paths and buffers take their room
    time.sleep(1.5)
    resident, open_before = resident_bytes(broker.pid), open_sockets(broker.pid)
    fuzzer.run(FRAMES - fuzzer.handled)
    assert fuzzer.handled >= FRAMES
    assert fuzzer.answered > FRAMES // 4, "the mutations hardly get past the decoder"
    assert fuzzer.closed > FRAMES // 100
    assert fuzzer.waiting < FRAMES // 100
    await_true(lambda: open_sockets(broker.pid) <= open_before + 4, "connections are left behind")
    assert resident_bytes(broker.pid) - resident < MAX_GROWTH_BYTES
    lines = broker.log().splitlines()
    assert not [line for line in lines if "Traceback" in line or "Error:" in line]
    assert len(lines) < fuzzer.connections + 20, "more than one line a connection"
    check_good_client(broker)
    assert broker.terminate() == 0


def test_parked_fetches_go_with_their_clients(broker: BrokerProcess) -> None:
    """Long polls of weeks, some with a request behind them that keeps the broker from reading on."""
    asked = FetchTopic(topic=TOPIC, partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
    request = FetchRequest(max_wait_ms=(1 << 31) - 1, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=[asked])
    check_good_client(broker)
    open_before = settled_sockets(broker.pid)
    for _ in range(3):
        clients = [RawClient(broker.port) for _ in range(100)]
        for number, client in enumerate(clients):
            client.send(Api.FETCH, request)
            if number % 2:
                client.send(Api.API_VERSIONS, ApiVersionsRequest(), 0)
        await_true(lambda: open_sockets(broker.pid) >= open_before + 100, "the connections are not accepted")
        time.sleep(0.1)  # for the requests on them
        for client in clients:
            client.close()
        await_true(lambda: open_sockets(broker.pid) <= open_before, "connections are left behind")
    check_good_client(broker)
    assert "Traceback" not in broker.log()


def test_slow_drip_and_half_frames(broker: BrokerProcess) -> None:
    """A frame byte by byte is served; one that never ends is closed as idle; neither stops anyone else."""
    factory = factory_for(broker, SEED)
    parts, _ = encode_request(Api.API_VERSIONS, 4, SENTINEL, "drip", ApiVersionsRequest())
    whole = join(parts)
    half = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(50)]
    for number, sock in enumerate(half):
        frame = factory.mutable[number]
        sock.sendall(frame[: 1 + number % (len(frame) - 1)])
    with socket.create_connection(("127.0.0.1", broker.port)) as sock:
        sock.settimeout(PATIENCE_S)
        for byte in whole:
            sock.sendall(bytes((byte,)))
            time.sleep(0.005)
        size, correlation_id = _SIZE_AND_ID.unpack(sock.recv(8, socket.MSG_WAITALL))
        assert size > 4
        assert correlation_id == SENTINEL
    check_good_client(broker)
    for sock in half:
        sock.settimeout(IDLE_MS / 1000 + PATIENCE_S)
        with sock:
            assert sock.recv(1) == b""
    assert "Traceback" not in broker.log()
