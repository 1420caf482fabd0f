"""The frame of Raft messages between nodes of a cluster: a request with a private API key.

Frame:   size int32 | api key int16 | version int16 | correlation id int32 | client id, null (int16 -1) | payload
Answer:  size int32 | correlation id int32 | reason; only if the payload asks for an answer (`cluster.raft_codec`)

The key is far outside Kafka's range and not advertised, so that no client sends it. This module does not know the
meaning of payloads.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.model.errors import ProtocolError

PEER_API_KEY: Final = 0x7001
PEER_VERSION: Final = 0
MAX_ANSWER_BYTES: Final = 4 << 10

_HEADER = Struct(">ihhih")
_ANSWER = Struct(">ii")


def peer_frame(payload: bytes, correlation_id: int = 0) -> bytes:
    size = _HEADER.size - 4 + len(payload)
    return _HEADER.pack(size, PEER_API_KEY, PEER_VERSION, correlation_id, -1) + payload


def peer_answer(correlation_id: int, reason: str = "") -> bytes:
    """`reason`: why the message is refused; empty if it is accepted."""
    text = reason.encode()[: MAX_ANSWER_BYTES - 4]
    return _ANSWER.pack(4 + len(text), correlation_id) + text


class PeerAnswers:
    """Cuts bytes from the other node into answers."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """(correlation id, reason) of every complete answer. Raises ProtocolError."""
        buffer = self._buffer
        buffer += data
        answers: list[tuple[int, str]] = []
        while len(buffer) >= _ANSWER.size:
            size, correlation_id = _ANSWER.unpack_from(buffer)
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise ProtocolError(f"invalid answer: {size} bytes")
            if len(buffer) < 4 + size:
                break
            answers.append((correlation_id, buffer[_ANSWER.size : 4 + size].decode("utf-8", "replace")))
            del buffer[: 4 + size]
        return answers
