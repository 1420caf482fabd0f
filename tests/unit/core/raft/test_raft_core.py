"""Promises of a core to its driver: order of writes and messages, deadlines, bounds, answers to tokens."""

from __future__ import annotations

from random import Random

from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import RaftCore
from penstock.core.raft.exchange import (
    HardState,
    PeerBack,
    PeerLost,
    PersistDone,
    Proposal,
    Propose,
    Received,
    Refusal,
    SnapshotReady,
    Stored,
    Tick,
)
from penstock.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    PreVote,
    PreVoteResponse,
    RequestVote,
    Snapshot,
    VoteResponse,
)
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import Role

VOTERS = Configuration((1, 2, 3))


def server(
    settings: RaftSettings | None = None, stored: Stored | None = None, voters: Configuration = VOTERS
) -> RaftCore:
    core = RaftCore(1, voters, settings or RaftSettings(), Random(1), stored)
    core.step(Tick(), 0)
    return core


def leader(settings: RaftSettings | None = None) -> RaftCore:
    """Of term 1, at 2000 ms; its no-op is stable with it and with 2."""
    core = server(settings)
    core.step(Tick(), 2000)
    core.step(Received(PreVoteResponse(2, 1, 1, True)), 2000)
    core.step(PersistDone(1), 2000)
    core.step(Received(VoteResponse(2, 1, 1, True)), 2000)
    core.step(PersistDone(2), 2000)
    core.step(Received(AppendResponse(2, 1, 1, True, 0, match_index=1)), 2000)
    assert core.status.commit_index == 1
    return core


def appended(*terms: int, prev: tuple[int, int] = (0, 0), term: int = 1, commit: int = 0) -> AppendEntries:
    entries = tuple(Entry(prev[0] + 1 + place, each, EntryKind.DATA, b"x") for place, each in enumerate(terms))
    return AppendEntries(2, 1, term, *prev, entries, commit)


# ---- one voter


def test_a_single_voter_leads_as_soon_as_its_disk_allows() -> None:
    core = RaftCore(1, Configuration((1,)), RaftSettings(), Random(1))
    first = core.step(Tick(), 0)
    assert first.hard_state == HardState(1, 1)
    assert core.get_leader() is None
    won = core.step(PersistDone(first.generation), 1)
    assert core.get_leader() == 1
    assert [entry.kind for entry in won.append] == [EntryKind.NO_OP]
    assert won.next_deadline_ms is None
    assert core.step(PersistDone(won.generation), 2).committed == won.append


def test_a_single_voter_that_hears_of_a_newer_term_while_it_waits_for_its_vote_campaigns_again() -> None:
    core = RaftCore(1, Configuration((1,), (2, 3)), RaftSettings(), Random(1))
    core.step(PersistDone(core.step(Tick(), 0).generation), 1)
    assert core.get_leader() == 1
    core.step(Received(AppendResponse(2, 1, 3, False, 0)), 2)
    campaign = core.step(Tick(), 2)
    assert (core.node.role, core.node.term, campaign.next_deadline_ms) == (Role.CANDIDATE, 4, None)
    deposed = core.step(Received(AppendResponse(3, 1, 5, False, 0)), 3)
    assert (core.node.role, core.node.term, deposed.next_deadline_ms) == (Role.FOLLOWER, 5, 3)
    again = core.step(Tick(), 4)
    core.step(PersistDone(campaign.generation), 5)
    assert core.get_leader() is None, "that vote was for an earlier term"
    core.step(PersistDone(again.generation), 6)
    assert (core.get_leader(), core.node.term) == (1, 6)


# ---- order


def test_votes_and_their_requests_wait_for_the_disk() -> None:
    core = server()
    core.step(Tick(), 2000)
    campaign = core.step(Received(PreVoteResponse(2, 1, 1, True)), 2000)
    assert campaign.hard_state == HardState(1, 1)
    assert not campaign.send_now
    assert {type(message) for message in campaign.send_after_persist} == {RequestVote}

    voter = server()
    vote = voter.request_vote(RequestVote(2, 1, 1, 0, 0), 10)
    assert vote.hard_state == HardState(1, 2)
    assert vote.send_after_persist == [VoteResponse(1, 2, 1, True)]
    second = voter.request_vote(RequestVote(3, 1, 1, 0, 0), 11)
    assert second.send_after_persist == [VoteResponse(1, 3, 1, False)]


