"""Frames to throw at a broker: valid ones from the schemas, and what becomes of them under mutation.

Everything comes from one seeded generator, so a failing run is repeated by its seed.

The mutated mix leaves out the APIs that change the cluster (CreateTopics and its like): a flipped bit
could ask for a million partitions, which is allowed and slow, not a defect. They are sent as valid frames with
validate_only, on topics that do not exist, and cut short.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from dataclasses import dataclass

from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import recompress
from penstock.wire.apis import Api, api
from penstock.wire.codec import encode_request
from penstock.wire.primitives import NULL_UUID, Message
from support.clients.raw import join

TOPIC = "fuzz"
CHANGES_CLUSTER = frozenset(
    {
        Api.CREATE_TOPICS,
        Api.DELETE_TOPICS,
        Api.CREATE_PARTITIONS,
        Api.ALTER_CONFIGS,
        Api.INCREMENTAL_ALTER_CONFIGS,
    }
)
COSTLY = frozenset({Api.DELETE_RECORDS})  # each one syncs a file
PER_VERSION = 40
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EDGES = (-(1 << 31), -(1 << 15), -2, 127, 255, 1 << 15, (1 << 31) - 1)


@dataclass(frozen=True, slots=True)
class Script:
    """The bytes of one connection. `is_open_ended`: the last frame announces more than comes."""

    frames: tuple[bytes, ...]
    is_open_ended: bool


class FrameFactory:
    def __init__(self, seed: int, served: dict[int, tuple[int, int]], topic_id: bytes) -> None:
        self.rng = random.Random(seed)
        self.topic_id = topic_id
        self.batches = self._make_batches()
        self.whole: list[bytes] = []  # of any API
        self.mutable: list[bytes] = []
        for key, (low, high) in served.items():
            spec = api(key)
            for version in range(max(low, spec.min_version), min(high, spec.max_version) + 1):
                made = [self._frame(key, version) for _ in range(1 if key in COSTLY else PER_VERSION)]
                self.whole += made
                if key not in CHANGES_CLUSTER:
                    self.mutable += made

    # -- valid frames -------------------------------------------------------------------

    def _frame(self, key: int, version: int) -> bytes:
        topic = TOPIC if key not in CHANGES_CLUSTER else "no-such-topic"
        message = self.message(api(key).request, version, topic)
        parts, _ = encode_request(
            key, version, self.rng.randrange(1 << 30), self.rng.choice([None, "", "fuzz"]), message
        )
        return join(parts)

    def message(self, cls: type[Message], version: int, topic: str) -> Message:
        values: dict[str, object] = {}
        for name, kind, (low, high), nullable, tag, _ in cls.FIELDS:
            if not low <= version <= high or (tag is not None and self.rng.random() < 0.5):
                continue
            if nullable is not None and nullable[0] <= version <= nullable[1] and self.rng.random() < 0.2:
                values[name] = None
            elif kind.startswith("[]"):
                values[name] = [
                    self._value(cls, name, kind[2:], version, topic) for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3)))
                ]
            else:
                values[name] = self._value(cls, name, kind, version, topic)
        return cls(**values)

    def _value(self, cls: type[Message], name: str, kind: str, version: int, topic: str) -> object:
        rng = self.rng
        match name:
            case "validate_only":
                return True
            case "max_wait_ms":
                return rng.choice((0, 0, 1, 5))
            case "acks":
                return rng.choice((-1, -1, 0, 1))
        match kind:
            case "bool":
                return rng.random() < 0.5
            case "uint16":
                return rng.choice((0, 65535))
            case "float64":
                return rng.choice((0.0, -1.5, 1e300))
            case "string":
                return rng.choice((topic, topic, topic, "", "no-such-topic", "größe", "x" * 300))
            case "bytes":
                return rng.randbytes(rng.choice((0, 1, 200)))
            case "records":
                return rng.choice(self.batches)
            case "uuid":
                known = self.topic_id if topic == TOPIC else NULL_UUID
                return rng.choice((known, known, NULL_UUID, rng.randbytes(16)))
        if kind in INTEGER_BITS:
            limit = 1 << INTEGER_BITS[kind] - 1
            value = rng.choice((0, 0, 1, 2, -1, -1, rng.choice(EDGES), rng.randrange(-limit, limit)))
            return max(-limit, min(value, limit - 1))
        struct_class: type[Message] = getattr(sys.modules[cls.__module__], kind)
        return self.message(struct_class, version, topic)

    def _make_batches(self) -> list[bytes]:
        """Plain, idempotent and compressed; some with bits that clients may not set, some that are no batch."""
        rng, now_ms = self.rng, int(time.time() * 1000)
        batches: list[bytes] = [b"", rng.randbytes(10), rng.randbytes(200)]
        for producer_id in (-1, -1, 0, 1, 2):
            for attributes in (0, 0, 8, 16, 48):
                records = [
                    Record(b"key", rng.randbytes(rng.randrange(80)), (("header", None),), now_ms)
                    for _ in range(rng.randrange(1, 5))
                ]
                batch = build_batch(
                    records,
                    producer_id=producer_id,
                    producer_epoch=min(producer_id, 0),
                    base_sequence=rng.choice((0, 0, len(records), 7)) if producer_id >= 0 else -1,
                    attributes=attributes,
                )
                batches.append(batch)
                if attributes == 0:
                    batches += [recompress(read_header(batch), batch, codec) for codec in range(1, 5)]
        return batches

    # -- scripts ------------------------------------------------------------------------

    def script(self, size: int) -> Script:
        """`size` frames: nonsense in sound fields, damage, noise. One that breaks the framing can only be the last."""
        rng = self.rng
        frames: list[bytes] = []
        for _ in range(size - 1):
            kind = rng.random()
            if kind < 0.5:
                frames.append(rng.choice(self.whole))
            elif kind < 0.9:
                frames.append(reframed(self._damaged(rng.choice(self.mutable)[4:])))
            elif kind < 0.95:
                frames.append(reframed(self._cut(rng.choice(self.whole)[4:])))
            else:
                frames.append(reframed(self._noise()))
        last, is_open_ended = self._broken_frame()
        return Script((*frames, last), is_open_ended)

    def _damaged(self, body: bytes) -> bytes:
        """Bits flipped and bytes replaced; mostly behind the header, so that handlers see it too."""
        rng = self.rng
        data = bytearray(body)
        first = 0 if rng.random() < 0.1 else min(10, len(data) - 1)
        for _ in range(rng.choice((1, 1, 1, 1, 2, 8))):
            at = rng.randrange(first, len(data))
            if rng.random() < 0.6:
                data[at] ^= 1 << rng.randrange(8)
            else:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.05:
            at = rng.randrange(first, len(data))
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        return bytes(data)

    def _cut(self, body: bytes) -> bytes:
        return body[: self.rng.randrange(8, len(body) + 1)]

    def _noise(self) -> bytes:
        body = self.rng.randbytes(self.rng.randrange(8, 200))
        if self.rng.random() < 0.7:  # a header that leads somewhere
            return self.rng.choice(self.mutable)[4:14] + body
        return body

    def _broken_frame(self) -> tuple[bytes, bool]:
        rng = self.rng
        whole = rng.choice(self.mutable)
        match rng.randrange(8):
            case 0:
                return struct.pack(">i", rng.choice((-1, 0, 1, 7, -(1 << 31), -rng.randrange(1 << 31)))) + whole[
                    4:
                ], False
            case 1:
                return struct.pack(">i", rng.choice(((1 << 31) - 1, 104_857_601, 1 << 30))) + whole[4:], False
            case 2:  # as much as is allowed, and then nothing
                return struct.pack(">i", rng.choice((104_857_600, len(whole) + rng.randrange(1000)))) + whole[4:], True
            case 3:
                return whole[: rng.randrange(1, len(whole))], True
            case _:
                return reframed(self._damaged(whole[4:])), False


def reframed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
