"""Requests of nodes, sent by other programs: the connection is closed, and nothing has changed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from wire_client import WireClient, batch, fetch_request

from penstock.api.fetch.follower_connections import MAX_FOLLOWERS, FollowerConnections
from penstock.api.forwarding import FORWARD_KEY, ForwardedRequest
from penstock.api.handlers.introduction import CHALLENGE_S, PEER_WITH_WRONG_SECRET, WRONG_SECRET
from penstock.broker_link.peer_connection import open_to_peer
from penstock.cluster.raft_codec import Hello, encode, encode_hello
from penstock.core.raft.messages import AppendEntries
from penstock.model.new_topic import NewTopic
from penstock.net.connection import Connection as Accepted
from penstock.sim.broker import CLUSTER_ID, CLUSTER_SECRET, PORT
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.machine.world import SimWorld
from penstock.testing import Broker
from penstock.wire.acknowledgement import (
    ACKNOWLEDGE_KEY,
    DISOWN_KEY,
    WAKE_FRAME,
    Acknowledged,
    acknowledgement_frame,
)
from penstock.wire.apis import Api
from penstock.wire.codec import encode_request
from penstock.wire.introduction import (
    ANYBODY,
    NONCE_BYTES,
    Opening,
    encode_proof,
    introduction_frame,
    introduction_refusal,
    proof_of_dialer,
    take_answer,
)
from penstock.wire.messages.alter_partition import AlterPartitionRequest
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from penstock.wire.messages.create_topics import CreateTopicsRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.peers import peer_frame
from penstock.wire.primitives import Message
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import BrokerUnreachable
from support.worlds.peers import identity, introduce

STRANGER = 9
LAST_TERM = 2**31 - 1


def request(key: Api, version: int, message: Message) -> bytes:
    parts, _ = encode_request(key, version, 1, "stranger", message)
    return b"".join(cast("list[bytes]", parts))


def direct_frame(key: int, payload: bytes) -> bytes:
    header = key.to_bytes(2, "big") + bytes(2) + (1).to_bytes(4, "big") + b"\xff\xff"
    return (len(header) + len(payload)).to_bytes(4, "big") + header + payload


def private_frames(cluster_id: str, topic_id: bytes) -> dict[str, bytes]:
    """Everything that nodes say to each other, said by one that is none."""
    leave = BrokerHeartbeatRequest(broker_id=1, broker_epoch=1, want_shut_down=True)
    register = BrokerRegistrationRequest(
        broker_id=STRANGER,
        cluster_id=cluster_id,
        incarnation_id=b"\7" * 16,
        listeners=[Listener(name="PLAINTEXT", host="evil.example", port=6666)],
        rack=None,
        log_dirs=[b"\5" * 16],
    )
    create = request(Api.CREATE_TOPICS, 7, CreateTopicsRequest())
    held = [Acknowledged(topic_id, 0, 0, 1, 0)]
    asked = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(fetch_offset=1, partition_max_bytes=1)])
    fetch = FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=-1), topics=[asked])
    fetch_of_old = FetchRequest(replica_id=2, topics=[FetchTopic(topic="t", partitions=asked.partitions)])
    hello = peer_frame(encode_hello(Hello(STRANGER, 1, cluster_id, "127.0.0.1:30099")), 1)
    return {
        "hello": hello,
        "hello and a term": hello + peer_frame(encode(AppendEntries(STRANGER, 1, LAST_TERM, 0, 0, (), 0))),
        "a term": peer_frame(encode(AppendEntries(2, 1, LAST_TERM, 0, 0, (), 0))),
        "a large frame": (1 << 20).to_bytes(4, "big") + peer_frame(b"")[4:],
        "heartbeat": request(Api.BROKER_HEARTBEAT, 1, leave),
        "registration": request(Api.BROKER_REGISTRATION, 3, register),
        "alter partition": request(Api.ALTER_PARTITION, 3, AlterPartitionRequest(broker_id=1)),
        "forwarded": direct_frame(FORWARD_KEY, ForwardedRequest("PLAINTEXT", "User:x", create[4:]).encode()),
        "acknowledged": acknowledgement_frame(2, -1, held, ACKNOWLEDGE_KEY),
        "disowned": acknowledgement_frame(2, -1, held, DISOWN_KEY),
        "wake": WAKE_FRAME,
        "fetch": request(Api.FETCH, 17, fetch),
        "fetch of old": request(Api.FETCH, 12, fetch_of_old),
        "proof without a challenge": introduction_frame(1, encode_proof(bytes(32))),
        "no introduction": introduction_frame(1, b"\1\1"),
    }


FRAMES = list(private_frames("", bytes(16)))


# -- a node that is alone -----------------------------------------------------------------


@pytest.mark.parametrize("kind", FRAMES)
def test_a_lone_node_takes_none_of_it(wire_broker: Broker, wire: WireClient, kind: str) -> None:
    metadata = wire.call(Api.METADATA, 12, MetadataRequest(topics=[]))
    topic = wire.create_topic()
    wire.produce(topic, batch(b"v"))
    frame = private_frames(metadata.cluster_id, wire.describe(topic).topic_id)[kind]
    with WireClient(wire_broker.port) as stranger:
        stranger.socket.sendall(frame)
        assert stranger.is_closed_by_broker()
    assert wire.call(Api.METADATA, 12, MetadataRequest(topics=[])).brokers == metadata.brokers
    wire.create_topic()
    assert wire.produce(topic, batch(b"v")).error_code == 0


def test_two_frames_do_not_end_a_node(tmp_path: Path) -> None:
    """Hello as a stranger and a term that is the last one: the node serves on, and starts again."""
    with Broker(data=tmp_path) as broker, WireClient(broker.port) as wire:
        cluster_id = wire.call(Api.METADATA, 12, MetadataRequest(topics=[])).cluster_id
        with WireClient(broker.port) as stranger:
            stranger.socket.sendall(private_frames(cluster_id, bytes(16))["hello and a term"])
            assert stranger.is_closed_by_broker()
        wire.create_topic(name="after")
    with Broker(data=tmp_path) as broker, WireClient(broker.port) as wire:
        wire.create_topic(name="again")


def test_a_node_starts_with_a_term_that_was_forged_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(data=tmp_path) as broker, WireClient(broker.port) as wire:
        wire.create_topic(name="before")
    path = tmp_path / "__cluster_metadata-0" / "quorum-state"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "leaderEpoch": LAST_TERM, "votedId": -1}))
    for name in ("after", "again"):
        with Broker(data=tmp_path) as broker, WireClient(broker.port) as wire:
            wire.create_topic(name=name)
            assert wire.produce("before", batch(b"v")).error_code == 0
    assert caplog.text.count("which no quorum can reach") == 1


def test_nobody_becomes_a_peer_of_a_lone_node(wire_broker: Broker, wire: WireClient) -> None:
    secret = cast(Any, wire_broker._running).membership.identity.secrets[0]
    opening = Opening(STRANGER, ANYBODY, bytes(NONCE_BYTES), "").encode()
    wire.socket.sendall(introduction_frame(1, opening))
    assert wire.is_closed_by_broker()
    assert len(secret) == 32


def test_consumers_that_debug_replicas_are_served(wire: WireClient) -> None:
    """Kafka's replica id -2: not a follower."""
    topic = wire.create_topic()
    wire.produce(topic, batch(b"v"))
    response = wire.call(Api.FETCH, 12, fetch_request(topic, replica_id=-2, max_wait_ms=0))
    [answer] = response.responses[0].partitions
    assert (answer.error_code, answer.high_watermark) == (0, 1)


