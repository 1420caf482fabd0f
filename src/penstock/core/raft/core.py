"""The entry point: `core.step(fact, now_ms) -> Outcome`.

A step checks terms, looks up the reaction in the table (`states.REACTIONS`) and calls the rule. Then it adds
what follows every step: a leader sends what it can, writes get a number, the next deadline is set. The rules
are in `election`, `replication`, `snapshots`, `membership` and `transfer`; the state is `node.RaftNode`.
Nothing here awaits, opens, sleeps, reads a clock or rolls dice: time and randomness are arguments. A step that
raises may have changed memory; the caller must create a new core from what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.core.raft import election, membership, replication, snapshots, transfer
from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import (
    ChangeMembership,
    Input,
    Outcome,
    Propose,
    Received,
    Refusal,
    Stored,
    TransferLeadership,
)
from penstock.core.raft.messages import (
    AppendEntries,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteResponse,
    RequestVote,
)
from penstock.core.raft.node import RaftNode
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import Move, Reaction, Role, reaction_of
from penstock.core.raft.terms import is_plausible
from penstock.ports.clock import Chance


class Replica(NamedTuple):
    """A member of the cluster as the leader sees it."""

    node: NodeId
    is_voter: bool
    match_index: int
    heard_ms: int
    caught_up_ms: int


class Status(NamedTuple):
    role: Role
    term: int
    leader: NodeId | None
    commit_index: int
    last_index: int
    configuration: Configuration
    replicas: tuple[Replica, ...]
    """Empty unless this server leads."""


class RaftCore:
    """One server. `configuration` applies until the log or a snapshot has one.

    A server that will join later starts with `Configuration(())` and waits until a leader adds it.
    """

    def __init__(
        self,
        node_id: NodeId,
        configuration: Configuration,
        settings: RaftSettings,
        random: Chance,
        stored: Stored | None = None,
    ) -> None:
        self._stored: Stored | None = stored or Stored()
        """The stored state, until the first step."""
        self.node = RaftNode(node_id, configuration, settings, random, self._stored)

    # ---- queries

    def get_leader(self) -> NodeId | None:
        return self.node.leader

    @property
    def status(self) -> Status:
        node = self.node
        return Status(
            *node.leadership, node.log.commit_index, node.log.last_index, node.configuration, self._replicas()
        )

    def _replicas(self) -> tuple[Replica, ...]:
        node = self.node
        if node.role is not Role.LEADER:
            return ()
        own = Replica(node.node_id, node.is_voter, node.log.last_index, node.now_ms, node.now_ms)
        others = (
            Replica(peer, peer in node.configuration.voters, known.match_index, known.heard_ms, known.caught_up_ms)
            for peer, known in node.followers.items()
        )
        return (own, *others)

    # ---- steps

    def request_vote(self, request: RequestVote, now_ms: int) -> Outcome:
        return self.step(Received(request), now_ms)

    def append_entries(self, request: AppendEntries, now_ms: int) -> Outcome:
        return self.step(Received(request), now_ms)

    def step(self, fact: Input, now_ms: int) -> Outcome:
        """One fact in, intentions out. Time never runs backwards."""
        node = self.node
        node.now_ms = max(node.now_ms, now_ms)
        node.outcome = Outcome()
        leadership = node.leadership
        if self._stored is not None:
            node.cut_leftovers(self._stored)
            node.await_leader()
            self._stored = None
        if isinstance(fact, Received):
            self._receive(fact.message)
        else:
            _RULES[reaction_of(node.role, fact.kind)](node, fact)
        if node.role is Role.LEADER:
            replication.replicate(node)
        return self._finished(node.outcome, node.leadership != leadership)

    def _finished(self, outcome: Outcome, has_leadership_changed: bool) -> Outcome:
        node = self.node
        if outcome.has_writes:
            node.generation += 1
            node.log.begin_write(node.generation)
        outcome.generation = node.generation
        if has_leadership_changed:
            outcome.leadership = node.leadership
        outcome.next_deadline_ms = self._next_deadline_ms()
        return outcome

    def _next_deadline_ms(self) -> int | None:
        node = self.node
        if node.role is not Role.LEADER:
            return node.election_deadline_ms
        if not node.followers:
            return None
        deadline_ms = min(node.heartbeat_deadline_ms, replication.quorum_deadline_ms(node))
        return deadline_ms if node.transfer_to is None else min(deadline_ms, node.transfer_deadline_ms)

    # ---- terms

    def _receive(self, message: Message) -> None:
        node = self.node
        if message.recipient != node.node_id:
            raise ValueError(f"node {node.node_id} received a message for node {message.recipient}")
        if not is_plausible(message.term, node.term):
            node.outcome.implausible = message
            return
        if message.term > node.term and not _speaks_of_the_future(message):
            if (
                isinstance(message, RequestVote)
                and node.protects_leader_from(message.sender)
                and not message.is_transfer
            ):
                return  # an isolated server must not unseat a leader that other servers hear
            self._enter_newer_term(message.term)
        if message.term < node.term and not isinstance(message, PreVote):
            self._answer_from_the_past(message)
            return
        _RULES[reaction_of(node.role, message.kind)](node, message)

    def _enter_newer_term(self, term: int) -> None:
        node = self.node
        if node.role is Role.LEADER or (node.is_voter and node.election_deadline_ms is None):
            node.restart_election_timer()  # also for a single voter whose pending own vote is void now
        node.enter_term(term, voted_for=None)
        node.move(Move.FOLLOW, leader=None)

    def _answer_from_the_past(self, message: Message) -> None:
        """Refuse old requests with the current term, so that the sender adopts it. Drop old answers."""
        if isinstance(message, AppendEntries):
            replication.refuse_stale_append(self.node, message)
        elif isinstance(message, InstallSnapshot):
            snapshots.refuse_stale_chunk(self.node, message)
        elif isinstance(message, RequestVote):
            election.answer_vote(self.node, message, granted=False)


def _speaks_of_the_future(message: Message) -> bool:
    """The message is about a term that has not begun: it changes no server's term."""
    return isinstance(message, PreVote) or (isinstance(message, PreVoteResponse) and message.granted)


