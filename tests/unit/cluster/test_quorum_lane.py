"""Raft's disk work has a lane of its own: busy workers and flushes of partitions keep no vote waiting."""

from __future__ import annotations

import asyncio

from penstock.sim.cluster import SimCluster
from penstock.sim.machine.threads import SimFlusher, SimWorkers
from penstock.sim.machine.world import SimWorld
from support.scripted.leader import until


def occupy(node_threads: SimWorkers | SimFlusher) -> None:
    """Each of its threads is at work on something that does not end."""
    node_threads._pool._free = 0


def test_a_controller_is_elected_while_all_workers_and_flushers_are_busy() -> None:
    with SimWorld(8) as world:
        servers = SimCluster(world, 3)

        def controllers() -> list[int]:
            return [number for number, node in servers.living.items() if node.controller.is_active]

        async def main() -> None:
            await asyncio.gather(*(servers.bring_up(number) for number in servers.ids))
            [before] = controllers()
            for node in servers.living.values():
                occupy(node._workers)  # type: ignore[arg-type]
                occupy(node._flusher)  # type: ignore[arg-type]
            servers.kill(before)
            await until(lambda: bool(controllers()))
            [after] = controllers()
            index = await servers.machines[after].run(
                servers.living[after].controller.topics.allocate_producer_ids(
                    after, servers.living[after].membership.lifecycle.epoch
                )
            )
            assert index is not None

        world.run(main(), timeout_s=60)
