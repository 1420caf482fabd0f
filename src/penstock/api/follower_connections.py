"""On which connection each follower speaks now.

A follower that got no answer begins anew on another connection, and what it had sent on the one before may still
arrive. That is news no more: it would say that the follower holds less than it does, and nobody would contradict it
where nothing is written. Must not know: what is said.
"""

from __future__ import annotations

from penstock.net.connection import Connection


class FollowerConnections:
    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def is_outdated(self, replica_id: int, connection: Connection) -> bool:
        """Whether this follower has spoken on a younger one."""
        if connection.number < self._newest.get(replica_id, 0):
            return True
        self._newest[replica_id] = connection.number
        return False