def test_acknowledgements_wait_for_the_disk_and_refusals_do_not() -> None:
    core = server()
    accepted = core.append_entries(appended(1, 1), 10)
    assert [entry.index for entry in accepted.append] == [1, 2]
    assert not accepted.send_now
    assert accepted.send_after_persist == [AppendResponse(1, 2, 1, True, 0, match_index=2)]
    again = core.append_entries(appended(1, 1), 11)
    assert not again.has_writes
    assert again.generation == accepted.generation  # the same write covers it
    refused = core.append_entries(appended(1, prev=(7, 1)), 12)
    assert refused.send_now == [AppendResponse(1, 2, 1, False, 7, conflict_index=3)]
    assert not refused.send_after_persist


def test_a_leader_counts_its_own_log_when_it_is_stable() -> None:
    core = leader()
    proposed = core.step(Propose((Proposal(7, b"x"),)), 2001)
    assert [(each.token, each.index, each.term) for each in proposed.accepted] == [(7, 2, 1)]
    assert any(isinstance(message, AppendEntries) for message in proposed.send_now)
    assert not core.step(Received(AppendResponse(2, 1, 1, True, 1, match_index=2)), 2002).committed
    assert core.step(PersistDone(proposed.generation), 2003).committed == proposed.append


def test_an_old_message_does_not_shorten_the_log() -> None:
    core = server()
    core.append_entries(appended(1, 1, 1), 10)
    assert not core.append_entries(appended(1), 11).has_writes
    assert core.status.last_index == 3


def test_a_conflict_ends_the_log() -> None:
    core = server()
    core.append_entries(appended(1, 1, 1), 10)
    outcome = core.append_entries(appended(2, prev=(1, 1), term=2), 20)
    assert outcome.truncate_from == 2
    assert [(entry.index, entry.term) for entry in outcome.append] == [(2, 2)]


def test_commits_do_not_go_beyond_what_matches() -> None:
    core = server()
    core.append_entries(appended(1, 1, 1), 10)
    outcome = core.append_entries(appended(prev=(1, 1), commit=3), 11)
    assert [entry.index for entry in outcome.committed] == [1]


# ---- time


def test_a_lost_leader_is_suspected_after_the_grace() -> None:
    settings = RaftSettings(lost_leader_grace_ms=300)
    core = server(settings)
    before = core.append_entries(appended(1), 100).next_deadline_ms
    lost = core.step(PeerLost(2), 110).next_deadline_ms
    assert before is not None
    assert before >= 1100
    assert lost is not None
    assert 410 <= lost <= 560
    assert core.step(PeerLost(3), 120).next_deadline_ms == lost
    assert core.step(PeerBack(2), 200).next_deadline_ms == lost, "its process may be another one"
    heard = core.append_entries(appended(prev=(1, 1)), 210).next_deadline_ms
    assert heard is not None
    assert heard >= 1210


def test_a_leader_that_asks_for_votes_is_not_protected_from_itself() -> None:
    core = server()
    core.append_entries(appended(1), 100)
    assert core.step(Received(PreVote(3, 1, 2, 1, 1)), 200).send_now == [PreVoteResponse(1, 3, 1, False)]
    assert core.step(Received(PreVote(2, 1, 2, 1, 1)), 200).send_now == [PreVoteResponse(1, 2, 2, True)]
    assert core.request_vote(RequestVote(2, 1, 2, 1, 1), 220).send_after_persist == [VoteResponse(1, 2, 2, True)]


def test_a_lost_leader_protects_nobody() -> None:
    core = server()
    core.append_entries(appended(1), 100)
    ask = RequestVote(3, 1, 2, 1, 1)
    assert not core.request_vote(ask, 200).send_after_persist
    assert core.status.term == 1
    core.step(PeerLost(2), 210)
    assert core.request_vote(ask, 220).send_after_persist == [VoteResponse(1, 3, 2, True)]


