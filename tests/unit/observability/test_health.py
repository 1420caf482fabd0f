"""/health says ok only from a broker that can do its work in the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.config.broker import BrokerConfig
from penstock.config.gateway import CLOSED
from penstock.node.health import NodeHealth, health_of
from penstock.node.node import Node, no_supervisor
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld


async def test_a_broker_alone(tmp_path: Path) -> None:
    settings = {**CLOSED, "log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    node = Node(BrokerConfig.load(None, settings)[0], no_supervisor)
    await node.start()
    assert health_of(node) == NodeHealth("", node.image.cluster_id, 1, node.config.node_id)
    await node.stop()
    assert health_of(node).problem == "this broker is stopping"


def play(story: Callable[[SimWorld, SimCluster], Coroutine[Any, Any, None]]) -> None:
    with SimWorld(3) as world:

        async def main() -> None:
            cluster = SimCluster(world, 3)
            await asyncio.gather(*(cluster.bring_up(number) for number in cluster.voters))
            await asyncio.sleep(1)
            await story(world, cluster)

        world.run(main(), timeout_s=600)


def health(cluster: SimCluster, number: int) -> NodeHealth:
    return health_of(cluster.nodes[number])


def test_every_broker_of_a_cluster_that_is_whole_is_well() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        found = [health(cluster, number) for number in cluster.voters]
        assert [each.problem for each in found] == ["", "", ""]
        assert {each.brokers for each in found} == {3}
        (controller,) = {each.controller for each in found}
        assert cluster.nodes[controller].controller.is_active

    play(story)


def test_without_a_majority_nobody_is_well_and_the_voters_that_lack_are_named() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        survivor, *others = sorted(cluster.voters, key=lambda number: not cluster.nodes[number].controller.is_active)
        for number in others:
            cluster.kill(number)
        await asyncio.sleep(5)
        found = health(cluster, survivor)
        assert found.controller == -1
        assert found.problem == (
            "the metadata quorum has no leader: 2 of its 3 voters must be up; this broker cannot reach "
            + ", ".join(map(str, sorted(others)))
        )

    play(story)


def test_a_broker_that_is_fenced_is_not_well() -> None:
    async def story(world: SimWorld, cluster: SimCluster) -> None:
        number = next(each for each in cluster.voters if not cluster.nodes[each].controller.is_active)
        node = cluster.nodes[number]
        node.membership.lifecycle.is_fenced = True
        assert "this broker is fenced" in health_of(node).problem
        node.membership.lifecycle.is_fenced = False
        assert health_of(node).problem == ""
        node.membership.lifecycle._answered_s -= node.config.broker_session_timeout_ms / 1000
        assert f"the controller, node {health_of(node).controller}, has not answered" in health_of(node).problem

    play(story)
