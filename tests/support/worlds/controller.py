"""A controller on a simulated loop, with a quorum that agrees at once; who registers and who is heard is the test's.

The image, its state machine, the watch over brokers and all decisions are the real ones. Connections are a
dictionary: `lost` says since when the link to a broker is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.controller import Controller, NewCluster
from penstock.cluster.metadata_machine import MetadataMachine
from penstock.cluster.running_config import RunningConfig
from penstock.cluster.voter_decisions import WhyNotAt
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import HeartbeatAnswer, Registration
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import Status
from penstock.core.raft.exchange import Change
from penstock.core.raft.states import Role
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.broker import broker_config
from penstock.sim.machine.clock import SimClock, SimEntropy
from penstock.sim.machine.world import SimWorld

CLUSTER_ID = "c" * 22
COMMIT_S = 0.002
NODE = 1
SESSION_S = 9.0
GRACE_S = 0.3
SETTINGS = {
    "controller.quorum.voters": "1@node-1:9092,2@node-2:9092,3@node-3:9092",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}
FIRST = {voter: (f"node-{voter}", 9092) for voter in (1, 2, 3)}
"""Where the voters are, as the file of the first controller has it."""


async def found_there(address: tuple[str, int], node: int, directory_id: str) -> str:
    """Every node is where it is said to be."""
    return ""


class AgreeingQuorum:
    """Every entry is committed a moment after it was proposed, unless a test says otherwise."""

    def __init__(self, machine: MetadataMachine, voters: tuple[int, ...]) -> None:
        self._machine = machine
        self.is_active = True
        self.index = 0
        self.voters = voters
        self.observers: tuple[int, ...] = ()
        self.changes: list[tuple[Change, int]] = []
        self.failure: Exception | None = None
        self._latest: asyncio.Future[int] | None = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    @property
    def status(self) -> Status:
        configuration = Configuration(self.voters, self.observers)
        return Status(Role.LEADER, 1, NODE, self.index, self.index, configuration, ())

    async def propose(self, data: bytes) -> int:
        """Once it is proposed it may happen, whether somebody waits for it or not."""
        if self.failure is not None:
            raise self.failure
        self._latest = asyncio.ensure_future(self._agree(data))
        return await asyncio.shield(self._latest)

    async def settled(self) -> None:
        if self._latest is not None and self.is_active:
            await asyncio.wait([self._latest])

    async def _agree(self, data: bytes) -> int:
        await asyncio.sleep(COMMIT_S)
        await self.may_commit.wait()
        if not self.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        self.index += 1
        self._machine.apply(self.index, data)
        return self.index

    async def change_membership(self, change: Change, node: int) -> None:
        self.changes.append((change, node))
        if change is Change.ADD_OBSERVER:
            self.observers = (*self.observers, node)
        elif change is Change.REMOVE_OBSERVER:
            self.observers = tuple(one for one in self.observers if one != node)
        elif change is Change.ADD_VOTER:
            self.voters = (*self.voters, node)
            self.observers = tuple(one for one in self.observers if one != node)
        else:
            self.voters = tuple(one for one in self.voters if one != node)


class ControllerWorld:
    """To be made inside `world.run`."""

    def __init__(self, world: SimWorld, settings: Mapping[str, str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        config = broker_config("node-1", NODE, {**SETTINGS, **(settings or {})})
        self.clock = SimClock(world.loop.time)
        self.image = MetadataImage()
        self.running = RunningConfig(config, self.image)
        self.machine = MetadataMachine(
            self.image, on_cluster_id=lambda _: None, on_brokers=lambda: None, on_settings=self.running.refresh
        )
        self.quorum = AgreeingQuorum(self.machine, tuple(v.node_id for v in config.controller_quorum_voters) or (NODE,))
        self.lost: dict[int, float] = {}
        self.watch = BrokerWatch(loop, NODE, self.image, self.running, self.clock, self.lost.get)
        entropy = SimEntropy(world.random("entropy"))
        self.why_not_at: WhyNotAt = found_there
        self.controller = Controller(
            loop,
            NODE,
            self.quorum,
            self.image,
            self.running,
            entropy,
            self.watch,
            lambda address, node, directory_id: self.why_not_at(address, node, directory_id),
            NewCluster(CLUSTER_ID, FIRST),
        )
        self.epochs: dict[int, int] = {}
        self._beating: dict[int, asyncio.Task[None]] = {}

    async def begin(self, brokers: int = 3) -> None:
        """As many brokers are registered, unfenced, and send heartbeats."""
        self.controller.activated()
        await asyncio.sleep(0.1)
        for broker in range(1, brokers + 1):
            await self.join(broker)

    async def register(self, broker: int, life: bytes = b"first", **more: Any) -> int:
        registration = Registration(
            broker, more.pop("cluster_id", CLUSTER_ID), life.ljust(16), {"PLAINTEXT": (f"node-{broker}", 9092)}, **more
        )
        self.epochs[broker] = await self.controller.registry.register_broker(registration)
        return self.epochs[broker]

    async def heartbeat(self, broker: int, *, offset: int | None = None, wants_out: bool = False) -> HeartbeatAnswer:
        known = self.quorum.index if offset is None else offset
        return await self.controller.registry.heartbeat(broker, self.epochs[broker], known, False, wants_out)

    async def join(self, broker: int) -> None:
        await self.register(broker)
        await self.heartbeat(broker)
        self.beat(broker)

    def beat(self, broker: int) -> None:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(2.0)
                await self.heartbeat(broker)

        self._beating[broker] = asyncio.get_running_loop().create_task(go_on())

    def fall_silent(self, broker: int) -> None:
        self._beating.pop(broker).cancel()

    def break_link(self, broker: int) -> None:
        self.lost[broker] = self.clock.monotonic()
        self.watch.peer_lost(broker)

    def mend_link(self, broker: int) -> None:
        del self.lost[broker]

    def is_fenced(self, broker: int) -> bool:
        return self.image.brokers[broker].is_fenced

    async def end(self) -> None:
        for task in self._beating.values():
            task.cancel()
        await self.controller.stop()


Story: TypeAlias = Callable[[ControllerWorld], Coroutine[Any, Any, None]]


def play(story: Story, brokers: int = 3, **settings: str) -> None:
    """A story with so many brokers that live. Settings are named with _ for the dots."""
    with SimWorld(1) as world:

        async def main() -> None:
            there = ControllerWorld(world, {name.replace("_", "."): value for name, value in settings.items()})
            await there.begin(brokers)
            await story(there)
            await there.end()

        world.run(main(), timeout_s=600)
