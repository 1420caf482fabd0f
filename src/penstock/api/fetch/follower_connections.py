"""Tracks the newest connection of each follower.

A follower without an answer reconnects, and requests from its earlier connection may still arrive. They are outdated:
they would report an older position, and in an idle partition nothing would correct it. Beyond `MAX_FOLLOWERS` the
oldest entries are dropped. Must not know: the content of the requests.
"""

from __future__ import annotations

from typing import Final

from penstock.net.connection import Connection

MAX_FOLLOWERS: Final = 10_000


class FollowerConnections:
    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def is_outdated(self, replica_id: int, connection: Connection) -> bool:
        """Whether this follower has used a newer connection."""
        newest = self._newest.get(replica_id, 0)
        if connection.number > newest:
            self._newest.pop(replica_id, None)
            self._newest[replica_id] = connection.number  # last in order: the newest
            if len(self._newest) > MAX_FOLLOWERS:
                del self._newest[next(iter(self._newest))]
        return connection.number < newest
