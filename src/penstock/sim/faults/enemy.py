"""What `sim.faults.nemesis.Nemesis` does for the faults that it draws, whatever they are about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from penstock.sim.cluster import SimCluster
from penstock.sim.faults.plan import Fault

if TYPE_CHECKING:
    from penstock.sim.faults.ambush import Ambushes


class Enemy(Protocol):
    cluster: SimCluster
    ambushes: Ambushes
    has_voter_changes: bool
    is_alone: bool
    """No other fault begins."""
    on_rot: Callable[[int], None]
    on_lost_metadata: Callable[[int], None]
    on_stall: Callable[[str], None]
    """Told what nobody else has taken over from a broker whose disk hangs."""
    configures: Callable[[str, str, str | None], Awaitable[None]]
    moves: Callable[[int], Awaitable[None]]
    reads: Callable[[int], Awaitable[None]]
    votes: Callable[[str, int, int], Awaitable[None]]
    settles: Callable[[], Awaitable[None]]

    def note(self, fault: Fault, what: str) -> None: ...

    def begin(self, deed: Any) -> None:
        """An awaitable that goes on beside the fault."""
        ...

    # -- machines that a fault has to itself ------------------------------------------------------------------

    def take(self, number: int) -> None: ...

    def give_back(self, number: int) -> None: ...

    def is_free(self, number: int) -> bool:
        """It is up, and no other fault has taken it."""
        ...

    def can_take(self, number: int) -> bool:
        """It is free, and not too many are down already."""
        ...

    # -- whom to hit ------------------------------------------------------------------------------------------

    def somebody(self, random: Random) -> int | None:
        """A machine that is up, rather one that matters."""
        ...

    def target(self, random: Random) -> int | None:
        """A machine that is up and that no other fault has taken."""
        ...

    def leader(self, random: Random) -> int | None:
        """Of a partition at random; None: nobody knows."""
        ...

    def replicas(self, random: Random) -> list[int]:
        """Of a partition at random that is led, its leader last; none: nobody knows."""
        ...

    def controller(self) -> int | None: ...

    def held_up(self, number: int) -> Sequence[str]:
        """Partitions that this broker leads and whose last records are not stable on its disk."""
        ...

    # -- what to wait for -------------------------------------------------------------------------------------

    async def down(self, fault: Fault, number: int) -> None:
        """It is dead: for a while, then up again."""
        ...

    def is_well(self) -> bool:
        """Every replica has what it should."""
        ...

    async def wait(self, is_so: Callable[[], bool], at_most_s: float) -> None: ...

    async def wait_for_quiet(self) -> bool:
        """Whether nothing is wrong, before long, and no other fault is under way."""
        ...

    async def wait_until_well(self) -> None: ...
