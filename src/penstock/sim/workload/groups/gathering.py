"""A working group: two new members join it, share all partitions, and commit.

Earlier members may have left silently. Must not know: faults, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.sim.judges.history import Place
from penstock.sim.workload.groups.members import Member

PAUSE_S = 0.1
SESSION_MS = 1000
"""As short as allowed: a heartbeat is held for a third of it."""


class Gathering:
    def __init__(self, members: Sequence[Member], places: Sequence[Place]) -> None:
        self._members = members
        self._places = sorted(places)
        self._is_settled = False
        for member in members:
            member.session_ms = SESSION_MS

    async def run(self) -> None:
        """Until every partition has one owner, and every owner has committed."""
        await asyncio.gather(*(member.run(self._has_settled, PAUSE_S, stay_chance=1.0) for member in self._members))

    def _has_settled(self) -> bool:
        """Seen once, that is enough: the first member to see it leaves."""
        if not self._is_settled:
            generations = {member.generation for member in self._members}
            held = sorted(place for member in self._members for place in member.held)
            owners = [member for member in self._members if member.held]
            self._is_settled = (
                len(generations) == 1
                and held == self._places
                and all(member.committed_in == member.generation for member in owners)
            )
        return self._is_settled
