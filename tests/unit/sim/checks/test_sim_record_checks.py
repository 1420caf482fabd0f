"""The judges of records and groups see what they are there for, and let the rest pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.sim.checks.groups import check_groups
from penstock.sim.checks.records import check_reads, check_records
from penstock.sim.judges.history import Assigned, History, OffsetRead, Outcome, Place, Violation

PLACE = Place("data", 0)


class Time:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def history() -> History:
    return History(Time())


def write(
    history: History, number: int, outcome: Outcome, offset: int = -1, *, lane: str = "p", acks: int = -1
) -> bytes:
    record = history.begin_write(PLACE, lane, number, acks, is_idempotent=acks == -1)
    history.end_write(record, outcome, offset)
    return record.value


def test_a_good_history_passes(history: History) -> None:
    values = [write(history, n, Outcome.ACKNOWLEDGED, n) for n in range(3)]
    values.append(write(history, 3, Outcome.UNKNOWN))
    write(history, 4, Outcome.UNKNOWN)
    history.saw(PLACE, 1, values[1], "r", 1, 0)
    check_records(history, {PLACE: values})


def lost(history: History) -> list[bytes]:
    first = write(history, 0, Outcome.ACKNOWLEDGED, 0)
    write(history, 1, Outcome.ACKNOWLEDGED, 1)
    return [first]


def moved(history: History) -> list[bytes]:
    other = write(history, 0, Outcome.UNKNOWN, lane="q")
    return [other, write(history, 0, Outcome.ACKNOWLEDGED, 0)]


def doubled(history: History) -> list[bytes]:
    return [write(history, 0, Outcome.ACKNOWLEDGED, 0)] * 2


def reordered(history: History) -> list[bytes]:
    values = [write(history, n, Outcome.ACKNOWLEDGED, 1 - n, acks=1) for n in range(2)]
    return values[::-1]


def gap(history: History) -> list[bytes]:
    write(history, 0, Outcome.UNKNOWN)
    return [write(history, 1, Outcome.ACKNOWLEDGED, 0)]


def made_up(history: History) -> list[bytes]:
    return [b"nobody/0"]


def refused(history: History) -> list[bytes]:
    return [write(history, 0, Outcome.REFUSED, acks=1)]


def read_and_gone(history: History) -> list[bytes]:
    history.saw(PLACE, 0, write(history, 0, Outcome.UNKNOWN), "r", 1, 0)
    return []


@pytest.mark.parametrize(
    ("story", "what"),
    [
        (lost, "acknowledged records are kept"),
        (moved, "acknowledged records are kept"),
        (doubled, "no record appears twice"),
        (reordered, "a lane stays in order"),
        (gap, "an idempotent lane has no gaps"),
        (made_up, "every record was written"),
        (refused, "refused records are not stored"),
        (read_and_gone, "records that were read are kept"),
    ],
)
def test_a_broken_promise_is_named(history: History, story: Callable[[History], list[bytes]], what: str) -> None:
    final = {PLACE: story(history)}
    with pytest.raises(Violation) as raised:
        check_records(history, final)
    assert raised.value.what == what


def test_acks_1_may_be_lost(history: History) -> None:
    write(history, 0, Outcome.ACKNOWLEDGED, 0, acks=1)
    check_records(history, {PLACE: []})


def test_a_late_write_without_idempotence_may_come_after_others(history: History) -> None:
    late = write(history, 0, Outcome.UNKNOWN, acks=1)
    check_records(history, {PLACE: [write(history, 1, Outcome.ACKNOWLEDGED, 0, acks=1), late]})


def test_two_readers_must_agree_at_once(history: History) -> None:
    history.saw(PLACE, 7, b"a", "r0", 1, 0)
    history.saw(PLACE, 7, b"a", "r1", 2, 1)
    with pytest.raises(Violation, match="a read is stable"):
        history.saw(PLACE, 7, b"b", "r1", 2, 1)


# -- groups -----------------------------------------------------------------------------


def commit(history: History, offset: int, outcome: Outcome) -> None:
    history.end_commit(history.begin_commit("g", PLACE, offset, "m", 1), outcome)


def read(history: History, offset: int) -> None:
    begun_s = history.time()
    history.offset_reads.append(OffsetRead("g", PLACE, offset, begun_s, history.time()))


def test_the_last_acknowledged_commit_or_an_unknown_one_is_read(history: History) -> None:
    read(history, -1)
    commit(history, 3, Outcome.ACKNOWLEDGED)
    read(history, 3)
    commit(history, 5, Outcome.UNKNOWN)
    read(history, 3)
    read(history, 5)
    check_groups(history)


def test_a_commit_under_way_may_be_seen_or_not(history: History) -> None:
    commit(history, 3, Outcome.ACKNOWLEDGED)
    open_commit = history.begin_commit("g", PLACE, 4, "m", 1)
    read(history, 4)
    read(history, 3)
    history.end_commit(open_commit, Outcome.ACKNOWLEDGED)
    check_groups(history)


@pytest.mark.parametrize("offset", [-1, 3, 7])
def test_a_commit_that_is_gone_is_seen(history: History, offset: int) -> None:
    commit(history, 3, Outcome.ACKNOWLEDGED)
    commit(history, 5, Outcome.ACKNOWLEDGED)
    read(history, offset)
    with pytest.raises(Violation, match="committed offsets are kept"):
        check_groups(history)


def test_a_refused_commit_must_not_show(history: History) -> None:
    commit(history, 3, Outcome.REFUSED)
    read(history, 3)
    with pytest.raises(Violation, match="3 was never committed"):
        check_groups(history)


def test_a_partition_has_one_owner_in_a_generation(history: History) -> None:
    history.assigned += [Assigned("g", 1, "a", (PLACE,)), Assigned("g", 2, "b", (PLACE,))]
    check_groups(history)
    history.assigned.append(Assigned("g", 2, "a", (PLACE,)))
    with pytest.raises(Violation, match="a partition has one owner"):
        check_groups(history)


def test_what_a_leader_alone_acknowledged_may_be_lost_and_not_be_elsewhere(history: History) -> None:
    first = write(history, 0, Outcome.ACKNOWLEDGED, 0, acks=1)
    write(history, 1, Outcome.ACKNOWLEDGED, 1, acks=1)
    third = write(history, 2, Outcome.ACKNOWLEDGED, 2, acks=1)
    check_records(history, {PLACE: [first]})
    with pytest.raises(Violation, match="acknowledged records are at their offset"):
        check_records(history, {PLACE: [first, third]})


def test_what_a_leader_alone_acknowledged_is_kept_where_it_led_all_the_time(history: History) -> None:
    first = write(history, 0, Outcome.ACKNOWLEDGED, 0, acks=1)
    write(history, 1, Outcome.ACKNOWLEDGED, 1, acks=1)
    check_records(history, {PLACE: [first]}, [Place("data", 1)])
    with pytest.raises(Violation, match="acknowledged records are kept"):
        check_records(history, {PLACE: [first]}, [PLACE])


def test_what_was_read_of_a_topic_that_is_gone_was_written_to_it() -> None:
    history = History(lambda: 0.0)
    first, second = Place("t#0", 0), Place("t#1", 0)
    write = history.begin_write(first, "lane", 0, -1, is_idempotent=True)
    history.saw(first, 0, write.value, "r", 1, 0)
    check_reads(history, first)
    history.end_write(write, Outcome.ACKNOWLEDGED, 1)
    with pytest.raises(Violation, match="at their offset"):
        check_reads(history, first)
    history.saw(second, 0, write.value, "r", 1, 0)
    with pytest.raises(Violation, match="every record was written"):
        check_reads(history, second)
