"""An event loop with virtual time: nothing waits, time jumps to the next timer.

Callbacks run first in, first out, timers by time and then by age, so a run depends only on what was scheduled. Every
turn advances the clock by its resolution; otherwise code that polls until a deadline would poll forever. Callbacks of
dead processes are dropped (`sim.machine.process`), and the clock of a suspended process stops.

Connections come from a `Network`. There are no threads, signals, subprocesses or descriptors; requests for them raise
NotImplementedError or NoThreads.

Errors, all of them named and none of them swallowed:

SimError
+-- Deadlock          nothing is scheduled and the awaited future is not done
+-- TimeLimit         the virtual time allowed for this run is over
+-- StepLimit         so many callbacks ran that something must be spinning
+-- NoThreads         run_in_executor: blocking work must use the Workers port
`-- UnhandledError    a callback raised, or a task failed and its exception was not retrieved
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple, cast

from penstock.sim.machine.handle import SimHandle
from penstock.sim.machine.process import CURRENT, SimProcess, current_process, process_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_NS = 1_000
NS = 1_000_000_000
LISTED_TASKS = 40
DEFAULT_MAX_STEPS = 50_000_000
FEW_TIMERS = 128


class SimError(Exception):
    pass


class Deadlock(SimError):
    pass


class TimeLimit(SimError):
    pass


class StepLimit(SimError):
    pass


class NoThreads(SimError):
    pass


class UnhandledError(SimError):
    pass


class Network(Protocol):
    """The implementation of `create_connection` and `create_server`."""

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> asyncio.AbstractServer: ...


class SimFuture(asyncio.Future[T]):
    """Knows its process: an exception that a dead process did not retrieve is no defect."""

    process: SimProcess | None = None


class SimTask(asyncio.Task[T]):
    process: SimProcess | None = None


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, *, max_steps: int = DEFAULT_MAX_STEPS) -> None:
        self._now_ns = 0
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._many_timers = FEW_TIMERS
        self._sequence = 0
        self._task_count = 0
        self._tasks: dict[asyncio.Task[Any], SimProcess | None] = {}
        self._failures: list[BaseException] = []
        self._is_running = False
        self._is_closed = False
        self._is_stopping = False
        self._has_slept = False  # any process at any time, so that most worlds skip the check
        self.max_steps = max_steps
        self.steps = 0
        self.network: Network | None = None
        self.after_turn: Callable[[], None] | None = None
        """An observer. It may raise, and must change nothing."""

    # -- time and callbacks -------------------------------------------------------------

    def time(self) -> float:
        """The time of the running process: its clock stops while it is suspended."""
        if self._has_slept and (process := CURRENT.get()) is not None:
            return (self._now_ns - process.slept_ns) / NS
        return self._now_ns / NS

    def world_time(self) -> float:
        return self._now_ns / NS

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise _closed()
        handle: SimHandle = SimHandle()
        handle._callback, handle._args = callback, args
        handle._context = copy_context() if context is None else context
        self._ready.append(handle)
        return handle

    # There is only one thread.
    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._schedule(self._now_ns / NS + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._has_slept:
            process = current_process() if context is None else process_of(context)
            when += process.slept_ns / NS if process is not None else 0.0
        return self._schedule(when, callback, args, context)

    def _schedule(
        self, at: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        """`at` in the time of the world."""
        if self._is_closed:
            raise _closed()
        handle: SimHandle = SimHandle()
        handle._when, handle._callback, handle._args = at, callback, args
        handle._context = copy_context() if context is None else context
        self._sequence += 1
        heappush(self._timers, (at, self._sequence, handle))
        if len(self._timers) > self._many_timers:
            self._drop_unwanted()
        return handle

    def _drop_unwanted(self) -> None:
        """Most timers are timeouts of work that finishes earlier; they slow down all other timers."""
        self._timers[:] = [timer for timer in self._timers if _is_wanted(timer[2])]
        heapify(self._timers)
        self._many_timers = max(2 * len(self._timers), FEW_TIMERS)

    # -- futures and tasks --------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future: SimFuture[Any] = SimFuture(loop=self)
        future.process = CURRENT.get()
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._check_open()
        self._task_count += 1
        # asyncio's own numbers continue from run to run; these are the same for the same seed.
        task: SimTask[T] = SimTask(
            cast("Coroutine[Any, Any, T]", coro),
            loop=self,
            name=str(name) if name is not None else f"task-{self._task_count}",
            context=context,
        )
        task.process = self._tasks[task] = process_of(context) if context is not None else current_process()
        task.add_done_callback(self._tasks.pop)
        return task

    def tasks_of(self, process: SimProcess | None) -> list[asyncio.Task[Any]]:
        """Unfinished ones, oldest first."""
        return [task for task, owner in self._tasks.items() if owner is process]

    def pause(self, process: SimProcess) -> None:
        """SIGSTOP: the process does not run until `resume`; time goes on."""
        if process.held is None:
            process.held = []

    def suspend(self, process: SimProcess) -> None:
        """Like `pause`, but its clock and its timers stop too."""
        self.pause(process)
        if process.suspended_ns is None:
            process.suspended_ns = self._now_ns
            process.frozen = [timer for timer in self._timers if process_of(timer[2]._context) is process]
            frozen = {timer[1] for timer in process.frozen}
            self._timers[:] = [timer for timer in self._timers if timer[1] not in frozen]
            heapify(self._timers)

    def resume(self, process: SimProcess) -> None:
        if process.suspended_ns is not None:
            slept_ns = self._now_ns - process.suspended_ns
            process.slept_ns += slept_ns
            self._has_slept = True
            process.suspended_ns = None
            for at, sequence, handle in process.frozen:
                heappush(self._timers, (at + slept_ns / NS, sequence, handle))
            process.frozen = []
        held, process.held = process.held, None
        self._ready.extend(held or ())

    def keep_busy(self, process: SimProcess, for_s: float) -> None:
        """The work of the process in this turn takes this long: its next turn comes after that."""
        process.busy_until_ns = self._now_ns + round(for_s * NS)

    # -- running ------------------------------------------------------------------------

    def run_until_complete(
        self, future: Generator[Any, None, T] | Awaitable[T], *, timeout_s: float | None = None
    ) -> T:
        """Raises what the future raises, UnhandledError at once, Deadlock, TimeLimit or StepLimit."""
        self._check_open()
        deadline_ns = None if timeout_s is None else self._now_ns + round(timeout_s * NS)
        awaited = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        self._enter()
        try:
            self._turn_until(awaited.done, deadline_ns)
        finally:
            self._leave()
            if not awaited.done():
                awaited.cancel()
                awaited._log_destroy_pending = False  # type: ignore[attr-defined]
        return awaited.result()

    def run_forever(self) -> None:
        self._check_open()
        self._is_stopping = False
        self._enter()
        try:
            self._turn_until(lambda: self._is_stopping, None)
        finally:
            self._leave()

    def _enter(self) -> None:
        if self._is_running:
            raise RuntimeError("this loop is running already")
        self._is_running = True
        events._set_running_loop(self)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)

    def _leave(self) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        events._set_running_loop(None)
        self._is_running = False

    def _turn_until(self, is_over: Callable[[], bool], deadline_ns: int | None) -> None:
        """A turn runs everything due now, once; if nothing is due, first advance to the next timer."""
        timers, ready, limit_ns = self._timers, self._ready, math.inf if deadline_ns is None else deadline_ns
        while not is_over():
            if not ready:
                while timers and not _is_wanted(timers[0][2]):
                    heappop(timers)
                if not timers:
                    raise Deadlock(f"nothing is scheduled at {self.time():.6f} s; these wait:\n{self._waiting()}")
                self._now_ns = max(self._now_ns, round(timers[0][0] * NS))
            self._now_ns = now_ns = self._now_ns + RESOLUTION_NS
            if now_ns > limit_ns:
                raise TimeLimit(f"not done at {self.time():.3f} s; these wait:\n{self._waiting()}")
            now = now_ns / NS
            while timers and timers[0][0] <= now:
                ready.append(heappop(timers)[2])
            for _ in range(len(ready)):
                handle = ready.popleft()
                callback = handle._callback
                if callback is None:
                    continue
                context = handle._context
                process = context.get(CURRENT)
                if process is not None:
                    if not process.is_alive:
                        continue
                    if process.held is not None:
                        process.held.append(handle)
                        continue
                    if process.busy_until_ns > now_ns:
                        self._sequence += 1
                        heappush(timers, (process.busy_until_ns / NS, self._sequence, handle))
                        continue
                self.steps += 1
                try:  # inlined from `Handle._run`
                    context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"exception": error, "handle": handle})
            if self.after_turn is not None:
                self.after_turn()
            if self.steps > self.max_steps:
                raise StepLimit(f"{self.steps} callbacks by {self.time():.6f} s; these wait:\n{self._waiting()}")
            if self._failures:
                self._raise_failure()

    def _raise_failure(self) -> NoReturn:
        failure = self._failures.pop(0)
        raise UnhandledError(f"at {self.time():.6f} s: {failure!r}") from failure

    def _waiting(self) -> str:
        lines = []
        for task, process in list(self._tasks.items())[:LISTED_TASKS]:
            if process is None or process.is_alive:
                frames = task.get_stack(limit=1)
                place = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "done"
                lines.append(f"  {process.name if process else 'world'} {task.get_name()} in {place}")
        if len(self._tasks) > LISTED_TASKS:
            lines.append(f"  and {len(self._tasks) - LISTED_TASKS} more")
        return "\n".join(lines) or "  no task: a future that is never completed"

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End every unfinished task's coroutine without running it further, and drop everything scheduled."""
        if self._is_closed:
            return
        if self._is_running:
            raise RuntimeError("a running loop cannot be closed")
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        tasks, self._tasks = list(self._tasks), {}
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # silences dead processes
        try:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _end(task)
        finally:
            logging.disable(disabled)

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()

    # -- errors -------------------------------------------------------------------------

    get_debug = bool
    """Always False: a run can be repeated instead. (Read for every handle; this costs no frame.)"""

    def set_debug(self, enabled: bool) -> None:
        """There is no debug mode."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised, or a task's exception was not retrieved: the run fails."""
        if self._is_closed:
            return
        error = context.get("exception") or SimError(context.get("message", "unknown"))
        if is_fatal(error) and not self._is_of_the_dead(context):
            self._failures.append(error)

    def _is_of_the_dead(self, context: dict[str, Any]) -> bool:
        source = context.get("task") or context.get("future") or context.get("handle")
        if isinstance(source, SimFuture | SimTask):
            process = source.process
        elif isinstance(source, SimHandle):
            process = process_of(source._context)
        elif source is None:
            process = current_process()
        else:  # made by asyncio, such as gather's: its process is unknown
            return any(owner is not None and not owner.is_alive for owner in self._tasks.values())
        return process is not None and not process.is_alive

    default_exception_handler = call_exception_handler

    # -- connections --------------------------------------------------------------------

    def _network(self) -> Network:
        if self.network is None:
            raise SimError("this loop has no network")
        return self.network

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        **_options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if ssl:
            raise NotImplementedError("the simulated network has no TLS")
        if host is None or port is None:
            raise ValueError("the simulated network connects to a host and a port")
        return await self._network().create_connection(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int = 0,
        *,
        ssl: object = None,
        **_options: object,
    ) -> asyncio.AbstractServer:
        if ssl:
            raise NotImplementedError("the simulated network has no TLS")
        return self._network().create_server(protocol_factory, host, port)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> NoReturn:
        raise NoThreads(f"{func!r}: work that may block goes through the Workers port")

    # -- the end of things --------------------------------------------------------------

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = current_process()
        if not self._is_closed and (process is None or process.is_alive):
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Generators are closed when their owners drop them."""

    async def shutdown_default_executor(self) -> None:
        """There is none."""


def _closed() -> RuntimeError:
    return RuntimeError("the simulated loop is closed")


def _is_wanted(handle: SimHandle) -> bool:
    if handle._callback is None:
        return False
    process = handle._context.get(CURRENT)
    return process is None or process.is_alive


def is_fatal(error: BaseException) -> bool:
    """Whether an unhandled error is a defect. A machine's crash is not (`sim.machine.disk.SimCrash`)."""
    return isinstance(error, Exception)


def _end(task: asyncio.Task[Any]) -> Sequence[BaseException]:
    """Unwind a coroutine that will never run again; errors on the way out are ignored."""
    coroutine = cast("Coroutine[Any, Any, Any] | None", task.get_coro())
    last_words: list[BaseException] = []
    while coroutine is not None and len(last_words) < 10:
        try:
            coroutine.close()
        except BaseException as error:  # it awaited while being ended, or the loop is gone
            last_words.append(error)
        else:
            break
    return last_words
