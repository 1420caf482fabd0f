"""A replica whose files are gone, or shorter than what was stable, takes them again from its leader."""

from __future__ import annotations

import pytest
from three_brokers import TOPIC, ThreeBrokers, play

from penstock.client.cluster import Cluster
from penstock.client.fetching import TopicPartition, fetch_one
from penstock.client.producer import Producer
from scripted_leader import until

SEGMENT = "/data/t-0/00000000000000000000.log"


@pytest.mark.parametrize("what", ["directory", "tail"])
@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_replica_without_its_files_fetches_them_anew(what: str, who: str) -> None:
    async def story(brokers: ThreeBrokers, cluster: Cluster, producer: Producer) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        servers, led = brokers.servers, brokers.state.leader
        loser = led if who == "leader" else next(one for one in brokers.state.isr if one != led)
        await servers.stop(loser)
        disk = servers.machines[loser].disk
        if what == "directory":
            disk.remove_directory("/data/t-0")
        else:
            disk.open(SEGMENT).truncate(200)
        await servers.bring_up(loser)
        await until(lambda: len(brokers.state.isr) == 3)
        partition = servers.living[loser].partitions.get(TOPIC, 0)
        assert partition.log.offline is None
        assert partition.log.log_end_offset == 5
        found = await fetch_one(cluster, TopicPartition(TOPIC, 0), 0, max_wait_ms=100)
        assert [record.value for record in found.records] == [b"%d" % number for number in range(5)]

    play(7, story)
