"""The hostile peers. Each has a preparation, an attack for a limited time, and a check of the broker's promises.

`attack` runs in a separate process and calls `stage.begun` when it has started. `check` runs afterwards and returns the
broken promise, or an empty string. `scale` reduces topics, partitions and connections for a quick test.
"""

from __future__ import annotations

import contextlib
import http.client
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.hostile.peer import Peer, bomb, small_batch
from bench.load.client import HOST
from penstock.wire.apis import Api
from penstock.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from penstock.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.primitives import uvarint

LATEST = -1
MEBIBYTE = 1 << 20
LOST = (ConnectionError, TimeoutError)


@dataclass(slots=True)
class Stage:
    port: int
    http_port: int
    line_port: int
    scale: float = 1.0
    until: float = 0.0
    begun: Callable[[], None] = lambda: None

    def some(self, full: int, least: int = 1) -> int:
        return max(int(full * self.scale), least)

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def rest(self) -> None:
        """Until the time is over."""
        time.sleep(max(self.until - time.monotonic(), 0.0))


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    attack: Callable[[Stage], None]
    prepare: Callable[[Stage], None] = lambda stage: None
    check: Callable[[Stage], str] = lambda stage: ""
    descriptors: int | None = None
    settings: dict[str, str] = field(default_factory=dict)


def serves(stage: Stage) -> str:
    """A topic can be made, written and found."""
    with Peer(stage.port, 15.0) as peer:
        name = f"after-{time.monotonic_ns()}"
        codes = peer.create(name), peer.produce(name, small_batch(), acks=-1)
        if codes != (0, 0):
            return f"a new topic: codes {codes}"
        brokers = peer.call(Api.METADATA, 12, MetadataRequest(topics=[])).brokers
        if [broker.host for broker in brokers] != [HOST]:
            return f"metadata names {[broker.host for broker in brokers]}"
    return ""


# -- strangers ------------------------------------------------------------------------------------------------------


def _strangers(stage: Stage) -> None:
    """Frames of Raft with a term from the end of time, registrations and heartbeats of brokers that are none."""
    stage.begun()
    listener = Listener(name="PLAINTEXT", host="elsewhere.invalid", port=6666)
    registration = BrokerRegistrationRequest(broker_id=1, incarnation_id=b"\7" * 16, listeners=[listener])
    heartbeat = BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=1 << 30, want_shut_down=True)
    raft = struct.pack(">bii", 3, 9, 1) + struct.pack(">qqq", 2**31 - 1, 0, 0)
    while stage.goes_on():
        for key, version, message in ((62, 3, registration), (63, 1, heartbeat)):
            with contextlib.suppress(*LOST), Peer(stage.port, 2.0) as peer:
                peer.call(key, version, message)
        for key in (0x7001, 0x7002, 0x7003):
            with contextlib.suppress(*LOST), Peer(stage.port, 0.2) as peer:
                peer.send_raw(key, 0, raft, is_flexible=False)
                peer.receive()
        time.sleep(0.002)


# -- lookups by time, compaction: batches that unpack to millions ---------------------------------------------------


def _plant_bombs(stage: Stage) -> None:
    with Peer(stage.port) as peer:
        peer.create("bomb")
        peer.produce("bomb", bomb(stage.some(8_000_000, 100_000), has_keys=False))


def _ask_by_time(stage: Stage) -> None:
    asked = ListOffsetsPartition(timestamp=int(time.time() * 1000) - 60_000)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="bomb", partitions=[asked])])
    stage.begun()
    while stage.goes_on():
        with contextlib.suppress(*LOST), Peer(stage.port, 5.0) as peer:
            peer.call(Api.LIST_OFFSETS, 7, request)


def _compaction(stage: Stage) -> None:
    batch = bomb(stage.some(2_000_000, 100_000), has_keys=True)
    peers = [Peer(stage.port) for _ in range(4)]
    peers[0].create("compacted", cleanup_policy="compact")
    stage.begun()
    while stage.goes_on():
        for peer in peers:
            with contextlib.suppress(*LOST):
                peer.produce("compacted", batch)


# -- requests as large and as wide as they come ---------------------------------------------------------------------