# -- a node of several --------------------------------------------------------------------


Story = Callable[[SimWorld, SimCluster], Coroutine[Any, Any, None]]


def play(story: Story, **settings: str) -> None:
    with SimWorld(11) as world:

        async def main() -> None:
            given = {name.replace("_", "."): value for name, value in settings.items()}
            cluster = SimCluster(world, 3, settings=given)
            cluster._settings |= given  # the voters' addresses, too
            await asyncio.gather(*(cluster.bring_up(number) for number in cluster.voters))
            await story(world, cluster)

        world.run(main(), timeout_s=900)


async def send(frame: bytes, number: int, *, port: int = PORT) -> bytes:
    """The answers until the node closes."""
    reader, writer = await asyncio.open_connection(host_of(number), port)
    writer.write(frame)
    async with asyncio.timeout(5):
        heard = await reader.read()
    writer.close()
    return heard


def state(cluster: SimCluster) -> list[Any]:
    """The state that strangers would like to change."""
    return [
        (
            node.membership.quorum.status.term,
            node.membership.quorum.leader_id,
            dict(node.image.brokers),
            {name: topic.partitions for name, topic in node.image.topics.items()},
            [(partition.high_watermark, list(partition.isr)) for partition in node.partitions],
        )
        for node in cluster.living.values()
    ]


