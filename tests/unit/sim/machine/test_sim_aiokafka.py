"""A stock client on the simulated loop: aiokafka produces and consumes in a group, in virtual time."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from penstock.sim.broker import broker
from penstock.sim.machine.clock import EPOCH_MS
from penstock.sim.machine.world import SimWorld

aiokafka = pytest.importorskip("aiokafka")

ADDRESS = "node-1:9092"


def history(seed: int) -> tuple[list[bytes], float, str]:
    random.seed(seed)  # aiokafka rolls its own dice
    with SimWorld(seed) as world, pytest.MonkeyPatch.context() as patch:
        machine = world.machine("node-1")
        # aiokafka reads the machine's clocks; here they are the world's.
        patch.setattr(time, "monotonic", world.loop.time)
        patch.setattr(time, "time", lambda: EPOCH_MS / 1000 + world.loop.time())

        async def consume(count: int) -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                "orders", bootstrap_servers=ADDRESS, group_id="group", auto_offset_reset="earliest", client_id="c"
            )
            await consumer.start()
            values = [(await consumer.getone()).value for _ in range(count)]
            await consumer.stop()
            return values

        async def main() -> list[bytes]:
            await machine.start(broker())
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=ADDRESS, acks="all", enable_idempotence=True, client_id="p"
            )
            await producer.start()
            consuming = world.spawn("consumer", consume(60))
            for number in range(60):
                if number == 30:
                    machine.kill()
                    await machine.start(broker())
                # Its own timestamps are the machine's, whatever `time.time` says.
                await producer.send_and_wait("orders", b"%d" % number, timestamp_ms=machine.clock.now_ms())
                await asyncio.sleep(5)
            values = await consuming
            await producer.stop()
            return values

        values = world.run(main(), timeout_s=3600)
        return values, world.loop.time(), world.trace.text()


def test_aiokafka_runs_for_five_virtual_minutes_across_a_restart() -> None:
    began = time.perf_counter()
    values, virtual_s, trace = history(1)
    assert time.perf_counter() - began < 5
    assert sorted(set(values), key=int) == [b"%d" % number for number in range(60)]
    assert virtual_s > 300
    assert history(1)[2] == trace
