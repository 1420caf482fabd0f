"""The log, configurations along it, and what a leader knows of a follower: small parts, one by one."""

from __future__ import annotations

import pytest

from penstock.core.raft.configuration import Configuration, ConfigurationHistory
from penstock.core.raft.log import CommittedEntryLost, LogGap, RaftLog
from penstock.core.raft.messages import ENTRY_OVERHEAD_BYTES, Entry, EntryKind, Snapshot
from penstock.core.raft.progress import Progress, SendingPace
from penstock.core.raft.settings import RaftSettings

NOBODY = Configuration(())


def entries(*terms: int, first: int = 1) -> list[Entry]:
    return [Entry(first + position, term, EntryKind.DATA, b"x") for position, term in enumerate(terms)]


def log_of(*terms: int) -> RaftLog:
    return RaftLog(0, 0, entries(*terms))


# ---- the log


def test_terms_are_known_from_the_base_to_the_end() -> None:
    log = RaftLog(3, 2, entries(2, 4, first=4))
    assert [log.term_at(index) for index in range(2, 7)] == [None, 2, 2, 4, None]
    assert (log.last_index, log.last_term) == (5, 4)
    assert RaftLog(3, 2).last_term == 2


def test_what_follows_is_known_from_the_base_on() -> None:
    log = RaftLog(3, 2, entries(2, 4, first=4))
    assert [[entry.index for entry in log.after(index)] for index in range(1, 7)] == [[], [], [4, 5], [5], [], []]


def test_a_batch_has_at_least_one_entry() -> None:
    log = log_of(1, 1, 1)
    one = ENTRY_OVERHEAD_BYTES + 1
    assert [len(log.batch_from(1, size)) for size in (1, one, 2 * one, 100 * one)] == [1, 1, 2, 3]
    assert log.batch_from(4, 1000) == ()


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_at_most"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (9, 1, False), (1, 3, True)],
)
def test_the_later_term_wins_then_the_longer_log(last_index: int, last_term: int, is_at_most: bool) -> None:
    assert log_of(1, 2, 2).is_at_most(last_index, last_term) is is_at_most


def test_a_conflict_names_the_first_entry_of_its_term() -> None:
    log = log_of(1, 2, 2, 2, 3)
    assert log.conflict_at(4) == (2, 2)
    assert log.conflict_at(9) == (6, 0)
    log.commit_index = 2
    assert log.conflict_at(4) == (3, 2)


@pytest.mark.parametrize(
    ("leader", "conflict", "prev_index", "next_index"),
    [
        ((1, 1, 3, 3), (3, 0), 4, 3),  # the follower's log is too short
        ((1, 1, 3, 3), (2, 2), 4, 2),  # the leader does not know the term
        ((1, 1, 3, 3), (1, 1), 4, 3),  # it does: after its own last entry of it
        ((1, 2, 2, 2), (1, 1), 3, 2),
        ((2, 2, 2, 2), (1, 1), 4, 1),
    ],
)
def test_where_a_leader_tries_next(
    leader: tuple[int, ...], conflict: tuple[int, int], prev_index: int, next_index: int
) -> None:
    assert log_of(*leader).next_after_conflict(*conflict, prev_index) == next_index


def test_what_is_committed_is_never_truncated() -> None:
    log = log_of(1, 1, 1)
    log.commit_index = 2
    log.truncate_from(3)
    with pytest.raises(CommittedEntryLost):
        log.truncate_from(2)


def test_what_was_cut_off_does_not_become_stable() -> None:
    log = log_of(1)
    log.append(entries(1, 1, first=2))
    log.begin_write(1)
    log.truncate_from(3)
    log.append(entries(2, 2, first=3))
    log.begin_write(2)
    log.end_write(1)
    assert log.stable_index == 2
    log.end_write(2)
    assert log.stable_index == 4


def test_compaction_keeps_the_term_of_its_base() -> None:
    log = log_of(1, 2, 3)
    log.compact_to(2)
    log.compact_to(1)
    assert (log.base_index, log.base_term, log.last_index) == (2, 2, 3)
    assert log.first_difference(entries(1, 2, 3)) is None
    assert log.first_difference(entries(9, 9, 4)) == 2


# ---- recovery


def test_a_log_that_goes_through_the_snapshot_is_kept() -> None:
    log = RaftLog.recover(Snapshot(2, 1, NOBODY), entries(1, 1, 2))
    assert (log.base_index, log.last_index, log.commit_index, log.stable_index) == (1, 3, 2, 3)
    assert RaftLog.recover(Snapshot(2, 1, NOBODY), entries(2, first=3)).last_index == 3


