"""Crashes inside of changes that take several steps: they are met, and nothing that was promised is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.sim.faults.ambush import CHANGES
from penstock.sim.faults.plan import INSIDE, POWER, ROT_AND_CRASH, Fault
from penstock.sim.machine.world import SimPorts, SimWorld
from penstock.sim.plan import Plan, draw
from penstock.sim.scenario import play
from penstock.storage.log import Log


def plan_of(kind: str, seed: int) -> Plan:
    plan = draw(seed, nodes=3)
    faults = [Fault(number, kind, number + 0.5, 0.2) for number in range(4)]
    return replace(plan, faults=tuple(faults), has_tuner=False, ending="")


@pytest.mark.parametrize("kind", INSIDE)
def test_brokers_end_in_the_middle_of_a_change(kind: str) -> None:
    seed = next(seed for seed in range(20) if draw(seed, nodes=3).is_durable or kind not in POWER)
    before = Log.begin_cut, Log.close
    verdict = play(plan_of(kind, seed), keep_trace=True)
    assert verdict.is_good, verdict.details
    assert verdict.faults[kind]
    assert [what for what in CHANGES if f"{what} on node-" in verdict.trace]
    assert "at a change of its disk" in verdict.trace
    assert (Log.begin_cut, Log.close) == before


def test_power_fails_while_damage_is_mended() -> None:
    verdicts = [play(plan_of(ROT_AND_CRASH, seed), keep_trace=True) for seed in range(4)]
    assert all(verdict.is_good for verdict in verdicts), [verdict.details for verdict in verdicts]
    assert [verdict for verdict in verdicts if "cut its power at change" in verdict.trace]


def test_a_process_killed_at_a_change_of_its_disk_leaves_the_page_cache() -> None:
    with SimWorld(1) as world:
        machine = world.machine("node-1")

        async def main() -> list[bytes]:
            found: list[bytes] = []

            async def writes(ports: SimPorts) -> None:
                file = ports.disk.open("/file", create=True)
                machine.crash_after(3, keeps_power=True)
                for number in range(9):
                    file.write(number, [b"x"])

            async def reads(ports: SimPorts) -> None:
                found.append(ports.disk.open("/file").read(0, 9))

            with pytest.raises(Exception, match="node-1"):
                await machine.start(writes)
            assert not machine.is_running
            await machine.start(reads)
            return found

        (found,) = world.run(main())
        assert found in (b"xx", b"xxx")  # right before the third, or right after
