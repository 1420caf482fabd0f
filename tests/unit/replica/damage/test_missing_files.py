"""A replica whose files are gone, or shorter than what was stable, takes them again from its leader."""

from __future__ import annotations

import errno

import pytest

from penstock.model.topic_partition import TopicPartition
from penstock.storage.checkpoints import CLEAN_SHUTDOWN
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import fetch_one
from penstock.wire_client.aio.publisher import Publisher
from support.scripted.leader import until
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

SEGMENT = "/data/t-0/00000000000000000000.log"


@pytest.mark.parametrize("what", ["directory", "tail"])
@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_replica_without_its_files_fetches_them_anew(what: str, who: str) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
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


@pytest.mark.parametrize("call", ["open", "rename", "sync directory"])
@pytest.mark.parametrize("is_corrupt", [True, False])
def test_a_repair_that_fails_once_is_tried_again(call: str, is_corrupt: bool) -> None:
    """While it is damaged nobody reads it, so nobody would report it again."""

    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        for number in range(5):
            await brokers.publish(producer, b"%d" % number)
        servers = brokers.servers
        loser = next(one for one in brokers.state.isr if one != brokers.state.leader)
        await servers.stop(loser)
        disk = servers.machines[loser].disk
        if is_corrupt:
            disk.flip_bit(SEGMENT, 70)
            disk.remove(f"/data/{CLEAN_SHUTDOWN}")
        else:
            disk.open(SEGMENT).truncate(200)
        await servers.bring_up(loser)
        calls: list[str] = []
        failed: list[str] = []

        def fail(name: str, path: str) -> int | None:
            calls.extend([name] * ("/t-0" in path))
            is_due = name == call and ("/t-0" in path or (path == "/data" and "rename" in calls))
            if failed or not is_due:
                return None
            failed.append(path)
            return errno.ENOSPC

        disk.fail_call = fail
        await until(lambda: bool(failed))
        await until(lambda: len(brokers.state.isr) == 3, 120)
        assert servers.living[loser].fetchers.repairs.repaired == 1
        assert servers.living[loser].partitions.get(TOPIC, 0).log.log_end_offset == 5

    play(7, story)
