"""Processes of the simulated world, carried in the context of every callback and task.

All processes share one event loop, so the current process is a context variable: code started in a process's context
passes it on to every task, callback and timer it creates. When a process dies the loop drops its callbacks in any
state: as after kill -9, no `finally` runs. While a process is paused its callbacks are held back and run late, in
order. Must not know: disks, networks, brokers.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context

from penstock.sim.machine.handle import SimHandle

CURRENT: ContextVar[SimProcess | None] = ContextVar("penstock_sim_process", default=None)
"""The process of a context never changes. For the loop, which reads it with every callback; other code uses the
functions below."""


class SimProcess:
    """One incarnation; a restarted process is a new one."""

    __slots__ = ("busy_until_ns", "context", "frozen", "held", "host", "is_alive", "name", "slept_ns", "suspended_ns")

    def __init__(self, host: str, incarnation: int = 0) -> None:
        self.host = host
        self.name = f"{host}#{incarnation}" if incarnation else host
        self.is_alive = True
        self.held: list[SimHandle] | None = None  # while paused: due callbacks
        self.suspended_ns: int | None = None  # start of the suspension
        self.frozen: list[tuple[float, int, SimHandle]] = []  # while suspended: its timers
        self.busy_until_ns = 0  # because of work in an earlier turn
        self.slept_ns = 0  # lag of its clock behind the world's
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"SimProcess({self.name}{'' if self.is_alive else ', dead'})"


def current_process() -> SimProcess | None:
    """The process whose code runs; None for the world itself."""
    return CURRENT.get()


def process_of(context: Context) -> SimProcess | None:
    return context.get(CURRENT)
