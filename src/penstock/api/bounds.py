"""How large a request of each API may be: bytes of its frame, and elements of all its arrays together.

A handler declares its `bounds` beside the versions it serves. Only Produce gets `socket.request.max.bytes`: no other
request carries records. Kafka's own decoder allows a million elements in every request. What is refused ends the
connection, as on Kafka, and its client tries again for ever: requests that name partitions are bounded only by what
no cluster has. They are read, handled and answered in steps, so that they hold up nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.wire.introduction import MAX_FRAME_BYTES as MAX_STRANGER_FRAME_BYTES
from penstock.wire.introduction import PRIVATE_KEYS_FROM
from penstock.wire.messages.index import INDEX

if TYPE_CHECKING:
    from penstock.api.handler import Handler

PRIVATE_KEYS: Final = range(PRIVATE_KEYS_FROM, PRIVATE_KEYS_FROM + 0x100)
"""Keys in no table of APIs: brokers use them among themselves."""


class Bounds(NamedTuple):
    frame_bytes: int | None
    """None: `socket.request.max.bytes`."""
    elements: int


USUAL: Final = Bounds(1 << 20, 20_000)
WIDE: Final = Bounds(16 << 20, 500_000)
"""Requests that name partitions or topics one by one."""
RECORDS: Final = Bounds(None, 20_000)
SUBSCRIPTIONS: Final = Bounds(4 << 20, 20_000)
"""A member of a group names its protocols, and what it subscribes to as opaque bytes."""
ASSIGNMENTS: Final = Bounds(16 << 20, 20_000)
"""The leader of a group sends the assignments of all its members, as opaque bytes."""
BROKERS: Final = Bounds(None, 1_000_000)
"""Of brokers among themselves, whatever they ask for."""


def bounds_of(handler: Handler | type[Handler]) -> Bounds:
    usual = USUAL if getattr(handler, "is_advertised", True) else BROKERS
    found: Bounds = getattr(handler, "bounds", usual)
    return found


def frame_limits(handlers: Iterable[type[Handler]], max_frame_bytes: int) -> dict[int, int]:
    """The largest frame by API key, of whoever has not shown that it is a node of this cluster.

    What is for nodes alone, or served by nobody, is refused: it only has to be told from garbage."""
    limits = dict.fromkeys((*INDEX, *PRIVATE_KEYS), min(MAX_STRANGER_FRAME_BYTES, max_frame_bytes))
    for handler in handlers:
        if not getattr(handler, "is_advertised", True):
            continue
        frame_bytes = bounds_of(handler).frame_bytes
        limits[int(handler.api)] = max_frame_bytes if frame_bytes is None else min(frame_bytes, max_frame_bytes)
    return limits