def test_a_node_takes_none_of_it_either(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        [number] = [number for number, node in cluster.living.items() if node.controller.is_active]
        work = cluster.nodes[number].controller.topics.create_topic(NewTopic("t", assignments={0: [1, 2, 3]}))
        await cluster.machines[number].run(work)
        await asyncio.sleep(5)
        caplog.clear()
        before = state(cluster)
        topic_id = cluster.nodes[number].image.topics["t"].topic_id
        for frame in private_frames(CLUSTER_ID, topic_id).values():
            for other in cluster.voters:
                assert await world.spawn("a-stranger", send(frame, other)) == b""
        assert state(cluster) == before
        refused = [node.listeners[0].strangers for node in cluster.living.values()]
        assert min(refused) >= len(FRAMES) - 2, "all but what is no protocol at all"
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) <= 2 * len(cluster.voters), "each node says it once, of strangers and of others"

    play(story)


def test_who_does_not_know_the_secret_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        async def dial(*secrets: bytes) -> AsyncConnection:
            shown = identity(STRANGER, *secrets)
            asked = frozenset({Api.BROKER_HEARTBEAT})
            return await open_to_peer((host_of(1), PORT), "x", 5.0, shown, asked)

        with pytest.raises(BrokerUnreachable, match="does not know the cluster's secret"):
            await world.spawn("a-guest", dial(b"something else"))
        await asyncio.sleep(1)
        assert PEER_WITH_WRONG_SECRET in caplog.text
        assert "something else" not in caplog.text
        connection = await world.spawn("a-guest", dial(CLUSTER_SECRET))
        heartbeat = BrokerHeartbeatRequest(broker_id=STRANGER, broker_epoch=1)
        answer = await world.spawn(
            "a-guest", connection.call(Api.BROKER_HEARTBEAT, heartbeat, BrokerHeartbeatResponse, 5.0)
        )
        assert answer.error_code != 0, "it is heard, and unknown"

    play(story)


def test_a_peer_whose_terms_jump_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """It knows the secret, and its disk lies: one line, and nothing has changed."""

    async def story(world: SimWorld, cluster: SimCluster) -> None:
        before = state(cluster)

        async def speak(number: int) -> None:
            reader, writer = await asyncio.open_connection(host_of(number), PORT)
            await introduce(reader, writer, CLUSTER_SECRET)
            writer.write(peer_frame(encode_hello(Hello(STRANGER, number, CLUSTER_ID)), 1))
            await reader.read(100)
            for _ in range(100):
                writer.write(peer_frame(encode(AppendEntries(STRANGER, number, LAST_TERM, 0, 0, (), 0))))
            await asyncio.sleep(1)
            writer.close()

        for number in cluster.voters:
            await world.spawn("a-guest", speak(number))
        assert state(cluster) == before
        assert caplog.text.count("sent a message of term 2147483647") == len(cluster.voters)
        assert [node.membership.quorum.implausible_terms for node in cluster.living.values()] == [100] * 3

    play(story)


