"""A node that leads the metadata quorum and stops: another leads when it is gone."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld


@pytest.mark.parametrize("seed", range(4))
def test_a_controller_that_stops_has_handed_over(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """While it still hears the others: later it would wait in vain for the end of its own time."""
    with SimWorld(seed) as world:
        cluster = SimCluster(world, 3)

        async def main() -> None:
            await asyncio.gather(*map(cluster.bring_up, cluster.voters))
            leader = next(number for number, node in cluster.living.items() if node.controller.is_active)
            with caplog.at_level(logging.INFO):
                await cluster.machines[leader].run(cluster.nodes[leader].stop())
            assert not [line for line in caplog.messages if "did not take over" in line]
            others = [node.membership.quorum for number, node in cluster.nodes.items() if number != leader]
            while not any(quorum.is_active for quorum in others):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        world.run(main(), timeout_s=120)
