"""The frame in which servers of one cluster talk Raft to each other: a request like any other, with a private API key.

Frame:   size int32 | api key int16 | version int16 | correlation id int32 | client id, null (int16 -1) | payload
Answer:  size int32 | correlation id int32 | reason; only where the payload asks for one (`cluster.raft_codec`)

The key lies far outside of Kafka's range and is not advertised, so no client ever sends it. What a payload
means is not known here.
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
    """`reason` says why not; empty: all is well."""
    text = reason.encode()[: MAX_ANSWER_BYTES - 4]
    return _ANSWER.pack(4 + len(text), correlation_id) + text


class PeerAnswers:
    """Bytes from the other end, cut into answers."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """(correlation id, reason) of every answer that is whole now. Raises ProtocolError."""
        buffer = self._buffer
        buffer += data
        answers: list[tuple[int, str]] = []
        while len(buffer) >= _ANSWER.size:
            size, correlation_id = _ANSWER.unpack_from(buffer)
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise ProtocolError(f"an answer of {size} bytes")
            if len(buffer) < 4 + size:
                break
            answers.append((correlation_id, buffer[_ANSWER.size : 4 + size].decode("utf-8", "replace")))
            del buffer[: 4 + size]
        return answers
