"""Deadlines: moved, cancelled and taken in order, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.shard.timers import Timers

keys = st.sampled_from([("a",), ("b",), ("session", "g", "m"), ("session", "g", "n"), ("join", "g")])
steps = st.lists(st.tuples(st.sampled_from(["set", "cancel", "take"]), keys, st.integers(0, 100)), max_size=60)


@given(steps)
def test_as_a_dictionary_would(steps: list[tuple[str, tuple[str, ...], int]]) -> None:
    timers, model = Timers(), dict[tuple[str, ...], int]()
    taken_ms = -1
    for step, key, at_ms in steps:
        if step == "set":
            timers.set(key, at_ms)
            model[key] = max(at_ms, taken_ms + 1)
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = sorted(key for key, deadline in model.items() if deadline <= at_ms)
            assert sorted(timers.take_due(at_ms)) == due
            taken_ms = max(taken_ms, at_ms)
            for key in due:
                del model[key]
        assert timers.next_deadline() == (min(model.values()) if model else None)
        assert len(timers) == len(model)


def test_earliest_first_and_what_is_set_meanwhile_comes_later() -> None:
    timers = Timers()
    timers.set(("late",), 30)
    timers.set(("early",), 10)
    taken = []
    for key in timers.take_due(30):
        taken.append(key)
        if key == ("early",):
            timers.set(("again",), 20)
    assert taken == [("early",), ("late",)]
    assert list(timers.take_due(30)) == []
    assert list(timers.take_due(31)) == [("again",)]


def test_moving_and_cancelling_does_not_pile_up() -> None:
    timers = Timers()
    for at_ms in range(10_000):
        timers.set(("session", "g", "m"), at_ms)
        timers.set(("join", "g"), at_ms)
        timers.cancel(("join", "g"))
    assert len(timers) == 1
    assert len(timers._heap) < 100
