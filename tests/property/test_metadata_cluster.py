"""The controller's decisions on a seed: brokers crash, replicas move, and nothing committed is lost.

PENSTOCK_PROPERTY_EXAMPLES sets the number of histories. A failure names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from penstock.core.metadata import partition_change
from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.partition_change import Wanted
from support.worlds.metadata import MetadataWorld, Violation

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
STEPS = 250


def run(seed: int) -> None:
    world = MetadataWorld(seed)
    try:
        world.run(STEPS)
    except Exception as error:
        last = "\n".join(world.story[-12:])
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}\nthe last records:\n{last}") from error


def run_many(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)


@pytest.mark.parametrize("part", range(2))
def test_nothing_committed_is_lost_and_the_cluster_recovers(part: int) -> None:
    for seed in range(part, EXAMPLES, 2):
        run(seed)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = MetadataWorld(5), MetadataWorld(5)
    first.run(STEPS)
    second.run(STEPS)
    assert first.entries == second.entries


def forgets_the_eligible(partition: PartitionState, wanted: Wanted, minimum: int) -> tuple[int, ...]:
    return ()


def keeps_the_eligible_too_long(partition: PartitionState, wanted: Wanted, minimum: int) -> tuple[int, ...]:
    known = (*partition.elr, *partition.isr)
    return tuple(replica for replica in wanted.replicas if replica in known and replica not in wanted.isr)


def trusts_a_crashed_one(partition: PartitionState, wanted: Wanted, minimum: int) -> tuple[int, ...]:
    if len(wanted.isr) >= minimum:
        return ()
    return keeps_the_eligible_too_long(partition, wanted, minimum)


@pytest.mark.parametrize("bug", [forgets_the_eligible, keeps_the_eligible_too_long, trusts_a_crashed_one])
def test_a_planted_bug_is_found(
    bug: Callable[[PartitionState, Wanted, int], Sequence[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_change, "_eligible", bug)
    with pytest.raises(Violation):
        run_many(200)
