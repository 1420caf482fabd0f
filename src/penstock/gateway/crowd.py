"""The connections of one protocol: their number, and how long each has waited for its caller.

A connection is in one of these states:

    beginning   a request has begun to arrive, or is the first of its connection: it must be complete within `request_s`
    idle        between two requests
    busy        the gateway works on an answer

When all places are taken, a new connection replaces the one that has waited longest for its caller. So callers that
send nothing cannot keep others out. If all connections are busy, the new connection is refused.

Must not know: the protocol, how a connection is closed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from penstock.observability.exposition import Family, counter, gauge

C = TypeVar("C", bound=Hashable)


class Crowd(Generic[C]):
    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self._limit = limit
        self.busy: dict[C, None] = {}
        # Connections by the start of their wait, oldest first.
        self._beginning: dict[C, float] = {}
        self._idle: dict[C, float] = {}
        self.timed_out = 0
        self.made_room = 0
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self.busy) + len(self._beginning) + len(self._idle)

    def arrived(self, connection: C, now_s: float) -> C | None:
        """The connection to close to make room, if any. It is the new connection itself if all others are busy."""
        gone: C | None = None
        if len(self) >= self._limit:
            gone = next(iter(self._beginning), next(iter(self._idle), None))
            if gone is None:
                self.turned_away += 1
                return connection
            self.made_room += 1
            self.left(gone)
        self._beginning[connection] = now_s
        return gone

    def begins(self, connection: C, now_s: float) -> None:
        """The first part of a request has arrived. Later parts do not extend its deadline."""
        if connection not in self._beginning:
            self.left(connection)
            self._beginning[connection] = now_s

    def is_busy(self, connection: C) -> None:
        self.left(connection)
        self.busy[connection] = None

    def is_idle(self, connection: C, now_s: float) -> None:
        self.left(connection)
        self._idle[connection] = now_s

    def left(self, connection: C) -> None:
        self.busy.pop(connection, None)
        self._beginning.pop(connection, None)
        self._idle.pop(connection, None)

    def overdue(self, now_s: float, request_s: float, idle_s: float) -> list[C]:
        """The connections to close. They are no longer counted."""
        late = [
            connection
            for waiting, patience_s in ((self._beginning, request_s), (self._idle, idle_s))
            for connection, since_s in waiting.items()
            if now_s - since_s >= patience_s
        ]
        for connection in late:
            self.left(connection)
        self.timed_out += len(late)
        return late


def families(crowds: list[Crowd[C]]) -> list[Family]:
    return [
        gauge(
            "penstock_gateway_connections",
            "Open connections to the gateway.",
            ("protocol",),
            [((crowd.name,), len(crowd)) for crowd in crowds],
        ),
        counter(
            "penstock_gateway_connections_closed_total",
            "Connections that the gateway closed: the caller was too slow (timeout), or the limit was reached (full).",
            ("protocol", "reason"),
            [
                ((crowd.name, reason), number)
                for crowd in crowds
                for reason, number in (("timeout", crowd.timed_out), ("full", crowd.made_room + crowd.turned_away))
            ],
        ),
    ]