def _large_frames(stage: Stage) -> None:
    size = 3 * MEBIBYTE
    names = size // 2
    entries = size // 37
    entry = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1000) + b"\0"
    fetch = struct.pack(">iiiibii", -1, 500, 1, 1 << 20, 0, 0, -1) + uvarint(2) + uvarint(6) + b"probe"
    bodies = (
        (3, 9, uvarint(names + 1) + b"\1\0" * names + b"\0\0\0\0"),
        (10, 4, b"\0" + uvarint(names + 1) + b"\2a" * names + b"\0"),
        (9, 8, uvarint(size // 4 + 1) + b"\2g\0\0" * (size // 4) + b"\0\0"),
        (1, 12, fetch + uvarint(entries + 1) + entry * entries + b"\0" + uvarint(1) + uvarint(1) + b"\0"),
        # Within the bounds: legal, and as wide as it may be.
        (3, 9, uvarint(40_001) + b"\4aaa\0" * 40_000 + b"\0\0\0\0"),
        (10, 4, b"\0" + uvarint(15_001) + b"\4abc" * 15_000 + b"\0"),
        (1, 12, fetch + uvarint(40_001) + entry * 40_000 + b"\0" + uvarint(1) + uvarint(1) + b"\0"),
    )
    stage.begun()
    while stage.goes_on():
        for key, version, body in bodies:
            with contextlib.suppress(*LOST), Peer(stage.port, 5.0) as peer:
                peer.send_raw(key, version, body)
                peer.receive()
            if not stage.goes_on():
                return


# -- fetches of many partitions -------------------------------------------------------------------------------------


def _make_wide(stage: Stage) -> None:
    with Peer(stage.port, 120.0) as peer:
        peer.create("wide", stage.some(5000, 200))


def _end_of_probe(peer: Peer) -> int:
    asked = ListOffsetsPartition(timestamp=LATEST)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="probe", partitions=[asked])])
    return int(peer.call(Api.LIST_OFFSETS, 7, request).topics[0].partitions[0].offset)


def _wide_fetch(stage: Stage, peer: Peer, **options: int) -> FetchRequest:
    wide = [FetchPartition(partition=at, partition_max_bytes=MEBIBYTE) for at in range(stage.some(5000, 200))]
    probe = FetchPartition(partition=0, fetch_offset=_end_of_probe(peer), partition_max_bytes=MEBIBYTE)
    topics = [FetchTopic(topic="probe", partitions=[probe]), FetchTopic(topic="wide", partitions=wide)]
    return FetchRequest(max_bytes=50 * MEBIBYTE, topics=topics, **options)


def _parked(stage: Stage) -> None:
    """One fetch that the healthy producer wakes with every record, and one of a single partition 20,000 times."""
    with Peer(stage.port) as wide, Peer(stage.port) as twice:
        request = _wide_fetch(stage, wide, max_wait_ms=120_000, min_bytes=1 << 30, session_epoch=-1)
        wide.send(Api.FETCH, 12, request)
        offset = _end_of_probe(twice)
        same = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MEBIBYTE)] * 20_000
        topics = [FetchTopic(topic="probe", partitions=same)]
        twice.send(Api.FETCH, 12, FetchRequest(max_wait_ms=120_000, min_bytes=1 << 30, session_epoch=-1, topics=topics))
        time.sleep(1.0)
        stage.begun()
        stage.rest()


def _sessions(stage: Stage) -> None:
    """An idle session of many partitions that asks without a pause."""
    with Peer(stage.port) as peer:
        first = peer.call(Api.FETCH, 12, _wide_fetch(stage, peer, max_wait_ms=0, min_bytes=1, session_epoch=0))
        epoch = 0
        stage.begun()
        while stage.goes_on():
            epoch += 1
            request = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=epoch)
            peer.call(Api.FETCH, 12, request)


# -- one client that never pauses -----------------------------------------------------------------------------------


def _make_topics(stage: Stage) -> None:
    with Peer(stage.port, 120.0) as peer:
        peer.create_many([f"topic-{at:05}" for at in range(stage.some(3000, 100))])


def _flood(stage: Stage) -> None:
    frame = struct.pack(">ihhihi", 14, 3, 1, 1, -1, -1)
    pieces = frame * 4096
    with Peer(stage.port) as peer:
        peer.socket.setblocking(False)
        stage.begun()
        rest = memoryview(pieces)
        while stage.goes_on():
            readable, writable, _ = select.select([peer.socket], [peer.socket], [], 0.1)
            if readable and not peer.socket.recv(MEBIBYTE):
                return
            if writable:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[peer.socket.send(rest) :] or memoryview(pieces)


# -- descriptors, idle connections, gateway -------------------------------------------------------------------------


def _idle_sockets(port: int, count: int, greeting: bytes = b"") -> Iterator[socket.socket]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for _ in range(min(count, hard - 100)):
        try:
            sock = socket.create_connection((HOST, port), timeout=2.0)
            if greeting:
                sock.sendall(greeting)
        except OSError:
            return
        yield sock


def _descriptors(stage: Stage) -> None:
    """All that are to be had; meanwhile segments roll and topics are made, and nothing may be offline."""
    with Peer(stage.port) as peer:
        sockets = list(_idle_sockets(stage.port, 400))
        stage.begun()
        codes = [peer.create(f"rolling-{time.monotonic_ns()}", segment_bytes="1048576")]
        codes += [peer.create(name) for name in (f"meanwhile-{time.monotonic_ns()}",)]
        codes += [peer.produce("probe", small_batch(100_000, 6), acks=-1) for _ in range(6)]
        stage.rest()
        for sock in sockets:
            sock.close()
    if any(codes):
        sys.exit(_said(f"codes {codes}"))


def _said(why: str) -> int:
    print(why, flush=True)
    return 1


