"""Nodes that know one cluster secret, for tests that put parts of them together."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

from penstock.api.handlers.introduction import IntroductionHandler
from penstock.broker_link.introduction import PeerIdentity
from penstock.wire.codec import read_request_header
from penstock.wire.introduction import (
    ANYBODY,
    NONCE_BYTES,
    Answer,
    Opening,
    decode_proof,
    encode_proof,
    introduction_answer,
    introduction_frame,
    is_opening,
    proof_of_dialer,
    proof_of_listener,
    take_answer,
)

SECRET = b"known to all nodes of the tests."
OTHER_SECRET = b"known to nodes of other clusters"


class CountingEntropy:
    """Never the same bytes twice, and the same ones in every run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def random_bytes(self, size: int) -> bytes:
        return next(self._numbers).to_bytes(size, "big")


def identity(node_id: int, *secrets: bytes, directory_id: str = "") -> PeerIdentity:
    return PeerIdentity(node_id, secrets or (SECRET,), CountingEntropy(), directory_id)


def introductions(node_id: int, *listeners: str, directory_id: str = "") -> IntroductionHandler:
    """The listening side, on listeners of these names (PLAINTEXT)."""
    return IntroductionHandler(
        identity(node_id, directory_id=directory_id),
        listeners or ("PLAINTEXT",),
        lambda: asyncio.get_running_loop().time(),
    )


async def introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes = SECRET, sender: int = 9
) -> None:
    """A node's first words on a connection of raw bytes."""
    opening = Opening(sender, ANYBODY, CountingEntropy().random_bytes(NONCE_BYTES), "").encode()
    writer.write(introduction_frame(1, opening))
    nonce = (await _read_answer(reader)).payload
    writer.write(introduction_frame(2, encode_proof(proof_of_dialer(secret, opening, nonce))))
    assert (await _read_answer(reader)).payload == proof_of_listener(secret, opening, nonce)


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    size = await reader.readexactly(4)
    answer = take_answer(bytearray(size + await reader.readexactly(int.from_bytes(size, "big"))))
    assert answer is not None
    return answer


class ScriptedIntroductions:
    """The listening side of a server that a test has written: everybody who knows `SECRET` is let in."""

    def __init__(self) -> None:
        self._opening = b""
        self._nonce = CountingEntropy().random_bytes(NONCE_BYTES)

    def answer(self, correlation_id: int, payload: bytes) -> bytes:
        if is_opening(memoryview(payload)):
            self._opening = payload
            return introduction_answer(correlation_id, self._nonce)
        assert decode_proof(payload) == proof_of_dialer(SECRET, self._opening, self._nonce)
        return introduction_answer(correlation_id, proof_of_listener(SECRET, self._opening, self._nonce))


class IntroducingServer(asyncio.Protocol):
    """Answers introductions, and nothing else."""

    def __init__(self) -> None:
        self._introductions = ScriptedIntroductions()
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := int.from_bytes(self._buffer[:4], "big")):
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            _, _, correlation_id, _, at = read_request_header(frame)
            self._transport.write(self._introductions.answer(correlation_id, frame[at:]))
