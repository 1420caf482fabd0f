"""Drives a Raft core: passes facts in, and its outcomes to the disk, the peers, the state machine and the waiters.

Facts are handled one at a time, in order; a fact caused by an outcome (a proposal made in a callback) comes after it.
This module keeps the rules of `docs/raft.md`: writes in order, promises after their writes, entries applied in order
and once. There is one timer, set for the core's next deadline: an idle follower wakes up for heartbeats only.

After a defect in the core, or a disk failure, the server leaves the quorum until it is restarted: the others continue.
Must not know: the meaning of entries, the requests to the quorum (`cluster.quorum`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import NamedTuple, Protocol

from penstock.cluster.applied_log import AppliedLog
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.proposals import Proposals
from penstock.cluster.raft_codec import encode
from penstock.cluster.raft_store import RaftStore
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import RaftCore
from penstock.core.raft.exchange import Input, Leadership, Outcome, PersistDone, Tick
from penstock.core.raft.messages import AppendResponse, Entry, EntryKind, Message, Snapshot
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import Role
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.clock import Clock, Entropy

SHORTEST_TIMER_S = 0.001
COMPLAINT_S = 10.0

log = logging.getLogger(__name__)


class QuorumEvents(Protocol):
    """Events that a Raft server reports to its node, from `start` on."""

    def activated(self, term: int) -> None:
        """The server leads, and has applied everything that was committed before."""
        ...

    def deactivated(self) -> None: ...

    def leader_changed(self, leader: int | None, term: int) -> None: ...

    def members_changed(self) -> None:
        """The members changed: a new member needs an address (`Quorum.set_address`)."""
        ...

    def quorum_failed(self, error: Exception) -> None:
        """This server receives no further changes: users of its state machine should stop."""
        ...


class QuorumServer(NamedTuple):
    """A server of the quorum, as its configuration says."""

    node_id: int
    voters: Mapping[int, Address]
    settings: RaftSettings
    snapshot_every_bytes: int
    how_to_vote: str
    """The setting that lets this server vote although its disk is empty."""


class RaftDriver:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: QuorumServer,
        store: RaftStore,
        links: PeerLinks,
        applied: AppliedLog,
        proposals: Proposals,
        events: QuorumEvents,
        entropy: Entropy,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self.node_id = node_id = server.node_id
        self._store = store
        self._links = links
        self._applied = applied
        self._proposals = proposals
        self._events = events
        self._clock = clock
        store.heal_term()
        stored = store.stored()
        configuration = Configuration(_first_voters(store, node_id, tuple(server.voters)))
        random = Random(int.from_bytes(entropy.random_bytes(8), "big"))
        self.core = RaftCore(node_id, configuration, server.settings, random, stored)
        self._found = stored.snapshot
        self._known_index = self.core.node.log.last_index
        self.members = configuration.members
        """The members of the last committed configuration."""

        self._inbox: deque[Input] = deque()
        self._is_busy = False
        self.is_over = False
        self.failure: Exception | None = None
        """Why this server has left the quorum; None: it has not."""
        self._is_blocking = False
        self._stable_generation = 0
        self._held_back: deque[tuple[int, list[Message]]] = deque()
        """Messages that wait for writes up to a generation."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._known_leader: tuple[int | None, int] = (None, 0)
        self.implausible_terms = 0
        """Ignored messages with an implausible term."""
        self._next_complaint_s = 0.0
        self.is_active = False

    @property
    def is_leader(self) -> bool:
        return self.core.node.role is Role.LEADER and not self.is_over

    @property
    def term(self) -> int:
        return self.core.node.term

    # # ---- start and stop

    def start(self) -> None:
        """A sole voter leads and has applied everything when this returns; others start to look for each other."""
        if self._found is not None:
            self._restore(self._found)
            self._found = None
        if self.core.status.configuration.voters != (self.node_id,):
            self.post(Tick())
            return
        self._is_blocking = True
        try:
            self.post(Tick())
        finally:
            self._is_blocking = False
        if self.failure is not None:
            raise self.failure

    def end(self, error: Exception) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._inbox.clear()
        self._held_back.clear()
        self._proposals.fail_all(error)
        self._set_inactive()

    def give_up(self, error: Exception) -> None:
        """This server's memory or disk cannot be trusted."""
        if self.is_over:
            return
        self.failure = error if isinstance(error, StorageError) else StorageError(f"the metadata quorum: {error}")
        if self.failure is not error:
            self.failure.__cause__ = error
        log.critical(
            "node %d leaves the metadata quorum until it is restarted: %s",
            self.node_id,
            error,
            exc_info=None if isinstance(error, StorageError | OSError) else error,
        )
        self.end(self.failure)
        self._links.stop()
        self._tell_leader(None, self.term)
        self._events.quorum_failed(self.failure)

    # ---- one fact at a time

    def post(self, fact: Input) -> None:
        self._inbox.append(fact)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._inbox and not self.is_over:
                self._step(self._inbox.popleft())
        finally:
            self._is_busy = False

    def _step(self, fact: Input) -> None:
        try:
            outcome = self.core.step(fact, int(self._clock.monotonic() * 1000))
            self._carry_out(outcome)
        except Exception as error:  # memory may be inconsistent: only a new core, loaded from disk, could continue
            self.give_up(error)

    def _carry_out(self, outcome: Outcome) -> None:
        if outcome.has_writes:
            self._write(outcome)
        self._send(outcome.send_now)
        if outcome.generation <= self._stable_generation:
            self._send(outcome.send_after_persist)
        elif outcome.send_after_persist:
            self._hold_back(outcome.generation, outcome.send_after_persist)
        for accepted in outcome.accepted:
            self._proposals.accepted(accepted)
        for refused in outcome.refused:
            self._proposals.refused(refused)
        if outcome.restore is not None:
            self._restore(outcome.restore)
        for entry in outcome.committed:
            self._apply(entry)
        if outcome.restore is not None or outcome.committed:
            self._proposals.applied_to(self._applied.index)
        self._arm(outcome.next_deadline_ms)
        if outcome.implausible is not None:
            self._complain_of_term(outcome.implausible)
        if outcome.leadership is not None:
            self._leadership_changed(outcome.leadership)
        if outcome.committed:
            self._become_active(outcome.committed)
            if self._applied.begin_snapshot_if_due():
                self._go_on_with_snapshot()

    def _hold_back(self, generation: int, messages: list[Message]) -> None:
        """Hold messages until that write is stable. Of acknowledgements that wait for the same write only the newest is
        kept: a leader keeps sending heartbeats while a disk hangs.
        """
        if self._held_back and self._held_back[-1][0] == generation and _says_as_much(self._held_back[-1][1], messages):
            self._held_back.pop()
        self._held_back.append((generation, messages))

    # ---- disk and peers

    def _write(self, outcome: Outcome) -> None:
        generation = outcome.generation
        if outcome.snapshot_to_store is not None:
            self._applied.begin_storing(outcome.snapshot_to_store)
        if self._is_blocking:
            self._store.store_blocking(outcome)
            self._inbox.append(PersistDone(generation))
            self._note_stable(outcome)
        else:
            self._store.store(outcome, lambda: self._stored(outcome))

    def _stored(self, outcome: Outcome) -> None:
        if self.is_over:
            return
        self._note_stable(outcome)
        self.post(PersistDone(outcome.generation))

    def _note_stable(self, outcome: Outcome) -> None:
        self._stable_generation = outcome.generation
        if outcome.snapshot_to_store is not None:
            self._applied.end_storing()
        while self._held_back and self._held_back[0][0] <= outcome.generation:
            self._send(self._held_back.popleft()[1])

    def _complain_of_term(self, message: Message) -> None:
        """At intervals: the same sender may send many."""
        self.implausible_terms += 1
        if self._loop.time() >= self._next_complaint_s:
            self._next_complaint_s = self._loop.time() + COMPLAINT_S
            log.warning(
                "node %d sent a message of term %d of the metadata quorum, this node is in term %d: no quorum reaches "
                "such a term, so the message is ignored; check that node's disk (%d such messages so far)",
                message.sender,
                message.term,
                self.term,
                self.implausible_terms,
            )

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self._links.send(message.recipient, encode(message))

    # ---- the state machine

    def _restore(self, snapshot: Snapshot) -> None:
        self._applied.restore(snapshot)
        self.members = snapshot.configuration.members

    def _go_on_with_snapshot(self) -> None:
        """One step each turn: a snapshot of 10,000 partitions takes 0.2 s."""
        if self.is_over:
            return
        ready = self._applied.go_on_with_snapshot()
        if ready is None:
            self._loop.call_soon(self._go_on_with_snapshot)
        else:
            self.post(ready)

    def _apply(self, entry: Entry) -> None:
        self._applied.apply(entry)
        if entry.kind is EntryKind.CONFIGURATION:
            configuration = Configuration.decode(entry.data)
            if entry.index > self._known_index:  # entries from before the start are not logged
                log.info("the metadata quorum has %s", configuration)
            self._follow_configuration(configuration)
        self._proposals.committed(entry)

    def _follow_configuration(self, configuration: Configuration) -> None:
        """Close the links to removed nodes. Links to nodes that are not members yet may stay."""
        gone = [node for node in self.members if node not in configuration.members]
        self.members = configuration.members
        if self.node_id in configuration.members:
            for node in gone:
                self._links.forget(node)
        self._events.members_changed()

    # ---- roles

    def _leadership_changed(self, leadership: Leadership) -> None:
        role, term, leader = leadership
        if role is not Role.LEADER:
            lost = ApiError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} no longer leads the metadata quorum")
            self._proposals.leadership_lost(lost)
            self._set_inactive()
        if role in (Role.FOLLOWER, Role.LEADER) and leader is not None:
            whom = "leads" if leader == self.node_id else f"follows node {leader} in"
            is_alone = self.core.status.configuration.members == (self.node_id,)
            level = logging.DEBUG if is_alone else logging.INFO
            log.log(level, "node %d %s the metadata quorum, term %d", self.node_id, whom, term)
        self._tell_leader(leader, term)

    def _become_active(self, committed: list[Entry]) -> None:
        if not self.is_active and self.is_leader and committed[-1].term == self.term:
            self.is_active = True
            self._events.activated(self.term)

    def _tell_leader(self, leader: int | None, term: int) -> None:
        """A new term without a leader is not reported again."""
        known = (leader, term if leader is not None else 0)
        if known != self._known_leader:
            self._known_leader = known
            self._events.leader_changed(leader, term)

    def _set_inactive(self) -> None:
        if self.is_active:
            self.is_active = False
            self._events.deactivated()

    # ---- time

    def _arm(self, deadline_ms: int | None) -> None:
        """A timer set for an earlier time stays: when it fires, the core returns the remaining time."""
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ms / 1000 - self._clock.monotonic(), SHORTEST_TIMER_S)
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.is_over:
            self.post(Tick())


def _says_as_much(before: list[Message], after: list[Message]) -> bool:
    """Whether both are one acknowledgement to the same leader, and the later one covers at least as much."""
    if len(before) != 1 or len(after) != 1:
        return False
    old, new = before[0], after[0]
    if (
        not isinstance(old, AppendResponse)
        or not isinstance(new, AppendResponse)
        or not (old.accepted and new.accepted)
    ):
        return False
    return (old.recipient, old.term) == (new.recipient, new.term) and old.match_index <= new.match_index


def _first_voters(store: RaftStore, node_id: int, configured: tuple[int, ...]) -> tuple[int, ...]:
    """The voters when this server first took part. Later settings do not change them: only the log does.

    A log from before Raft belongs to a single broker, and all its entries are committed.
    """
    known = store.first_voters
    if known is None:
        known = (node_id,) if store.has_history else tuple(sorted(configured))
        store.first_voters = known
    elif set(known) != set(configured):
        log.warning(
            "controller.quorum.voters names %s, but the quorum began with %s and changes only when voters are added "
            "or removed",
            list(configured),
            list(known),
        )
    return known