def _idle(stage: Stage) -> None:
    sockets = list(_idle_sockets(stage.port, stage.some(5000, 200)))
    stage.begun()
    stage.rest()
    for sock in sockets:
        sock.close()


def _gateway(stage: Stage) -> None:
    half = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    sockets = list(_idle_sockets(stage.http_port, stage.some(2050, 200), half))
    sockets += _idle_sockets(stage.line_port, stage.some(1050, 200), b"TOP")
    stage.begun()
    with Peer(stage.port) as peer:  # the gateway's answers meanwhile are recorded for `check`
        peer.create("health")
        while stage.goes_on():
            peer.produce("health", small_batch(1 if _is_healthy(stage) else 2))
            time.sleep(0.5)
    for sock in sockets:
        sock.close()


def _is_healthy(stage: Stage) -> bool:
    try:
        connection = http.client.HTTPConnection(HOST, stage.http_port, timeout=10)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def _was_healthy(stage: Stage) -> str:
    with Peer(stage.port) as peer:
        asked = [FetchPartition(partition=0, partition_max_bytes=MEBIBYTE)]
        request = FetchRequest(session_epoch=-1, topics=[FetchTopic(topic="health", partitions=asked)])
        peer.send(Api.FETCH, 12, request)
        sick = peer.receive().count(b"\x02k\x04")  # key k, a value of two bytes
    return f"/health did not answer {sick} times" if sick else serves(stage)


# -- what must be answered ------------------------------------------------------------------------------------------


def _ask_often(stage: Stage, ask: Callable[[Peer], None]) -> None:
    with Peer(stage.port) as peer:
        stage.begun()
        while stage.goes_on():
            ask(peer)
            time.sleep(0.001)


def _scram(stage: Stage) -> None:
    _ask_often(stage, lambda peer: peer.call(50, 0, DescribeUserScramCredentialsRequest(users=None)))


def _add_user(stage: Stage) -> None:
    with Peer(stage.port) as peer:
        user = ScramCredentialUpsertion(
            name="alice", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
        )
        peer.call(51, 0, AlterUserScramCredentialsRequest(upsertions=[user]))


def _all_users(stage: Stage) -> str:
    with Peer(stage.port, 5.0) as peer:
        answer = peer.call(50, 0, DescribeUserScramCredentialsRequest(users=None))
    return "" if [one.user for one in answer.results] == ["alice"] else f"users {answer}"


TRANSACTION = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)


def _transactions(stage: Stage) -> None:
    def ask(peer: Peer) -> None:
        peer.call(Api.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]))
        peer.call(Api.INIT_PRODUCER_ID, 4, TRANSACTION)

    _ask_often(stage, ask)


def _make_long_names(stage: Stage) -> None:
    with Peer(stage.port, 120.0) as peer:
        peer.create_many([f"topic-{at:05}-{'a' * 200}" for at in range(stage.some(2000, 100))])
        peer.call(Api.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))


def _regexes(stage: Stage) -> None:
    expressions = ("(.*a){20}b%d", "([a-q][^u-z]{13}x|.*){30}%d", r"\p{L}+.*%d", "((a?){90}){3}x%d", "a.*b|.*%d")
    with Peer(stage.port, 60.0) as peer:
        stage.begun()
        number = 0
        while stage.goes_on():
            number += 1
            request = ConsumerGroupHeartbeatRequest(
                group_id=f"g{number % 50}",
                member_id=f"{number:022}",
                rebalance_timeout_ms=10_000,
                subscribed_topic_regex=expressions[number % len(expressions)] % number,
                topic_partitions=[],
            )
            peer.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, request)


SCENARIOS = (
    Scenario("strangers", "Raft frames, registrations and heartbeats of strangers", _strangers, check=serves),
    Scenario("by-time", "lookups by time in a batch of 8 M records", _ask_by_time, _plant_bombs, serves),
    Scenario("large-frames", "requests of 3 MB, and the widest legal ones", _large_frames, check=serves),
    Scenario("parked", "parked fetches of 5,000 partitions, of one 20,000 times", _parked, _make_wide, serves),
    Scenario("sessions", "an idle session of 5,000 partitions, without a pause", _sessions, _make_wide, serves),
    Scenario("flood", "Metadata of 3,000 topics, without a pause", _flood, _make_topics, serves),
    Scenario("compaction", "batches of 2 M records for a compacted topic", _compaction, check=serves),
    Scenario("descriptors", "400 sockets, 300 descriptors", _descriptors, check=serves, descriptors=300),
    Scenario("gateway", "2,050 half-sent HTTP requests, 1,050 half-sent lines", _gateway, check=_was_healthy),
    Scenario("scram", "all SCRAM users described", _scram, _add_user, _all_users),
    Scenario("transactions", "one transactional id that begins anew, without a pause", _transactions, check=serves),
    Scenario("regex", "hard expressions over 2,000 long topic names", _regexes, _make_long_names, serves),
    Scenario("idle", "5,000 idle connections", _idle, check=serves),
)
