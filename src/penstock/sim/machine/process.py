"""Who is running: a process of the simulated world, carried by the context of every callback and task.

All processes share one event loop, so what belongs to whom is a context variable: whoever is started in a process's
context hands it on to every task, callback and timer it makes. When a process dies its callbacks are dropped by the
loop, in whatever state they are: as after kill -9, no `finally` runs. While one is paused they are held back and run
late, in their order. Must not know: disks, networks, brokers.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context

from penstock.sim.machine.handle import SimHandle

CURRENT: ContextVar[SimProcess | None] = ContextVar("penstock_sim_process", default=None)
"""Whose a context is never changes. For the loop, which asks with every callback; others ask the functions below."""


class SimProcess:
    """One incarnation: a process that was started again is another one."""

    __slots__ = ("busy_until_ns", "context", "frozen", "held", "host", "is_alive", "name", "slept_ns", "suspended_ns")

    def __init__(self, host: str, incarnation: int = 0) -> None:
        self.host = host
        self.name = f"{host}#{incarnation}" if incarnation else host
        self.is_alive = True
        self.held: list[SimHandle] | None = None  # while paused: what was due
        self.suspended_ns: int | None = None  # since when
        self.frozen: list[tuple[float, int, SimHandle]] = []  # while suspended: its timers
        self.busy_until_ns = 0  # with what it did in an earlier turn
        self.slept_ns = 0  # how far its clock is behind the world's
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"SimProcess({self.name}{'' if self.is_alive else ', dead'})"


def current_process() -> SimProcess | None:
    """The process on whose behalf this code runs; None for the world itself."""
    return CURRENT.get()


def process_of(context: Context) -> SimProcess | None:
    return context.get(CURRENT)
