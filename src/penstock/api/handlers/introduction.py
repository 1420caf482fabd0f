"""The listening side of introductions: other nodes present the cluster's secret (private key 0x7006,
`wire.introduction`).

- A node with the secret is a peer as long as its connection lives (`Connection.is_peer`), and may send requests for
  nodes only. `api.dispatch` closes other connections that send them.
- Only on listeners for nodes. A single node has no such handler, so it has no peers.
- A connection has one challenge at a time, for `CHALLENGE_S`. A refusal is sent with its reason, then the connection is
  closed.
- With mutual TLS the certificate check will set `is_peer` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import ClassVar, Final, NamedTuple

from penstock.broker_link.introduction import PeerIdentity
from penstock.model.errors import ProtocolError, Stranger
from penstock.net.connection import Connection
from penstock.wire.introduction import (
    ANYBODY,
    INTRODUCE_KEY,
    NONCE_BYTES,
    Opening,
    decode_proof,
    introduction_answer,
    introduction_refusal,
    is_opening,
    is_same,
    proof_of_dialer,
    proof_of_listener,
)

CHALLENGE_S: Final = 10.0
LEADS_BACK: Final = (
    "the address in controller.quorum.voters or controller.quorum.bootstrap.servers leads back to this node"
)
WRONG_SECRET: Final = (
    "this node does not know the cluster's secret: give it the secret of another node (penstock cluster secret prints "
    "it)"
)
# The same for the log of the refusing node.
PEER_WITH_WRONG_SECRET: Final = (
    "the peer does not know the cluster's secret; if it is one of your nodes, give it the secret file of this node"
)


class Challenge(NamedTuple):
    opening: bytes
    nonce: bytes
    until_s: float


class IntroductionHandler:
    """A `PrivateHandler`, the only one open to strangers."""

    key: ClassVar[int] = INTRODUCE_KEY

    def __init__(self, identity: PeerIdentity, listeners: Collection[str], now_s: Callable[[], float]) -> None:
        """`listeners`: the names of the listeners for nodes."""
        self._identity = identity
        self._listeners = frozenset(listeners)
        self._now_s = now_s
        self._challenges: dict[Connection, Challenge] = {}

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        if is_opening(payload):
            answer, refusal = self._open(connection, bytes(payload))
        else:
            answer, refusal = self._prove(connection, bytes(payload))
        if refusal:
            connection.reply(slot, [introduction_refusal(correlation_id, refusal)])
            connection.refuse(Stranger(PEER_WITH_WRONG_SECRET if refusal == WRONG_SECRET else refusal))
        else:
            connection.reply(slot, [introduction_answer(correlation_id, answer)])

    def _open(self, connection: Connection, payload: bytes) -> tuple[bytes, str]:
        reason = self._why_not(connection, Opening.decode(payload))
        if reason:
            return b"", reason
        nonce = self._identity.entropy.random_bytes(NONCE_BYTES)
        if connection not in self._challenges:
            connection.when_closed[partial(self._forget, connection)] = None
        self._challenges[connection] = Challenge(payload, nonce, self._now_s() + CHALLENGE_S)
        return nonce, ""

    def _forget(self, connection: Connection) -> None:
        self._challenges.pop(connection, None)

    def _why_not(self, connection: Connection, opening: Opening) -> str:
        own = self._identity
        if connection.listener_name not in self._listeners:
            return (
                f"listener {connection.listener_name} is for clients: "
                f"other nodes use {' or '.join(sorted(self._listeners))}"
            )
        is_own = opening.sender == own.node_id and opening.directory_id == own.directory_id != ""
        if opening.sender == own.node_id and not is_own:
            return f"node.id {own.node_id} is in use twice: give each node its own"
        if opening.recipient != own.node_id and (is_own or opening.recipient != ANYBODY):
            if opening.recipient == ANYBODY:
                return f"this is node {own.node_id} itself: {LEADS_BACK}"
            return f"this is node {own.node_id}{' itself' * is_own}, not node {opening.recipient}"
        return ""

    def _prove(self, connection: Connection, payload: bytes) -> tuple[bytes, str]:
        challenge = self._challenges.pop(connection, None)
        proof = decode_proof(payload)
        if challenge is None:
            raise ProtocolError("a proof without a challenge")
        if self._now_s() > challenge.until_s:
            return b"", f"the proof came more than {CHALLENGE_S:g} s after the challenge"
        for secret in self._identity.secrets:
            if is_same(proof, proof_of_dialer(secret, challenge.opening, challenge.nonce)):
                connection.is_peer = True
                return proof_of_listener(secret, challenge.opening, challenge.nonce), ""
        return b"", WRONG_SECRET
