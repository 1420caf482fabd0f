"""Elections: pre-vote, votes, and suspicion of a leader (paper, 5.2 and 5.4.1; dissertation, 9.6 and 6.4).

Three rules keep a cluster calm. A server begins a term only after a majority promised its vote in a pre-vote. A
server that hears its leader votes for no other server and does not adopt a newer term. A leader without answers
from a majority for an election timeout steps down (`replication.lead`). A fourth rule makes elections quick: after
a broken connection to the leader, the pre-vote begins after a short grace instead of the election timeout.
Votes are promises, so they leave after they are written. Vote requests too: a candidate that forgot its campaign,
and the end of its log, could otherwise be elected by votes for a log it no longer has.
"""

from __future__ import annotations

from penstock.core.raft import replication
from penstock.core.raft.configuration import NodeId
from penstock.core.raft.exchange import PeerLost, PersistDone, Tick
from penstock.core.raft.messages import PreVote, PreVoteResponse, RequestVote, TimeoutNow, VoteResponse
from penstock.core.raft.node import RaftNode
from penstock.core.raft.states import Move, Role


def check_leader(node: RaftNode, _: Tick) -> None:
    if node.election_deadline_ms is None or node.now_ms < node.election_deadline_ms:
        return
    if node.may_campaign:
        begin_pre_vote(node)
    else:  # an observer cannot campaign: it waits for a leader
        node.move(Move.FOLLOW, leader=None)
        node.election_deadline_ms = None


def doubt_leader(node: RaftNode, lost: PeerLost) -> None:
    if lost.peer != node.leader or node.election_deadline_ms is None:
        return
    node.is_leader_lost = True
    grace_ms = node.settings.lost_leader_grace_ms
    suspected_ms = node.now_ms + grace_ms + node.random.randrange(grace_ms // 2 + 1)
    node.election_deadline_ms = min(node.election_deadline_ms, suspected_ms)


# ---- requests


def begin_pre_vote(node: RaftNode) -> None:
    node.move(Move.SUSPECT, leader=None)
    node.restart_retry_timer()
    node.attempts += 1
    for peer in _other_voters(node):
        ask = PreVote(node.node_id, peer, node.term + 1, node.log.last_index, node.log.last_term)
        node.outcome.send_now.append(ask)
    _count_pre_vote_of(node, node.node_id)


def campaign(node: RaftNode, *, is_transfer: bool = False) -> None:
    node.move(Move.CAMPAIGN, leader=None)
    node.enter_term(node.term + 1, voted_for=node.node_id)
    node.ballot_generation = node.generation + 1
    node.restart_retry_timer()
    for peer in _other_voters(node):
        ask = RequestVote(node.node_id, peer, node.term, node.log.last_index, node.log.last_term, is_transfer)
        node.outcome.send_after_persist.append(ask)


def campaign_now(node: RaftNode, order: TimeoutNow) -> None:
    if node.is_voter and node.may_campaign:
        campaign(node, is_transfer=True)


def _other_voters(node: RaftNode) -> list[NodeId]:
    return [voter for voter in node.configuration.voters if voter != node.node_id]


# ---- answers


def weigh_pre_vote(node: RaftNode, ask: PreVote) -> None:
    is_protected = node.protects_leader_from(ask.sender)
    granted = ask.term > node.term and not is_protected and _may_win(node, ask)
    term = ask.term if granted else node.term
    node.outcome.send_now.append(PreVoteResponse(node.node_id, ask.sender, term, granted))


def request_vote(node: RaftNode, ask: RequestVote) -> None:
    """Vote once per term, for a candidate whose log is at least as up to date."""
    granted = is_vote_free(node, ask.sender) and _may_win(node, ask)
    if granted:
        if node.voted_for is None:
            node.vote_for(ask.sender)
        node.restart_election_timer()
    answer_vote(node, ask, granted)


def _may_win(node: RaftNode, ask: PreVote | RequestVote) -> bool:
    return node.may_vote_for(ask.last_index) and node.log.is_at_most(ask.last_index, ask.last_term)


def is_vote_free(node: RaftNode, candidate: NodeId) -> bool:
    """If the term already has a leader, refuse."""
    return node.voted_for == candidate or (node.voted_for is None and node.leader is None)


def answer_vote(node: RaftNode, ask: RequestVote, granted: bool) -> None:
    node.outcome.send_after_persist.append(VoteResponse(node.node_id, ask.sender, node.term, granted))


# ---- counting


def count_pre_vote(node: RaftNode, answer: PreVoteResponse) -> None:
    if answer.granted and answer.term == node.term + 1:
        _count_pre_vote_of(node, answer.sender)


def _count_pre_vote_of(node: RaftNode, voter: NodeId) -> None:
    node.ballots.add(voter)
    if node.configuration.is_majority(node.ballots):
        campaign(node)


def count_vote(node: RaftNode, answer: VoteResponse) -> None:
    if answer.granted:
        _count_vote_of(node, answer.sender)


def count_own_vote(node: RaftNode, done: PersistDone) -> None:
    node.log.end_write(done.generation)
    if done.generation >= node.ballot_generation:
        _count_vote_of(node, node.node_id)


def _count_vote_of(node: RaftNode, voter: NodeId) -> None:
    node.ballots.add(voter)
    if node.configuration.is_majority(node.ballots):
        node.move(Move.WIN, leader=node.node_id)
        assert node.role is Role.LEADER
        replication.begin_term(node)
