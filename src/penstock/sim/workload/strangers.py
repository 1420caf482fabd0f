"""A client that is not a node sends requests reserved for nodes: Raft messages, registrations, acknowledgements,
fetches as a replica. Each time the connection must be closed without an answer. Other judges see that nothing changed:
an accepted term or acknowledgement breaks their promises.

Must not know: the cluster's secret, faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock.cluster.raft_codec import Hello, encode, encode_hello
from penstock.core.raft.messages import AppendEntries, RequestVote
from penstock.sim.judges.history import Violation
from penstock.sim.workload.caller import Caller
from penstock.wire.acknowledgement import ACKNOWLEDGE_KEY, DISOWN_KEY, WAKE_FRAME, Acknowledged, acknowledgement_frame
from penstock.wire.apis import Api
from penstock.wire.codec import encode_request
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from penstock.wire.messages.broker_registration import BrokerRegistrationRequest, Listener
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.peers import peer_frame
from penstock.wire.primitives import Message

ONLY_NODES: Final = "only nodes are heard as nodes"
PATIENCE_S: Final = 20.0
"""A machine that hangs or is cut off closes no connection for this time."""
CONNECT_TIMEOUT_S: Final = 1.0


class Impostor:
    def __init__(self, caller: Caller, nodes: int, cluster_id: str) -> None:
        self._caller = caller
        self._nodes = nodes
        self._cluster_id = cluster_id

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            await self._caller.pause(pause_s)
            name, frame = self._frame()
            await self._say(name, frame)

    async def _say(self, name: str, frame: bytes) -> None:
        address = self._caller.any_address()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*address)
        except OSError as error:
            self._caller.note(error)
            return
        try:
            writer.write(frame)
            async with asyncio.timeout(PATIENCE_S):
                heard = await reader.read(100)
            self._caller.counts["refused as a stranger"] += 1
        except OSError as error:  # the connection is closed, or the machine is gone
            self._caller.note(error)
            return
        finally:
            writer.transport.abort()
        if heard:
            raise Violation(ONLY_NODES, f"{address[0]} answered a stranger who sent {name}")

    def _frame(self) -> tuple[str, bytes]:
        random = self._caller.random
        victim, claimed = random.randint(1, self._nodes), random.randint(1, self._nodes + 1)
        term = random.choice((1, random.randint(2, 50), 2**30, 2**31 - 1))
        hello = peer_frame(encode_hello(Hello(claimed, victim, self._cluster_id, "nowhere:1")), 1)
        topic_id = next((leader.topic_id for leader in self._caller.leaders.values()), bytes(16))
        held = [Acknowledged(topic_id, 0, random.randint(0, 5), random.randint(0, 50), 0)]
        return random.choice(
            (
                ("a hello", hello),
                ("an append", hello + peer_frame(encode(AppendEntries(claimed, victim, term, 0, 0, (), 0)))),
                ("a campaign", hello + peer_frame(encode(RequestVote(claimed, victim, term, 99, term, True)))),
                ("a heartbeat", _request(Api.BROKER_HEARTBEAT, 1, _leaving(claimed))),
                ("a registration", _request(Api.BROKER_REGISTRATION, 3, self._registration(claimed))),
                ("an acknowledgement", acknowledgement_frame(claimed, -1, held, ACKNOWLEDGE_KEY)),
                ("a disowning", acknowledgement_frame(claimed, -1, held, DISOWN_KEY)),
                ("a wake", WAKE_FRAME),
                ("a fetch as a replica", _request(Api.FETCH, 17, _fetch(claimed, topic_id, held[0].offset))),
            )
        )

    def _registration(self, claimed: int) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=claimed,
            cluster_id=self._cluster_id,
            incarnation_id=b"\7" * 16,
            listeners=[Listener(name="PLAINTEXT", host="nowhere", port=1)],
            rack=None,
        )


def _request(key: Api, version: int, message: Message) -> bytes:
    parts, _ = encode_request(key, version, 1, "stranger", message)
    return b"".join(cast("list[bytes]", parts))


def _leaving(claimed: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(broker_id=claimed, broker_epoch=1, want_shut_down=True)


def _fetch(claimed: int, topic_id: bytes, offset: int) -> FetchRequest:
    asked = FetchPartition(fetch_offset=offset, partition_max_bytes=1)
    state = ReplicaState(replica_id=claimed, replica_epoch=-1)
    return FetchRequest(replica_state=state, topics=[FetchTopic(topic_id=topic_id, partitions=[asked])])
