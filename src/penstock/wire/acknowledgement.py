"""Acknowledgements of followers for flushed records: three private frames, one way, never answered.

On durable topics (`flush.messages=1`) a follower fetches ahead of its disk, so its fetch offset does not tell which
records it has flushed. It sends that offset here after each flush, on the connection of its fetches. Keys above 0x7000
are Penstock's own: they are not advertised and only for brokers of one cluster.

    ACKNOWLEDGE_KEY  replica id int32 | broker epoch int64 | entries
                     entry: topic id 16 bytes | partition int32 | leader epoch int32 | offset int64 | log start int64
    DISOWN_KEY       the same layout: nothing from the offset on is intact, whatever was acknowledged before (see
                     `replica.repair`)
    WAKE_KEY         empty: asks to answer the parked fetch of this connection now

All have the old request header: key int16 | version int16 | correlation id int32 | client id int16 length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from penstock.model.errors import ProtocolError
from penstock.ports.disk import Buffer

ACKNOWLEDGE_KEY: Final = 0x7003
WAKE_KEY: Final = 0x7004
DISOWN_KEY: Final = 0x7005

_FRAME = Struct(">ihhih")  # size, key, version, correlation id, client id: null
_HEADER_BYTES = _FRAME.size - 4
_SENDER = Struct(">iq")
_ENTRY = Struct(">16siiqq")

WAKE_FRAME: Final = _FRAME.pack(_HEADER_BYTES, WAKE_KEY, 0, 0, -1)


class Acknowledged(NamedTuple):
    """All records of a partition below `offset`, as received from the leader of `leader_epoch`, are flushed."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    log_start_offset: int


def acknowledgement_frame(
    replica_id: int, broker_epoch: int, entries: Iterable[Acknowledged], key: int = ACKNOWLEDGE_KEY
) -> bytes:
    body = b"".join([_SENDER.pack(replica_id, broker_epoch), *(_ENTRY.pack(*entry) for entry in entries)])
    return _FRAME.pack(_HEADER_BYTES + len(body), key, 0, 0, -1) + body


def read_acknowledgement(payload: Buffer) -> tuple[int, int, Iterator[Acknowledged]]:
    """(replica id, broker epoch, entries) of the payload after the request header."""
    size = len(payload) - _SENDER.size
    if size < 0 or size % _ENTRY.size:
        raise ProtocolError(f"invalid acknowledgement: {len(payload)} bytes")
    replica_id, broker_epoch = _SENDER.unpack_from(payload, 0)
    entries = map(Acknowledged._make, _ENTRY.iter_unpack(memoryview(payload)[_SENDER.size :]))
    return replica_id, broker_epoch, entries