@pytest.mark.parametrize("left", [entries(1, 1), entries(1, 1, 1, 1, 1, 1)])
def test_a_log_that_the_snapshot_was_about_to_replace_is_dropped(left: list[Entry]) -> None:
    log = RaftLog.recover(Snapshot(5, 3, NOBODY), left)
    assert (log.base_index, log.base_term, log.last_index) == (5, 3, 5)


def test_a_hole_behind_the_snapshot_is_an_error() -> None:
    with pytest.raises(LogGap):
        RaftLog.recover(Snapshot(5, 3, NOBODY), entries(3, first=7))


# ---- configurations


def test_a_configuration_survives_its_bytes() -> None:
    for configuration in (NOBODY, Configuration((3, 1)), Configuration((1, 2), (7, 5))):
        assert Configuration.decode(configuration.encode()) == configuration
    assert Configuration((3, 1)).voters == (1, 3)
    with pytest.raises(ValueError, match="listed twice"):
        Configuration((1, 2), (2,))


def test_majorities() -> None:
    four = Configuration((1, 2, 3, 4), (5,))
    assert four.majority == 3
    assert not four.is_majority({1, 2, 5})
    assert four.is_majority({1, 2, 3})
    assert four.quorum_value({1: 9, 2: 7, 3: 5, 5: 99}) == 5
    assert not NOBODY.is_majority({1})
    assert NOBODY.quorum_value({1: 3}) == 0


def test_history_goes_back_and_forgets() -> None:
    one, two, three = (Configuration(tuple(range(1, count + 1))) for count in (1, 2, 3))
    history = ConfigurationHistory(0, one)
    history.append(3, two)
    history.append(7, three)
    assert [history.at(index) for index in (0, 2, 3, 6, 7, 99)] == [one, one, two, two, three, three]
    assert not history.truncate_from(8)
    assert history.truncate_from(7)
    assert (history.latest, history.latest_index) == (two, 3)
    history.forget_before(5)
    assert history.at(5) == two


# ---- progress


def progress(**settings: int) -> Progress:
    return Progress(2, RaftSettings(**settings), next_index=5, now_ms=0)


def test_a_probe_waits_for_its_answer() -> None:
    known = progress()
    known.sent(tuple(entries(1, first=5)))
    assert not known.may_send
    known.accepted(5, base_index=0)
    assert (known.pace, known.match_index, known.next_index, known.may_send) == (SendingPace.REPLICATE, 5, 6, True)


def test_appends_in_flight_are_bounded_by_number() -> None:
    known = progress(max_inflight_messages=2)
    known.accepted(4, base_index=0)
    for index in (5, 6):
        assert known.may_send
        known.sent(tuple(entries(1, first=index)))
    assert not known.may_send
    known.accepted(5, base_index=0)
    assert known.may_send
    assert known.next_index == 7


def test_appends_in_flight_are_bounded_by_bytes() -> None:
    known = progress(max_inflight_bytes=2 * ENTRY_OVERHEAD_BYTES)
    known.accepted(4, base_index=0)
    known.sent(tuple(entries(1, 1, first=5)))
    assert not known.may_send
    known.accepted(6, base_index=0)
    assert known.may_send


def test_old_refusals_are_known() -> None:
    known = progress()
    assert known.is_stale_refusal(9)
    assert not known.is_stale_refusal(4)
    known.accepted(4, base_index=0)
    assert known.is_stale_refusal(4)
    assert not known.is_stale_refusal(6)
    known.probe_from(2)
    assert (known.pace, known.next_index) == (SendingPace.PROBE, 5)


def test_a_snapshot_ends_when_the_follower_has_it_or_the_log_reaches_it() -> None:
    for base_index, match_index in ((30, 20), (10, 12)):
        known = progress()
        known.begin_snapshot(Snapshot(20, 1, NOBODY))
        known.accepted(3, base_index)
        assert known.pace is SendingPace.SNAPSHOT
        known.accepted(match_index, base_index)
        assert (known.pace, known.next_index) == (SendingPace.REPLICATE, match_index + 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_ms": 1000},
        {"lost_leader_grace_ms": 1001},
        {"max_append_bytes": 0},
        {"catch_up_entries": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"heartbeat interval|grace|bound|entries"):
        RaftSettings(**wrong)