def test_an_address_that_leads_back_to_the_node_itself_is_named() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        own = cluster.nodes[1].membership.identity
        opening = Opening(own.node_id, ANYBODY, bytes(NONCE_BYTES), own.directory_id).encode()

        async def dial() -> str:
            reader, writer = await asyncio.open_connection(host_of(1), PORT)
            writer.write(introduction_frame(1, opening))
            answer = await read_answer(reader)
            writer.close()
            return answer.refusal

        refusal = await world.spawn(host_of(1), dial())
        assert refusal.startswith("this is node 1 itself: the address in controller.quorum.voters or ")

    play(story)


def test_a_recorded_proof_is_worth_nothing() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        opening = Opening(STRANGER, ANYBODY, bytes(NONCE_BYTES), "").encode()

        async def show(replayed: bytes | None, wait_s: float = 0.0) -> tuple[bytes, str]:
            reader, writer = await asyncio.open_connection(host_of(1), PORT)
            writer.write(introduction_frame(1, opening))
            nonce = (await read_answer(reader)).payload
            proof = replayed or proof_of_dialer(CLUSTER_SECRET, opening, nonce)
            await asyncio.sleep(wait_s)
            writer.write(introduction_frame(2, encode_proof(proof)))
            answer = await read_answer(reader)
            writer.close()
            return proof, answer.refusal

        proof, refusal = await world.spawn("a-guest", show(None))
        assert refusal == ""
        _, refusal = await world.spawn("a-guest", show(proof))
        assert refusal == WRONG_SECRET
        _, refusal = await world.spawn("a-guest", show(None, CHALLENGE_S + 1))
        assert "after the challenge" in refusal

    play(story)


async def read_answer(reader: asyncio.StreamReader) -> Any:
    size = await reader.readexactly(4)
    return take_answer(bytearray(size + await reader.readexactly(int.from_bytes(size, "big"))))


def test_a_proof_for_one_node_does_not_open_another() -> None:
    """A server that is dialed in place of node 2 cannot pass the proof on to node 1."""

    async def story(world: SimWorld, cluster: SimCluster) -> None:
        opening = Opening(STRANGER, 2, bytes(NONCE_BYTES), "").encode()
        heard = await world.spawn("a-guest", send(introduction_frame(1, opening), 1))
        assert heard == introduction_refusal(1, "this is node 1, not node 2")

    play(story)


def test_nodes_are_served_on_their_listeners_alone() -> None:
    listeners = ",".join(f"{name}://:{port}" for name, port in (("PLAINTEXT", PORT), ("INSIDE", 9093)))

    async def story(world: SimWorld, cluster: SimCluster) -> None:
        opening = introduction_frame(1, Opening(STRANGER, ANYBODY, bytes(NONCE_BYTES), "").encode())
        heard = await world.spawn("a-guest", send(opening, 1))
        assert heard == introduction_refusal(1, "listener PLAINTEXT is for clients: other nodes use INSIDE")

        async def let_in() -> None:
            reader, writer = await asyncio.open_connection(host_of(1), 9093)
            await introduce(reader, writer, CLUSTER_SECRET)
            writer.close()

        await world.spawn("a-guest", let_in())

    play(
        story,
        listeners=listeners,
        inter_broker_listener_name="INSIDE",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        controller_quorum_voters=",".join(f"{number}@{host_of(number)}:9093" for number in (1, 2, 3)),
    )


# -- bounds -------------------------------------------------------------------------------


def test_followers_that_are_remembered_are_bounded() -> None:
    followers = FollowerConnections()
    first, second = (cast(Accepted, SimpleNamespace(number=number)) for number in (1, 2))
    for replica_id in range(MAX_FOLLOWERS + 10):
        assert not followers.is_outdated(replica_id, second)
    assert len(followers._newest) == MAX_FOLLOWERS
    assert followers.is_outdated(MAX_FOLLOWERS, first)
