"""The dialing side of an introduction: two nodes prove to each other that they know the cluster's secret
(`wire.introduction`).

Every connection from one node to another begins with it. `connect_to_peer` connects, proves that it knows the secret,
checks the other side's proof, and only then passes the transport to the requested protocol. Must not know: that
protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from penstock.model.errors import ProtocolError
from penstock.ports.clock import Entropy
from penstock.wire.introduction import (
    ANYBODY,
    NONCE_BYTES,
    Opening,
    encode_proof,
    introduction_frame,
    is_same,
    proof_of_dialer,
    proof_of_listener,
    take_answer,
)

P = TypeVar("P", bound=asyncio.BaseProtocol)

HUNG_UP = "it closed the connection: that listener does not serve other nodes, or the node runs an earlier release"


class IntroductionRefused(ConnectionError):
    """The other side refused with a reason, or it is not a node of this cluster."""


class PeerIdentity:
    """The identity that this node shows to other nodes."""

    __slots__ = ("directory_id", "entropy", "node_id", "secrets")

    def __init__(self, node_id: int, secrets: Sequence[bytes], entropy: Entropy, directory_id: str = "") -> None:
        """The first of `secrets` is used. Without a secret no node can be reached."""
        self.node_id = node_id
        self.secrets = tuple(secrets)
        self.entropy = entropy
        self.directory_id = directory_id


async def connect_to_peer(
    loop: asyncio.AbstractEventLoop,
    make_protocol: Callable[[], P],
    host: str,
    port: int,
    identity: PeerIdentity,
    recipient: int = ANYBODY,
) -> P:
    """Connects to a node of this cluster. It has no timeout of its own.

    Raises OSError, including IntroductionRefused, and UnicodeError or OverflowError for an invalid address.
    """
    introduction = await dial(loop, host, port, identity, recipient)
    return await introduction.hand_over(make_protocol)


async def dial(
    loop: asyncio.AbstractEventLoop, host: str, port: int, identity: PeerIdentity, recipient: int = ANYBODY
) -> Introduction:
    """The first half: connects. Raises the same errors as `connect_to_peer`."""
    if not identity.secrets:
        raise IntroductionRefused("this node has no cluster secret, so it cannot connect to other nodes")
    _, introduction = await loop.create_connection(lambda: Introduction(loop, identity, recipient), host, port)
    return introduction


class Introduction(asyncio.Protocol):
    """A connection until the introduction is complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop, identity: PeerIdentity, recipient: int) -> None:
        self._secret = identity.secrets[0]
        opening = Opening(
            identity.node_id, recipient, identity.entropy.random_bytes(NONCE_BYTES), identity.directory_id
        )
        self._opening = opening.encode()
        self._expected = b""
        """The listener's proof, once its nonce is known."""
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._shown: asyncio.Future[None] = loop.create_future()

    async def hand_over(self, make_protocol: Callable[[], P]) -> P:
        """The second half. Raises OSError. The connection is closed after an error and if this is cancelled."""
        try:
            await self._shown
        except BaseException:
            self._drop()
            raise
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError(HUNG_UP)
        protocol = make_protocol()
        # Not inside or during a read: the next protocol may provide its own buffer.
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        self._transport.resume_reading()
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(introduction_frame(1, self._opening))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self._shown.done() and (answer := take_answer(self._buffer)) is not None:
                if answer.refusal:
                    raise IntroductionRefused(answer.refusal)
                self._answered(answer.correlation_id, answer.payload)
        except (ProtocolError, IntroductionRefused) as error:
            refused = error if isinstance(error, IntroductionRefused) else IntroductionRefused(str(error))
            self._fail(refused)

    def _answered(self, correlation_id: int, payload: bytes) -> None:
        assert self._transport is not None
        if correlation_id == 1 and len(payload) == NONCE_BYTES and not self._expected:
            self._expected = proof_of_listener(self._secret, self._opening, payload)
            proof = proof_of_dialer(self._secret, self._opening, payload)
            self._transport.write(introduction_frame(2, encode_proof(proof)))
        elif correlation_id == 2 and self._expected and is_same(payload, self._expected):
            if self._buffer:
                raise ProtocolError("it sent more than the answer")
            self._transport.pause_reading()
            self._shown.set_result(None)
        else:
            raise IntroductionRefused("the server there does not know the cluster's secret")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionResetError(HUNG_UP))

    def _fail(self, error: OSError) -> None:
        if not self._shown.done():
            self._shown.set_exception(error)
        self._drop()

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
