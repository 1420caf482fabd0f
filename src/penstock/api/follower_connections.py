"""On which connection each follower speaks now.

A follower that got no answer begins anew on another connection, and what it had sent on the one before may still
arrive. That is news no more: it would say that the follower holds less than it does, and nobody would contradict it
where nothing is written. Of more than `MAX_FOLLOWERS` those that began anew the longest ago are forgotten. Must not
know: what is said.
"""

from __future__ import annotations

from typing import Final

from penstock.net.connection import Connection

MAX_FOLLOWERS: Final = 10_000


class FollowerConnections:
    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def is_outdated(self, replica_id: int, connection: Connection) -> bool:
        """Whether this follower has spoken on a younger one."""
        newest = self._newest.get(replica_id, 0)
        if connection.number > newest:
            self._newest.pop(replica_id, None)
            self._newest[replica_id] = connection.number  # last in order: the youngest
            if len(self._newest) > MAX_FOLLOWERS:
                del self._newest[next(iter(self._newest))]
        return connection.number < newest
