"""The state of one server, as in the paper's Figure 2, and the operations that change it.

Everything that must reach the disk goes through here, so that memory and `Outcome` agree. The rules of
elections, replication, snapshots and membership are in their own modules and take a `RaftNode`. Time (`now_ms`)
and randomness (`random`) are arguments.
"""

from __future__ import annotations

from penstock.core.raft.configuration import Configuration, ConfigurationHistory, NodeId
from penstock.core.raft.exchange import HardState, Leadership, Outcome, Refusal, Refused, Stored, Token
from penstock.core.raft.log import RaftLog, continues
from penstock.core.raft.messages import Entry, EntryKind, Snapshot
from penstock.core.raft.progress import Progress
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import ImpossibleMessage, Move, Role, moved
from penstock.core.raft.terms import LAST_TERM
from penstock.ports.clock import Chance


class RaftNode:
    def __init__(
        self, node_id: NodeId, configuration: Configuration, settings: RaftSettings, random: Chance, stored: Stored
    ) -> None:
        self.node_id = node_id
        self.settings = settings
        self.random = random
        self.now_ms = 0
        self.outcome = Outcome()

        # Persistent on all servers.
        self.term = stored.hard_state.term
        self.voted_for = stored.hard_state.voted_for
        self.is_new = stored.hard_state.is_new
        self.snapshot = stored.snapshot or Snapshot(0, 0, configuration)
        self.log = RaftLog.recover(self.snapshot, stored.entries)
        self.configurations = ConfigurationHistory(self.snapshot.index, self.snapshot.configuration)
        self._learn(self.log.between(self.snapshot.index + 1, self.log.last_index))
        self.generation = 0
        """The number of the last write requested."""

        # Volatile on all servers.
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.leader_heard_ms = 0
        self.is_leader_lost = False
        """The leader's connection is broken; meaningful while there is a leader."""
        self.election_deadline_ms: int | None = None
        self.incoming: tuple[Snapshot, bytearray] | None = None
        """The leader's snapshot as received so far; its own `data` is empty."""

        # Volatile on candidates.
        self.ballots: set[NodeId] = set()
        """Voters that granted; used for membership only, never iterated."""
        self.attempts = 0
        """Campaigns since the last leader."""
        self.ballot_generation = 0
        """The own vote counts when this write is stable."""

        # Volatile on leaders.
        self.followers: dict[NodeId, Progress] = {}
        self.heartbeat_deadline_ms = 0
        self.uncommitted_bytes = 0
        self.transfer_to: NodeId | None = None
        self.transfer_deadline_ms = 0

    # ---- membership

    @property
    def configuration(self) -> Configuration:
        return self.configurations.latest

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.configuration.voters

    @property
    def may_campaign(self) -> bool:
        """A voter being removed may campaign until its removal is committed: it may be the only server with that entry
        (dissertation, 4.2.2). The new voters decide whether it wins. In the last term no server may campaign."""
        if self.term >= LAST_TERM or not self.may_vote_for(self.log.last_index):
            return False
        since = self.configurations.since(self.log.commit_index)
        return any(self.node_id in configuration.voters for configuration in since)

    @property
    def leadership(self) -> Leadership:
        return Leadership(self.role, self.term, self.leader)

    @property
    def has_live_leader(self) -> bool:
        """The leader was heard within the shortest election timeout and is connected. A leader hears itself."""
        if self.role is Role.LEADER:
            return True
        if self.leader is None or self.is_leader_lost:
            return False
        return self.now_ms < self.leader_heard_ms + self.settings.election_timeout_ms

    def protects_leader_from(self, candidate: NodeId) -> bool:
        """A leader that requests votes has restarted and no longer leads."""
        return self.has_live_leader and candidate != self.leader

    # ---- roles and terms

    def move(self, move: Move, leader: NodeId | None) -> None:
        self.role = moved(self.role, move)
        self.leader = leader
        self.is_leader_lost = False
        self.ballots.clear()
        self.followers = {}
        self.transfer_to = None

    def enter_term(self, term: int, voted_for: NodeId | None) -> None:
        assert term > self.term
        self.term = term
        self.vote_for(voted_for)
        self.incoming = None

    def vote_for(self, candidate: NodeId | None) -> None:
        """None: no vote yet."""
        self.voted_for = candidate
        self.is_new = self.is_new and candidate is None
        self.outcome.hard_state = HardState(self.term, candidate, self.is_new)

    def may_vote_for(self, last_index: int) -> bool:
        """A voter whose disk was empty at start may have lost its disk, with its vote and with entries it helped to
        commit: its vote could elect a server without those entries. It votes only while no server has entries, as in
        a new cluster."""
        return not self.is_new or last_index == 0

    def is_up_to_date(self) -> None:
        """The server has stored all committed entries and knows a term with a leader: it is no longer new."""
        if self.is_new:
            self.is_new = False
            self.outcome.hard_state = HardState(self.term, self.voted_for)

    def restart_election_timer(self) -> None:
        timeout_ms = self.settings.election_timeout_ms
        if self.configuration.voters == (self.node_id,):
            self.election_deadline_ms = self.now_ms  # no other voter to wait for
        else:
            self.election_deadline_ms = self.now_ms + timeout_ms + self.random.randrange(timeout_ms)

    def await_leader(self) -> None:
        """Wait for a leader after a start. A live leader sends soon and is protected from a pre-vote anyway."""
        self.restart_election_timer()
        grace_ms = self.settings.lost_leader_grace_ms
        if self.configuration.voters != (self.node_id,) and grace_ms:
            self.election_deadline_ms = self.now_ms + grace_ms + self.random.randrange(grace_ms + 1)

    def restart_retry_timer(self) -> None:
        """After a split vote, retry soon, each server at another moment, with growing delays.

        A single voter waits for its own disk: a new term before that would wait for the disk again.
        """
        timeout_ms = self.settings.election_timeout_ms
        if self.configuration.voters == (self.node_id,):
            self.election_deadline_ms = None
        else:
            pause_ms = min(self.settings.election_retry_ms << min(self.attempts, 16), timeout_ms)
            self.election_deadline_ms = self.now_ms + pause_ms + self.random.randrange(min(2 * pause_ms, timeout_ms))

    def follow(self, leader: NodeId) -> None:
        """The sender sent entries or a snapshot in this term, as only the leader of the term does."""
        if self.leader is None:
            self.move(Move.FOLLOW, leader)
        elif self.leader != leader:
            raise ImpossibleMessage(f"{self.leader} and {leader} both lead term {self.term}")
        self.leader_heard_ms = self.now_ms
        self.is_leader_lost = False
        self.attempts = 0
        self.restart_election_timer()

    # ---- the log

    def append(self, entries: list[Entry]) -> None:
        self.log.append(entries)
        self.outcome.append.extend(entries)
        self._learn(entries)

    def truncate_from(self, index: int) -> None:
        self.log.truncate_from(index)
        self.configurations.truncate_from(index)
        self.outcome.truncate_from = index

    def commit_to(self, index: int) -> None:
        """Pass entries to the state machine, in order and once per instance."""
        if index > self.log.commit_index:
            self.outcome.committed.extend(self.log.between(self.log.commit_index + 1, index))
            self.log.commit_index = index

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.outcome.snapshot_to_store = snapshot
        self.configurations.forget_before(snapshot.index)

    def restore(self, snapshot: Snapshot) -> None:
        """The leader's snapshot replaces the log and the state machine."""
        self.outcome.truncate_from = 1
        self.log.restart_at(snapshot)
        self.configurations = ConfigurationHistory(snapshot.index, snapshot.configuration)
        self.keep_snapshot(snapshot)
        self.outcome.restore = snapshot

    def cut_leftovers(self, stored: Stored) -> None:
        """A crash interrupted the replacement of the log by a leader's snapshot."""
        if stored.entries and not continues(self.snapshot, stored.entries):
            self.outcome.truncate_from = 1

    def _learn(self, entries: list[Entry]) -> None:
        """A configuration takes effect as soon as it is in the log."""
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                self.configurations.append(entry.index, Configuration.decode(entry.data))

    # ---- answers

    def refuse(self, token: Token, refusal: Refusal) -> None:
        self.outcome.refused.append(Refused(token, refusal, self.leader))