# ---- reactions


def _ignore(_: RaftNode, __: object) -> None:
    pass


def _refuse(node: RaftNode, fact: Propose | ChangeMembership | TransferLeadership) -> None:
    if isinstance(fact, Propose):
        for proposal in fact.proposals:
            node.refuse(proposal.token, Refusal.NOT_LEADER)
    else:
        node.refuse(fact.token, Refusal.NOT_LEADER)


_RULES: Final[dict[Reaction, Callable[[RaftNode, Any], None]]] = {
    Reaction.IGNORE: _ignore,
    Reaction.REFUSE: _refuse,
    Reaction.CHECK_LEADER: election.check_leader,
    Reaction.LEAD: replication.lead,
    Reaction.APPEND_OWN: replication.propose,
    Reaction.NOTE_STABLE: replication.note_stable,
    Reaction.COUNT_OWN_VOTE: election.count_own_vote,
    Reaction.COUNT_OWN_LOG: replication.count_own_log,
    Reaction.COMPACT: snapshots.compact,
    Reaction.DOUBT_LEADER: election.doubt_leader,
    Reaction.PROBE_LATER: replication.probe_later,
    Reaction.PROBE_NOW: replication.probe_now,
    Reaction.CHANGE: membership.change_membership,
    Reaction.TRANSFER: transfer.transfer_leadership,
    Reaction.WEIGH_PRE_VOTE: election.weigh_pre_vote,
    Reaction.COUNT_PRE_VOTE: election.count_pre_vote,
    Reaction.WEIGH_VOTE: election.request_vote,
    Reaction.COUNT_VOTE: election.count_vote,
    Reaction.FOLLOW_AND_APPEND: replication.append_entries,
    Reaction.COUNT_APPEND: replication.append_response,
    Reaction.FOLLOW_AND_INSTALL: snapshots.install_snapshot,
    Reaction.CONTINUE: snapshots.continue_snapshot,
    Reaction.CAMPAIGN_NOW: election.campaign_now,
}
