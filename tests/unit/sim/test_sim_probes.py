from __future__ import annotations

import pytest

from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.records import PartitionChanged
from penstock.sim.plan import draw
from penstock.sim.probes import DECIDED, ENDED, STATES, End
from penstock.sim.scenario import play
from penstock.storage import log as storage_log


def test_states_have_names_of_their_own() -> None:
    assert len(set(STATES)) == len(STATES) >= 25


@pytest.mark.parametrize(
    ("change", "states"),
    [
        (PartitionChanged("aa", 0, leader=3), {"a leader elected from the eligible ones (KIP-966)"}),
        (PartitionChanged("aa", 0, leader=-1), {"nobody left to lead"}),
        (PartitionChanged("aa", 0, isr=(2,), elr=(1, 3)), {"one in-sync replica left", "eligible ones remembered"}),
        (PartitionChanged("aa", 0, isr=(1, 2, 3)), {"in full sync again"}),
        (PartitionChanged("aa", 0, leader=1), {"back to the preferred leader"}),
        (PartitionChanged("aa", 0, leader=2, isr=(2, 3)), set()),
    ],
)
def test_decisions_are_known_by_what_they_change(change: PartitionChanged, states: set[str]) -> None:
    before = PartitionState(0, (1, 2, 3), leader=2, isr=(1, 2), elr=(3,))
    assert {name for name, is_it in DECIDED.items() if is_it(before, change)} == states


def test_moves_that_end_and_moves_that_are_called_off() -> None:
    before = PartitionState(0, (4, 1, 2, 3), leader=1, isr=(1, 2, 3), adding=(4,), removing=(3,))
    moved = PartitionChanged("aa", 0, replicas=(4, 1, 2), isr=(4, 1, 2), adding=(), removing=())
    called_off = PartitionChanged("aa", 0, replicas=(1, 2, 3), adding=(), removing=())
    replaced = PartitionChanged("aa", 0, replicas=(5, 1, 2, 3), adding=(5,), removing=(3,))
    names = "replicas moved to other brokers", "a move of replicas called off"
    found = [[DECIDED[name](before, change) for name in names] for change in (moved, called_off, replaced)]
    assert found == [[True, False], [False, True], [False, False]]


def test_a_node_that_ends_before_it_has_anything() -> None:
    end = End(object(), lost_power=True, is_network_whole=False, others_up=0)
    found = [name for name, is_it in ENDED.items() if is_it(end)]
    assert found == [
        "an end while starting",
        "an end while the network is cut",
        "power lost while the network is cut",
        "all machines down",
    ]


def test_states_are_counted_and_nobody_listens_afterwards() -> None:
    before = storage_log.recover, vars(storage_log.Log)["begin_cut"]
    verdict = play(draw(0))
    assert verdict.is_good
    assert verdict.probes["in full sync again"]
    assert not [name for name in verdict.probes if name not in STATES]
    assert (storage_log.recover, vars(storage_log.Log)["begin_cut"]) == before