def test_a_leader_without_a_majority_steps_down_after_an_election_timeout() -> None:
    core = leader()
    core.step(Tick(), 2999)
    assert core.status.role is Role.LEADER
    outcome = core.step(Tick(), 3000)
    assert outcome.leadership == (Role.FOLLOWER, 1, None)
    (refused,) = core.step(Propose((Proposal(1, b"x"),)), 3001).refused
    assert refused.refusal is Refusal.NOT_LEADER


def test_time_does_not_run_backwards() -> None:
    core = leader()
    core.step(Tick(), 10)
    assert core.node.now_ms == 2000


# ---- bounds


def test_proposals_beyond_the_bound_are_refused() -> None:
    core = leader(RaftSettings(max_uncommitted_bytes=50))
    outcome = core.step(Propose(tuple(Proposal(token, b"x" * 30) for token in range(3))), 2001)
    assert [each.token for each in outcome.accepted] == [0]
    assert [(each.token, each.refusal) for each in outcome.refused] == [
        (1, Refusal.TOO_MUCH_UNCOMMITTED),
        (2, Refusal.TOO_MUCH_UNCOMMITTED),
    ]
    core.step(PersistDone(outcome.generation), 2002)
    core.step(Received(AppendResponse(2, 1, 1, True, 1, match_index=2)), 2003)
    assert core.step(Propose((Proposal(9, b"y"),)), 2004).accepted


def test_a_follower_is_sent_no_more_than_the_bound() -> None:
    core = leader(RaftSettings(max_append_bytes=1, max_inflight_messages=2))
    outcome = core.step(Propose(tuple(Proposal(token, b"x") for token in range(5))), 2001)
    sent = [message for message in outcome.send_now if isinstance(message, AppendEntries) and message.recipient == 2]
    assert [message.entries[0].index for message in sent] == [2, 3]


# ---- snapshots and restarts


def test_a_snapshot_of_what_is_not_committed_is_ignored() -> None:
    core = leader()
    assert core.step(SnapshotReady(2, b"future"), 2001).snapshot_to_store is None
    taken = core.step(SnapshotReady(1, b"state"), 2002)
    assert taken.snapshot_to_store == Snapshot(1, 1, VOTERS, b"state")
    assert core.step(SnapshotReady(1, b"again"), 2003).snapshot_to_store is None


def test_a_restart_goes_on_from_what_is_stored() -> None:
    new = Configuration((1, 2))
    entries = (Entry(5, 2, EntryKind.DATA, b"x"), Entry(6, 3, EntryKind.CONFIGURATION, new.encode()))
    core = server(stored=Stored(HardState(4, 2), Snapshot(4, 2, VOTERS, b"state"), entries))
    assert core.status[:6] == (Role.FOLLOWER, 4, None, 4, 6, new)
    vote = core.request_vote(RequestVote(3, 1, 4, 9, 9), 10)
    assert vote.send_after_persist == [VoteResponse(1, 3, 4, False)]


def test_leftovers_of_a_replaced_log_are_truncated_again() -> None:
    old = tuple(Entry(index, 1, EntryKind.DATA) for index in (1, 2, 3))
    core = RaftCore(1, VOTERS, RaftSettings(), Random(1), Stored(HardState(4, None), Snapshot(9, 3, VOTERS, b"s"), old))
    assert core.step(Tick(), 0).truncate_from == 1
    assert core.step(Tick(), 1).truncate_from is None


def test_chunks_in_any_order_make_the_snapshot_once() -> None:
    core = server()
    pieces = [InstallSnapshot(2, 1, 1, 9, 1, VOTERS, at, b"abcd"[at : at + 2], at == 2) for at in (0, 2)]
    assert core.step(Received(pieces[1]), 10).restore is None
    assert core.step(Received(pieces[0]), 11).restore is None
    assert core.step(Received(pieces[0]), 12).restore is None
    done = core.step(Received(pieces[1]), 13)
    assert done.restore == done.snapshot_to_store == Snapshot(9, 1, VOTERS, b"abcd")
    assert done.truncate_from == 1
    assert done.send_after_persist == [AppendResponse(1, 2, 1, True, 9, match_index=9)]
    assert core.step(Received(pieces[1]), 14).restore is None


