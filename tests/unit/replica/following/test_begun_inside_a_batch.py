"""Records are deleted up to the middle of a batch, and a replica that lost its log fetches from there."""

from __future__ import annotations

import asyncio

import pytest

from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.broker import DATA
from penstock.storage import checkpoints
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher
from support.worlds.three_brokers import TOPIC, ThreeBrokers, play

START, END = 3, 5


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_replica_begins_with_the_batch_and_starts_where_its_leader_does(is_crashed: bool) -> None:
    async def story(brokers: ThreeBrokers, cluster: AsyncCluster, producer: Publisher) -> None:
        servers = brokers.servers
        leader = brokers.state.leader
        emptied = next(number for number in servers.ids if number != leader)

        async def write() -> None:
            partition = servers.nodes[leader].partitions.get(TOPIC, 0)
            data = build_batch([Record(b"k", b"v", (), 1_700_000_000_000) for _ in range(END)])
            partition.append(read_header(data), data, 0)
            while partition.high_watermark < END:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            partition.delete_records(START)

        await servers.machines[leader].run(write())
        servers.kill(emptied)
        disk = servers.machines[emptied].disk
        disk.remove_directory(f"{DATA}/{TOPIC}-0")
        for file in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS):
            if disk.exists(f"{DATA}/{file}"):
                disk.remove(f"{DATA}/{file}")
        await servers.bring_up(emptied)
        await in_sync(brokers, emptied)
        if is_crashed:
            servers.crash(emptied)
            await servers.bring_up(emptied)
            await in_sync(brokers, emptied)
        partition = servers.nodes[emptied].partitions.get(TOPIC, 0)
        assert (partition.log.log_start_offset, partition.log.log_end_offset) == (START, END)
        assert partition.log.segment_bases == [0]

    play(3, story)


async def in_sync(brokers: ThreeBrokers, number: int) -> None:
    async with asyncio.timeout(60):
        while number not in brokers.state.isr:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
