"""A node's own settings differ from those of its cluster: which ones apply, and the node's warning."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.core.metadata.image import RESOURCE_BROKER, MetadataImage
from penstock.core.metadata.records import ConfigChanged
from penstock.sim.broker import broker_config
from penstock.sim.cluster import SimCluster
from penstock.sim.machine.world import SimWorld

AGREED = {"min.insync.replicas": "2", "log.flush.interval.messages": "1"}


def running(own: dict[str, str], cluster_wide: dict[str, str]) -> RunningConfig:
    image = MetadataImage()
    image.replay(ConfigChanged(RESOURCE_BROKER, CLUSTER_WIDE, cluster_wide))
    return RunningConfig(broker_config("node-1", 1, own), image)


def test_a_setting_that_the_cluster_overrules_is_named_with_both_values_and_the_remedy() -> None:
    there = running({"min.insync.replicas": "1"}, AGREED)
    assert list(there.overruled()) == [
        "min.insync.replicas=1 in this node's settings has no effect: the cluster has "
        "min.insync.replicas=2 for all nodes; change it with: penstock configs set --all-brokers "
        "min.insync.replicas=1"
    ]
    assert there.current.settings.value("min.insync.replicas") == 2


@pytest.mark.parametrize(
    ("own", "cluster_wide", "named"),
    [
        ({}, AGREED, []),
        (AGREED, AGREED, []),
        ({"min.insync.replicas": " 02"}, AGREED, []),
        ({"min.insync.replicas": "3"}, {}, []),
        ({"log.retention.ms": "1000"}, {**AGREED, "log.retention.ms": "2000"}, []),
        ({"log.flush.interval.messages": "100"}, AGREED, ["log.flush.interval.messages"]),
        (
            {"min.insync.replicas": "3", "log.flush.interval.messages": "100"},
            AGREED,
            ["min.insync.replicas", "log.flush.interval.messages"],
        ),
    ],
)
def test_only_what_is_agreed_on_and_differs_is_named(
    own: dict[str, str], cluster_wide: dict[str, str], named: list[str]
) -> None:
    sentences = list(running(own, cluster_wide).overruled())
    assert [sentence.partition("=")[0] for sentence in sentences] == named


def test_a_node_says_so_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: SimWorld) -> None:
        cluster = SimCluster(world, 3)
        await asyncio.gather(*(cluster.bring_up(number) for number in cluster.voters))
        assert "has no effect" not in caplog.text
        await cluster.stop(2)
        cluster._settings["min.insync.replicas"] = "1"
        await cluster.bring_up(2)
        assert cluster.nodes[2].running.current.settings.value("min.insync.replicas") == 2

    with SimWorld(5) as world:
        world.run(story(world), timeout_s=900)
    said = [record for record in caplog.records if "has no effect" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert said[0].getMessage().startswith("min.insync.replicas=1 in this node's settings has no effect")
