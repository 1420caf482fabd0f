"""The checker finds each kind of broken promise where it was planted, and nothing in a history without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from support.clients.history import (
    UNKNOWN_OFFSET,
    Acknowledged,
    Failed,
    History,
    Pauses,
    Read,
    Reset,
    Sent,
    Stored,
    assert_kept,
    check,
    longest_pause,
    pauses,
)


@dataclass
class World:
    """Two producers take turns in one partition; all of it is acknowledged at its offset, read, and in the log."""

    history: History
    log: dict[int, list[Stored]]


@pytest.fixture
def world() -> World:
    history, stored = History(), []
    for offset in range(10):
        producer, number = "ab"[offset % 2], offset // 2
        history.sent.append(Sent(offset, producer, 0, number))
        history.acknowledged.append(Acknowledged(offset + 0.5, producer, 0, number, offset))
        history.read.append(Read(offset + 0.6, "reader", 0, offset, producer, number))
        stored.append(Stored(offset, producer, number))
    return World(history, {0: stored})


def kinds(world: World) -> list[str]:
    return sorted({violation.kind for violation in check(world.history, world.log)})


def test_a_clean_history(world: World) -> None:
    assert check(world.history, world.log) == []
    assert_kept(world.history, world.log)


def test_what_may_happen_is_no_violation(world: World) -> None:
    history = world.history
    # Read before the acknowledgement arrived.
    history.read.sort()
    history.acknowledged[3] = history.acknowledged[3]._replace(time_s=99.0)
    # Failed, and yet in the log: the producer does not know; and failed, and not there.
    history.sent += [Sent(20.0, "a", 0, 5), Sent(21.0, "a", 0, 6)]
    history.failed += [Failed(22.0, "a", 0, 5, "timed out"), Failed(22.0, "a", 0, 6, "timed out")]
    world.log[0].append(Stored(10, "a", 5))
    # A repeat that the broker remembers without its offset.
    history.acknowledged[4] = history.acknowledged[4]._replace(offset=UNKNOWN_OFFSET)
    # A second consumer that starts later, and one that stops early.
    history.read += [Read(30.0, "late", 0, 8, "a", 4), Read(31.0, "late", 0, 9, "b", 4)]
    assert check(history, world.log) == []


def lose_the_last(world: World) -> None:
    world.log[0].pop()
    world.history.read.pop()


def lose_one_between(world: World) -> None:
    del world.log[0][4]
    del world.history.read[4]


def lose_a_partition(world: World) -> None:
    del world.log[0]
    world.history.read.clear()


def store_twice(world: World) -> None:
    world.log[0].append(Stored(10, "a", 0))


def swap_two(world: World) -> None:
    records = world.log[0]
    records[0], records[2] = Stored(0, "a", 1), Stored(2, "a", 0)
    world.history.read.clear()
    for at, offset in ((0, 2), (2, 0)):
        world.history.acknowledged[at] = world.history.acknowledged[at]._replace(offset=offset)


def acknowledge_elsewhere(world: World) -> None:
    world.history.acknowledged[9] = world.history.acknowledged[9]._replace(offset=10)


def acknowledge_two_at_one_offset(world: World) -> None:
    world.history.acknowledged[9] = world.history.acknowledged[9]._replace(offset=8)


def store_what_nobody_sent(world: World) -> None:
    world.log[0].append(Stored(10, "c", 0))


def read_what_nobody_sent(world: World) -> None:
    world.history.read.append(Read(20.0, "other", 0, 9, "c", 7))


def read_again(world: World) -> None:
    world.history.read.append(Read(20.0, "reader", 0, 9, "b", 4))


def read_backwards(world: World) -> None:
    world.history.read.append(Read(20.0, "reader", 0, 3, "b", 1))


def pass_over_one(world: World) -> None:
    del world.history.read[5]


def read_what_is_cut_later(world: World) -> None:
    world.history.sent.append(Sent(20.0, "a", 0, 5))
    world.history.read.append(Read(20.5, "reader", 0, 10, "a", 5))


def read_what_is_replaced_later(world: World) -> None:
    read_what_is_cut_later(world)
    world.history.sent.append(Sent(21.0, "b", 0, 5))
    world.log[0].append(Stored(10, "b", 5))


def reset_a_consumer(world: World) -> None:
    world.history.resets.append(Reset(20.0, "reader", 0, "offset out of range"))


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (lose_the_last, ["lost"]),
        (lose_one_between, ["lost"]),
        (lose_a_partition, ["lost"]),
        (store_twice, ["duplicated"]),
        (swap_two, ["reordered"]),
        (acknowledge_elsewhere, ["moved"]),
        (acknowledge_two_at_one_offset, ["moved", "shared"]),
        (store_what_nobody_sent, ["unsent"]),
        (read_what_nobody_sent, ["unsent", "vanished"]),
        (read_again, ["backwards"]),
        (read_backwards, ["backwards"]),
        (pass_over_one, ["skipped"]),
        (read_what_is_cut_later, ["vanished"]),
        (read_what_is_replaced_later, ["vanished"]),
        (reset_a_consumer, ["reset"]),
    ],
)
def test_planted(world: World, plant: Callable[[World], None], expected: list[str]) -> None:
    plant(world)
    assert kinds(world) == expected
    with pytest.raises(AssertionError, match=expected[0]):
        assert_kept(world.history, world.log)


def test_a_record_stored_thrice_is_two_duplicates(world: World) -> None:
    world.log[0] += [Stored(10, "a", 0), Stored(11, "a", 0)]
    assert [violation.kind for violation in check(world.history, world.log)] == ["duplicated", "duplicated"]


def test_longest_pause() -> None:
    times = [0.0, 1.0, 1.5, 4.0, 4.5]
    assert longest_pause(times, 0.0, 4.5) == 2.5
    assert longest_pause(times, 1.2, 1.4) == pytest.approx(0.4), "it began before the event"
    assert longest_pause(times, 4.2, 9.0) == 4.5, "and may not have ended"
    assert longest_pause([], 1.0, 3.0) == 2.0


def test_pauses_take_the_worst_stream_of_each_event() -> None:
    history = History()
    for partition, times in enumerate(([0.0, 1.0, 2.0, 3.0, 10.0, 11.0], [0.0, 1.0, 5.0, 10.0, 11.0])):
        history.acknowledged += [Acknowledged(time, "a", partition, 0, 0) for time in times]
    found = pauses(history, [1.0, 10.0], 11.0)
    assert found == Pauses([7.0, 1.0])
    assert (found.median_s, found.worst_s) == (4.0, 7.0)
    assert "median 4.00 s, worst 7.00 s" in str(found)


def test_pauses_are_of_those_who_had_something_to_send() -> None:
    history = History()
    history.acknowledged += [Acknowledged(time, "before", 0, 0, 0) for time in (0.0, 1.0)]
    history.acknowledged += [Acknowledged(time, "a", 0, 0, 0) for time in (1.0, 2.0, 3.0)]
    assert pauses(history, [1.5], 3.0) == Pauses([1.0])
    history.sent.append(Sent(2.5, "unanswered", 0, 0))
    assert pauses(history, [1.5], 3.0) == Pauses([1.5])
    assert pauses(History(), [1.5], 3.0) == Pauses([1.5]), "nobody, so nothing went through"


def test_pauses_of_no_events() -> None:
    assert (pauses(History(), [], 1.0).median_s, pauses(History(), [], 1.0).worst_s) == (0.0, 0.0)