def test_the_status_of_a_leader_has_its_replicas() -> None:
    core = leader()
    assert [(each.node, each.is_voter, each.match_index) for each in core.status.replicas] == [
        (1, True, 1),
        (2, True, 1),
        (3, True, 0),
    ]
    assert server().status.replicas == ()


def test_a_split_vote_is_tried_again_soon_and_later_each_time() -> None:
    settings = RaftSettings(election_timeout_ms=1000, election_retry_ms=100)
    core = server(settings)
    now_ms, pauses = 2000, []
    for _ in range(8):
        outcome = core.step(Tick(), now_ms)
        assert outcome.next_deadline_ms is not None
        pauses.append(outcome.next_deadline_ms - now_ms)
        now_ms = outcome.next_deadline_ms
    bounds = [(100, 300), (200, 600), (400, 1200), (800, 1800), *[(1000, 2000)] * 4]
    assert all(low <= pause < high for pause, (low, high) in zip(pauses, bounds, strict=True)), pauses
    core.step(Received(AppendEntries(2, 1, 1, 0, 0, (), 0)), now_ms)
    again = core.step(Tick(), now_ms + 2000)
    assert again.next_deadline_ms is not None
    assert again.next_deadline_ms - (now_ms + 2000) < 300


def test_a_server_that_starts_asks_sooner_than_one_whose_leader_is_silent() -> None:
    core = RaftCore(1, VOTERS, RaftSettings(election_timeout_ms=1000, lost_leader_grace_ms=300), Random(1))
    outcome = core.step(Tick(), 0)
    assert outcome.next_deadline_ms is not None
    assert 300 <= outcome.next_deadline_ms <= 600


# ---- a voter whose disk began empty


def new_voter() -> RaftCore:
    return server(stored=Stored(HardState(is_new=True)))


def test_a_new_voter_takes_part_where_all_begin() -> None:
    core = new_voter()
    assert core.step(Received(PreVote(2, 1, 1, 0, 0)), 1).send_now == [PreVoteResponse(1, 2, 1, True)]
    outcome = core.step(Received(RequestVote(2, 1, 1, 0, 0)), 1)
    assert outcome.hard_state == HardState(1, 2), "it has a history from here on"
    assert outcome.send_after_persist == [VoteResponse(1, 2, 1, True)]


def test_a_new_voter_does_not_vote_for_one_that_has_a_history() -> None:
    core = new_voter()
    assert core.step(Received(PreVote(2, 1, 5, 9, 4)), 1).send_now == [PreVoteResponse(1, 2, 0, False)]
    for is_transfer in (False, True):
        outcome = core.step(Received(RequestVote(2, 1, 5 + is_transfer, 9, 4, is_transfer)), 1)
        assert outcome.hard_state == HardState(5 + is_transfer, None, True)
        assert outcome.send_after_persist == [VoteResponse(1, 2, 5 + is_transfer, False)]


def test_a_new_voter_is_one_like_others_when_what_is_committed_is_on_its_disk() -> None:
    core = new_voter()
    core.step(Received(RequestVote(3, 1, 2, 2, 1)), 1)
    core.step(Received(appended(1, 1, term=2, commit=2)), 2)
    core.step(PersistDone(2), 3)
    assert core.node.is_new, "the leader has committed nothing of its own term: more may be committed than it says"
    outcome = core.step(Received(appended(2, prev=(2, 1), term=2, commit=3)), 4)
    assert outcome.hard_state is None
    assert core.node.is_new, "it is not on the disk yet"
    core.step(PersistDone(outcome.generation), 5)
    outcome = core.step(Received(appended(prev=(3, 2), term=2, commit=3)), 6)
    assert outcome.hard_state == HardState(2)
    core.step(PersistDone(outcome.generation), 7)
    core.step(PeerLost(2), 8)
    assert core.step(Received(RequestVote(3, 1, 3, 3, 2)), 2000).send_after_persist == [VoteResponse(1, 3, 3, True)]


def test_a_new_voter_does_not_campaign_with_a_part_of_what_is_committed() -> None:
    core = new_voter()
    core.step(Received(appended(1, term=1)), 1)
    core.step(PersistDone(1), 2)
    for now_ms in range(1000, 20_000, 500):
        assert not core.step(Tick(), now_ms).send_now
    assert core.status.role is Role.FOLLOWER
