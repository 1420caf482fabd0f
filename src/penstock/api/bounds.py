"""The size limits of requests by API: bytes of the frame, and elements of all arrays together.

A handler declares its `bounds` beside the versions it serves. Only Produce gets `socket.request.max.bytes`: no other
request carries records. Kafka's own decoder allows a million elements in every request. A request over the limit ends
the connection, as on Kafka, and its client retries for ever. So requests that name partitions have limits that no
cluster reaches. They are read, handled and answered in steps, so that they do not block the loop.
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
"""Private API keys, used only between brokers."""


class Bounds(NamedTuple):
    frame_bytes: int | None
    """None: `socket.request.max.bytes`."""
    elements: int


USUAL: Final = Bounds(1 << 20, 20_000)
WIDE: Final = Bounds(16 << 20, 500_000)
"""Requests that name partitions or topics one by one."""
RECORDS: Final = Bounds(None, 20_000)
SUBSCRIPTIONS: Final = Bounds(4 << 20, 20_000)
"""A group member lists its protocols, each with its subscription as opaque bytes."""
ASSIGNMENTS: Final = Bounds(16 << 20, 20_000)
"""The leader of a group sends the assignments of all its members, as opaque bytes."""
BROKERS: Final = Bounds(None, 1_000_000)
"""Between brokers, for every API."""


def bounds_of(handler: Handler | type[Handler]) -> Bounds:
    usual = USUAL if getattr(handler, "is_advertised", True) else BROKERS
    found: Bounds = getattr(handler, "bounds", usual)
    return found


def frame_limits(handlers: Iterable[type[Handler]], max_frame_bytes: int) -> dict[int, int]:
    """The largest frame by API key, on connections that have not presented the cluster's secret.

    Keys for nodes only, and unknown keys, are refused anyway: their frames need only be recognizable.
    """
    limits = dict.fromkeys((*INDEX, *PRIVATE_KEYS), min(MAX_STRANGER_FRAME_BYTES, max_frame_bytes))
    for handler in handlers:
        if not getattr(handler, "is_advertised", True):
            continue
        frame_bytes = bounds_of(handler).frame_bytes
        limits[int(handler.api)] = max_frame_bytes if frame_bytes is None else min(frame_bytes, max_frame_bytes)
    return limits
