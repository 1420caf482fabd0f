"""Sizes that are smaller in some histories: they are where they are said to be, and as before afterwards."""

from __future__ import annotations

from importlib import import_module
from random import Random

from penstock.core.raft.settings import RaftSettings
from penstock.node import membership
from penstock.sim.broker import broker_config
from penstock.sim.sizes import RAFT, SIZES, draw_sizes, shrunk


def _value(place: str) -> int:
    module, _, name = place.partition(":")
    value = getattr(import_module(module), name)
    assert isinstance(value, int)
    return value


def test_half_of_the_histories_have_some_that_are_smaller() -> None:
    drawn = [draw_sizes(Random(seed)) for seed in range(60)]
    assert 15 < sum(not sizes for sizes in drawn) < 45
    assert {name for sizes in drawn for name in sizes} == {*SIZES, *RAFT}
    assert draw_sizes(Random(7)) == draw_sizes(Random(7))


def test_each_is_smaller_for_a_while() -> None:
    usual = {place: _value(place) for place in SIZES}
    config = broker_config("node-1", 1, {})
    for place, values in SIZES.items():
        assert max(values) < usual[place], place
    smallest = {place: min(values) for place, values in SIZES.items()}
    of_raft = {name: min(values) for name, values in RAFT.items()}
    with shrunk(smallest | of_raft):
        assert {place: _value(place) for place in SIZES} == smallest
        made = membership._raft_settings(config)
        assert {name: getattr(made, name) for name in RAFT} == of_raft
    assert {place: _value(place) for place in SIZES} == usual
    assert membership._raft_settings(config).max_append_bytes == RaftSettings().max_append_bytes
