"""Machines that run the production node as one cluster: started, ended and inspected by number.

Every node is a voter of the metadata quorum, except those that join later. A cluster of one names no voters: it is a
single broker. Must not know: faults, clients, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from penstock.config.broker import BrokerConfig
from penstock.core.raft.settings import RaftSettings
from penstock.model.addresses import Address
from penstock.model.errors import PenstockError
from penstock.sim.broker import PORT, SimBroker, broker_config
from penstock.sim.machine.process import SimProcess
from penstock.sim.machine.world import DRIVER, ProcessDied, SimMachine, SimPorts, SimWorld
from penstock.sim.places import replaced
from penstock.sim.settings import SETTINGS

RESTART_PAUSE_S = 0.2
ENTRIES_KEPT = 2
"""Entries of the metadata log kept behind a snapshot: a node that was away for long needs the snapshot."""


@contextmanager
def few_entries_kept() -> Iterator[None]:
    """No broker setting controls this number."""

    def settings_with_few(original: Callable[[BrokerConfig], RaftSettings]) -> Callable[[BrokerConfig], RaftSettings]:
        return lambda config: replace(original(config), entries_kept_behind_snapshot=ENTRIES_KEPT)

    with replaced("penstock.node.membership:_raft_settings", settings_with_few):
        yield


class SimCluster:
    def __init__(
        self, world: SimWorld, size: int, *, joins: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        """`joins` further machines exist from the beginning and join the cluster when they are started."""
        self.world = world
        self.on_died: Callable[[int], None] = lambda _: None
        """Called with the number of a dead process, before the next one begins."""
        self.voters = list(range(1, size + 1))
        self.ids = list(range(1, size + joins + 1))
        self.machines: dict[int, SimMachine] = {number: world.machine(host_of(number)) for number in self.ids}
        self.nodes: dict[int, SimBroker] = {}
        self._serving: dict[int, SimBroker] = {}
        """Nodes of living processes, from their creation on; they may not be complete."""
        self.started: dict[int, None] = {}
        """Numbers of nodes that were ever part of the cluster."""
        self.failures = 0
        """Nodes that stopped by themselves."""
        self._starting: dict[int, asyncio.Lock] = {}
        self._files: dict[int, dict[str, str]] = {}  # settings in which a node's file differs
        self._settings = {**SETTINGS, **(settings or {})}
        copies = str(min(3, size))
        for topics in ("default", "offsets.topic", "transaction.state.log"):
            self._settings[f"{topics}.replication.factor"] = copies
        self._settings["min.insync.replicas"] = str(min(2, size))
        self._settings["transaction.state.log.min.isr"] = str(min(2, size))
        if size + joins > 1:
            self._settings["controller.quorum.voters"] = ",".join(f"{n}@{host_of(n)}:{PORT}" for n in self.voters)

    @property
    def session_s(self) -> float:
        """A broker without a sign of life for this time is fenced."""
        return int(self._settings["broker.session.timeout.ms"]) / 1000

    @property
    def addresses(self) -> list[Address]:
        return [(host_of(number), PORT) for number in self.ids]

    @property
    def living(self) -> dict[int, SimBroker]:
        """Nodes whose process runs."""
        return {number: node for number, node in self.nodes.items() if self.machines[number].is_running}

    def is_running(self, number: int) -> bool:
        return self.machines[number].is_running

    def is_serving(self, number: int) -> bool:
        """It has started, and nobody has stopped it."""
        return number in self.nodes and self._serving.get(number) is self.nodes[number]

    def start(self, number: int) -> asyncio.Future[SimBroker]:
        """Done when it serves; ProcessDied if it dies first."""
        self.started[number] = None

        async def serve(ports: SimPorts) -> SimBroker:
            settings = {**self._settings, **self._files.get(number, {})}
            when_failed = partial(self._failed, number, ports.process)
            node = SimBroker(broker_config(ports.process.host, number, settings), ports, when_failed)
            self.nodes[number] = node
            await node.start()
            self._serving[number] = node
            ports.trace.note(ports.process.name, "serves")
            return node

        return self.machines[number].start(serve)

    def rewrite_file(self, number: int, settings: Mapping[str, str]) -> None:
        """Settings for the next start of its process."""
        self._files.setdefault(number, {}).update(settings)

    async def bring_up(self, number: int) -> None:
        """Start it, repeatedly if necessary, until it serves. Concurrent calls share one start."""
        async with self._starting.setdefault(number, asyncio.Lock()):
            if not self.is_running(number):
                await self._start_until_it_serves(number)

    async def _start_until_it_serves(self, number: int) -> None:
        while True:
            try:
                await self.start(number)
            except ProcessDied:
                self.died(number)
            except (PenstockError, OSError) as error:
                # As an operator sees it: the broker logs the reason, exits, and is started again.
                self.world.trace.note(host_of(number), f"does not start: {type(error).__name__}")
                self.kill(number)
            else:
                return
            await asyncio.sleep(RESTART_PAUSE_S)

    def kill(self, number: int) -> None:
        if self.is_running(number):
            self.machines[number].kill()
        self.died(number)

    def crash(self, number: int) -> None:
        if self.is_running(number):
            self.machines[number].crash()
        self.died(number)

    async def stop(self, number: int) -> None:
        """End the process as SIGTERM does, then with kill -9 if that takes too long. A disk failure meanwhile ends it,
        too. A node that does not serve yet is ended by the signal, because it has no handler.
        """
        if not self.is_serving(number):
            self.kill(number)
            return
        del self._serving[number]
        machine = self.machines[number]
        try:
            async with asyncio.timeout(30):
                await machine.run(self.nodes[number].stop())
        except (TimeoutError, ProcessDied, PenstockError, OSError):
            self.kill(number)
        else:
            machine.exited()
            self.died(number)

    async def end_all(self, ending: str) -> None:
        """End all running nodes at once: "power failure", "kill" or "stop"."""
        running = [number for number in self.started if self.is_running(number)]
        if ending == "stop":
            await asyncio.gather(*map(self.stop, running))
        for number in running:
            if ending == "power failure":
                self.crash(number)
            elif self.is_running(number):
                self.kill(number)

    def _failed(self, number: int, process: SimProcess, error: Exception) -> None:
        """The node cannot continue: like `penstock start` it stops and exits, and its supervisor restarts it."""
        self.world.trace.note(process.name, f"leaves the cluster: {type(error).__name__}")
        self.failures += 1
        self.world.spawn(DRIVER, self._start_again(number, process))

    async def _start_again(self, number: int, process: SimProcess) -> None:
        if self.machines[number].process is process:
            await self.stop(number)
        await asyncio.sleep(RESTART_PAUSE_S)
        await self.bring_up(number)

    def died(self, number: int) -> None:
        self.nodes.pop(number, None)
        self.on_died(number)


def host_of(number: int) -> str:
    return f"node-{number}"
