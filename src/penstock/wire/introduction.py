"""The introduction of two nodes, which proves that both know the cluster's secret: API key 0x7006, two requests.

    dialer    size int32 | key int16 | version int16 | correlation id int32 | client id: null (int16 -1) |
              step 1: 1 int8 | protocol int8 | sender int32 | recipient int32 (-1: any node) | nonce 32 |
                      directory id of the sender, UTF-8, at most 64 bytes
              step 2: 2 int8 | proof of the dialer 32
    listener  size int32 | correlation id int32 | status int8 |
              0: step 1: nonce 32; step 2: proof of the listener 32
              1: reason of the refusal, UTF-8

A proof is an HMAC-SHA256 with the secret over the sender's role, all of step 1 and the listener's nonce. The secret is
never sent. Both nonces are fresh, so that a recorded proof is useless. The roles differ, so that a node's own proof
cannot be reflected. The proof covers the recipient, so that it cannot be relayed to another node. The dialer proves
first, so that a stranger gets no proof for guessing the secret.

The introduction does not encrypt or sign the rest of the connection. That needs TLS.
"""

from __future__ import annotations

import hmac
from struct import Struct
from typing import Final, NamedTuple

from penstock.model.errors import ProtocolError

INTRODUCE_KEY: Final = 0x7006
PRIVATE_KEYS_FROM: Final = 0x7000
PROTOCOL: Final = 1
ANYBODY: Final = -1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAX_DIRECTORY_BYTES: Final = 64
MAX_ANSWER_BYTES: Final = 1 << 10
MAX_FRAME_BYTES: Final = 256
"""The limit for private requests before the introduction."""

_HEADER = Struct(">ihhih")
_ANSWER = Struct(">iib")
_STEP_1 = Struct(f">bbii{NONCE_BYTES}s")
_STEP_2 = Struct(f">b{PROOF_BYTES}s")
_DIALER: Final = b"penstock node dials\0"
_LISTENER: Final = b"penstock node listens\0"


class Opening(NamedTuple):
    """Step 1."""

    sender: int
    recipient: int
    nonce: bytes
    directory_id: str

    def encode(self) -> bytes:
        head = _STEP_1.pack(1, PROTOCOL, self.sender, self.recipient, self.nonce)
        return head + self.directory_id.encode()[:MAX_DIRECTORY_BYTES]

    @staticmethod
    def decode(payload: bytes) -> Opening:
        """Raises ProtocolError."""
        if not _STEP_1.size <= len(payload) <= _STEP_1.size + MAX_DIRECTORY_BYTES:
            raise ProtocolError(f"invalid introduction: {len(payload)} bytes")
        _, protocol, sender, recipient, nonce = _STEP_1.unpack_from(payload)
        if protocol != PROTOCOL:
            raise ProtocolError(f"introductions have version {PROTOCOL} here, not {protocol}")
        try:
            return Opening(sender, recipient, nonce, payload[_STEP_1.size :].decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"invalid directory id in an introduction: {error}") from error


def is_opening(payload: memoryview) -> bool:
    return len(payload) > 0 and payload[0] == 1


def encode_proof(proof: bytes) -> bytes:
    return _STEP_2.pack(2, proof)


def decode_proof(payload: bytes) -> bytes:
    """Raises ProtocolError."""
    if len(payload) != _STEP_2.size or payload[0] != 2:
        raise ProtocolError(f"invalid second step of an introduction: {len(payload)} bytes")
    return bytes(_STEP_2.unpack(payload)[1])


def proof_of_dialer(secret: bytes, opening: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, _DIALER + nonce + opening, "sha256")


def proof_of_listener(secret: bytes, opening: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, _LISTENER + nonce + opening, "sha256")


def is_same(proof: bytes, expected: bytes) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(proof, expected)


def introduction_frame(correlation_id: int, payload: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size - 4 + len(payload), INTRODUCE_KEY, 0, correlation_id, -1) + payload


def introduction_answer(correlation_id: int, payload: bytes) -> bytes:
    return _ANSWER.pack(_ANSWER.size - 4 + len(payload), correlation_id, 0) + payload


def introduction_refusal(correlation_id: int, reason: str) -> bytes:
    text = reason.encode()[: MAX_ANSWER_BYTES - _ANSWER.size]
    return _ANSWER.pack(_ANSWER.size - 4 + len(text), correlation_id, 1) + text


class Answer(NamedTuple):
    correlation_id: int
    payload: bytes
    refusal: str
    """The reason; empty if the answer is not a refusal."""


def take_answer(buffer: bytearray) -> Answer | None:
    """Takes the first answer out of the buffer. None if it is incomplete. Raises ProtocolError."""
    if len(buffer) < _ANSWER.size:
        return None
    size, correlation_id, status = _ANSWER.unpack_from(buffer)
    if not _ANSWER.size - 4 <= size <= MAX_ANSWER_BYTES:
        raise ProtocolError(f"invalid answer to an introduction: {size} bytes")
    if len(buffer) < 4 + size:
        return None
    payload = bytes(buffer[_ANSWER.size : 4 + size])
    del buffer[: 4 + size]
    if status:
        return Answer(correlation_id, b"", payload.decode("utf-8", "replace") or "no reason was given")
    return Answer(correlation_id, payload, "")
