"""The connection to a leader, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker_link.leader_link import LeaderLink
from support.worlds.peers import IntroducingServer, identity


@pytest.mark.parametrize("host", ["kafka-1..svc", "k" * 64])
async def test_an_address_that_is_no_host_name_is_tried_again_until_another_is_known(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(IntroducingServer, "127.0.0.1", 0)
    addresses = [(host, 9092), server.sockets[0].getsockname()]
    is_up = asyncio.Event()
    link = LeaderLink(
        loop,
        1,
        "test",
        identity(2),
        address_of=lambda _: addresses.pop(0) if len(addresses) > 1 else addresses[0],
        backoff_s=lambda: 0.01,
        on_up=is_up.set,
    )
    try:
        await asyncio.wait_for(is_up.wait(), 10)
        assert link.reconnects == 1
    finally:
        link.stop()
        server.close()
    assert f"cannot fetch from broker 1: {host}:9092: " in caplog.text
