"""The services of `sim.faults.nemesis.Nemesis` for its faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from penstock.sim.cluster import SimCluster
from penstock.sim.faults.plan import Fault
from penstock.sim.judges.history import Place

if TYPE_CHECKING:
    from penstock.sim.faults.ambush import Ambushes


class Eyes(Protocol):
    """Observes the cluster: roles, health, progress. Faults report damage to it that is not a broker's fault."""

    def is_well(self) -> bool:
        """Every replica is complete."""
        ...

    def led(self) -> list[tuple[int, tuple[int, ...]]]:
        """Leader and replicas of each partition with a leader."""
        ...

    def controller(self) -> int | None: ...

    def held_up(self, number: int) -> list[str]:
        """Partitions that this broker leads and whose last records are not stable on its disk."""
        ...

    def excuse(self, number: int) -> None:
        """Bits are about to rot on its disk."""
        ...

    def lost_disk(self, number: int) -> None:
        """The disk of this broker is empty from now on."""
        ...

    def lost_metadata(self, number: int) -> None:
        """This broker has lost its metadata and its votes."""
        ...

    def stalled(self, what: str) -> None:
        """No other broker has taken over `what` from a broker whose disk hangs."""
        ...


class Early(Protocol):
    """A client that writes to a new topic before its leader knows of it."""

    @property
    def place(self) -> Place: ...

    async def prepare(self) -> None:
        """Connect, and get a producer id."""
        ...

    async def create(self) -> bool:
        """Create the topic; return whether this broker is to lead it."""
        ...

    async def write(self, after_first: Callable[[], Awaitable[None]]) -> None:
        """Send several batches one after the other without waiting for answers; await the callback after the first.
        Then go on until all are acknowledged."""
        ...


class Operators(Protocol):
    """What operators and clients do for a fault."""

    def replacing(self, number: int) -> AbstractAsyncContextManager[None]:
        """The steps before a machine with an empty disk returns, and after it has everything again."""
        ...

    async def configure(self, topic: str, name: str, value: str | None) -> None:
        """Changes a setting of a topic; None restores the planned value. Returns when acknowledged."""
        ...

    async def move_compacted(self, count: int) -> None:
        """Moves the replicas of the compacted topic to that many brokers."""
        ...

    async def vote(self, verb: str, voter: int, way: int) -> None:
        """Gives or takes a vote. `way`: the broker to ask."""
        ...

    async def settle(self) -> None:
        """Restores the initial voters."""
        ...

    async def read_replica(self, number: int) -> None:
        """Reads everything a broker has, for a moment."""
        ...

    def come_early(self, number: int) -> Early:
        """A client for a new topic that this broker will lead."""
        ...


class Enemy(Protocol):
    cluster: SimCluster
    ambushes: Ambushes
    has_voter_changes: bool
    is_alone: bool
    """Set while no other fault may begin."""
    eyes: Eyes
    operators: Operators
    rotten: int | None
    """The machine with damaged bits; at most one in a history."""

    def note(self, fault: Fault, what: str) -> None: ...

    def begin(self, deed: Any) -> None:
        """Start an awaitable that continues beside the fault."""
        ...

    # -- machines reserved for one fault ----------------------------------------------------------------------

    def take(self, number: int) -> None: ...

    def give_back(self, number: int) -> None: ...

    def is_free(self, number: int) -> bool:
        """Whether the machine is up and not taken by another fault."""
        ...

    def can_take(self, number: int) -> bool:
        """Whether the machine is free, and not too many others are down already."""
        ...

    # -- targets ----------------------------------------------------------------------------------------------

    def somebody(self, random: Random) -> int | None:
        """A running machine, preferably an important one."""
        ...

    def target(self, random: Random) -> int | None:
        """A running machine that no other fault has taken."""
        ...

    def leader(self, random: Random) -> int | None:
        """The leader of a random partition; None: unknown."""
        ...

    def replicas(self, random: Random) -> list[int]:
        """The replicas of a random partition with a leader, the leader last; empty: unknown."""
        ...

    def controller(self) -> int | None: ...

    def held_up(self, number: int) -> Sequence[str]:
        """Partitions led by this broker whose last records are not stable on its disk."""
        ...

    # -- waiting ----------------------------------------------------------------------------------------------

    async def down(self, fault: Fault, number: int) -> None:
        """The node is dead: wait, then start it."""
        ...

    def is_well(self) -> bool:
        """Every replica is in its wanted state."""
        ...

    async def wait(self, is_so: Callable[[], bool], at_most_s: float) -> None: ...

    async def wait_closely(self, is_so: Callable[[], bool], at_most_s: float) -> None:
        """The same, and look again every half a millisecond."""
        ...

    async def wait_for_quiet(self) -> bool:
        """Wait briefly until nothing is wrong and no other fault is active; return whether that came true."""
        ...

    async def wait_until_well(self) -> None: ...
