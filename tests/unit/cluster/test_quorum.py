"""Three servers that run Raft and nothing else, over the simulated network and disks: elections, faults, membership."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import ApiError, ErrorCode
from raft_cluster import cluster

SEEDS = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", SEEDS)
def test_three_servers_elect_one_and_agree(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            indexes = [await servers.propose(leader, b"%d" % number) for number in range(10)]
            assert indexes == sorted(indexes)
            assert await servers.until_equal() == [b"%d" % number for number in range(10)]
            other = next(node for node in servers.servers if node != leader)
            with pytest.raises(ApiError) as refused:
                await servers.propose(other, b"not here")
            assert refused.value.code is ErrorCode.NOT_CONTROLLER

        servers.world.run(main(), timeout_s=60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_leader_is_replaced_within_a_second(seed: int) -> None:
    with cluster(seed) as servers:

        async def main() -> None:
            await servers.start()
            leader = await servers.until_active()
            await servers.propose(leader, b"before")
            await asyncio.sleep(1)
            servers.kill(leader)
            successor = await servers.until_active(within_s=1.1)
            await servers.propose(successor, b"after")
            assert await servers.until_equal() == [b"before", b"after"]

        servers.world.run(main(), timeout_s=60)
