"""Drives the Raft core of this server: facts in; what it wants goes to disk, peers, state machine and whoever waits.

One fact at a time, in order; what is caused by carrying out one (a proposal made in a callback) comes after it. The
rules of `docs/raft.md` are kept here: writes in order, promises after their writes, entries applied in order and once.
One timer, armed for the core's next deadline: an idle follower wakes up for heartbeats only.

The server is *active* when it leads and has applied the first entry of its term: then its state machine is as new as
anybody's. A proposal is answered when it is applied here; when leadership goes first, nobody here knows its outcome.

After a defect in the core, or when its disk fails, the server takes no further part until it is restarted: the others
go on without it. Must not know what entries mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from penstock.cluster.applied_log import AppliedLog, StateMachine
from penstock.cluster.peer_links import Address, PeerLinks
from penstock.cluster.proposals import ProposalRefused, Proposals, ProposalTimes
from penstock.cluster.raft_codec import decode, encode
from penstock.cluster.raft_store import RaftStore
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import RaftCore, Status
from penstock.core.raft.exchange import (
    Change,
    ChangeMembership,
    Input,
    Leadership,
    Outcome,
    PeerBack,
    PeerLost,
    PersistDone,
    Proposal,
    Propose,
    Received,
    Refusal,
    Tick,
    TransferLeadership,
)
from penstock.core.raft.messages import Entry, EntryKind, Message, Snapshot
from penstock.core.raft.settings import Settings
from penstock.core.raft.states import Role
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError
from penstock.ports.clock import Clock, Entropy

SHORTEST_TIMER_S = 0.001
HAND_OVER_TIMEOUT_S = 1.0
STALLED_AT_MOST_S = 1.0
"""A leader that has not been able to write for so long hands over."""
MEMBERSHIP_TIMEOUT_S = 5.0
MEMBERSHIP_PAUSE_S = 0.05
SETTLED_LOOK_S = 0.1
"""How often whoever waits for the log to settle looks whether this server still leads."""
TEMPORARY = (Refusal.NOT_CAUGHT_UP, Refusal.CHANGE_IN_PROGRESS, Refusal.TERM_NOT_COMMITTED)

log = logging.getLogger(__name__)


class Quorum:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        voters: Mapping[int, Address],
        settings: Settings,
        store: RaftStore,
        links: PeerLinks,
        machine: StateMachine,
        entropy: Entropy,
        clock: Clock,
        *,
        snapshot_every_bytes: int,
    ) -> None:
        self._loop = loop
        self.node_id = node_id
        self._settings = settings
        self._store = store
        self._links = links
        self._clock = clock
        stored = store.stored()
        configuration = Configuration(_first_voters(store, node_id, tuple(voters)))
        random = Random(int.from_bytes(entropy.random_bytes(8), "big"))
        self._core = RaftCore(node_id, configuration, settings, random, stored)
        self._found = stored.snapshot
        self._members = configuration.members
        self._applied = AppliedLog(machine, snapshot_every_bytes)

        self._inbox: deque[Input] = deque()
        self._is_busy = False
        self._is_over = False
        self._failure: Exception | None = None
        self._is_blocking = False
        self._stable_generation = 0
        self._held_back: deque[tuple[int, list[Message]]] = deque()
        """Messages that wait for writes up to a generation."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stall_watched = False
        self._proposals = Proposals(loop)
        self.proposal_times = ProposalTimes()
        self._known_leader: tuple[int | None, int] = (None, 0)
        self.is_active = False
        self.on_active: Callable[[int], None] = lambda term: None
        self.on_inactive: Callable[[], None] = lambda: None
        self.on_leader: Callable[[int | None, int], None] = lambda leader, term: None
        self.on_failed: Callable[[Exception], None] = lambda error: None
        """This server hears of no changes any more: whoever relies on its state machine should stop."""
        self.on_members: Callable[[], None] = lambda: None
        """Others take part than before: whoever has come needs an address (`set_address`)."""

    # ---- asking

    @property
    def status(self) -> Status:
        return self._core.status

    @property
    def is_leader(self) -> bool:
        return self._core.node.role is Role.LEADER and not self._is_over

    @property
    def leader_id(self) -> int | None:
        return None if self._is_over else self._core.get_leader()

    @property
    def term(self) -> int:
        return self._core.node.term

    @property
    def applied_index(self) -> int:
        return self._applied.index

    @property
    def commit_index(self) -> int:
        return self._core.node.log.commit_index

    @property
    def log_bytes(self) -> int:
        return self._store.log.size_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Of the newest one, 0 if there is none."""
        return self._applied.snapshot_bytes

    @property
    def snapshots_taken(self) -> int:
        return self._applied.snapshots_taken

    @property
    def failure(self) -> Exception | None:
        """Why this server takes no part any more, if it does not."""
        return self._failure

    # ---- life

    def start(self) -> None:
        """An only voter leads and has applied everything when this returns; others look for each other from here on."""
        store, links = self._store, self._links
        store.on_failed, store.on_stalled = self._give_up, self._stalled
        links.on_lost, links.on_back = self._peer_lost, self._peer_back
        if self._found is not None:
            self._restore(self._found)
            self._found = None
        if self._core.status.configuration.voters == (self.node_id,):
            self._is_blocking = True
            try:
                self._post(Tick())
            finally:
                self._is_blocking = False
            if self._failure is not None:
                raise self._failure
        else:
            self._post(Tick())
        links.start()

    async def stop(self) -> None:
        """A leader hands over first, if somebody can take over."""
        await self.hand_over()
        self._end(ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping"))
        self._links.stop()
        await self._store.settled()

    async def hand_over(self) -> None:
        """Lead no more, if somebody can take over. Better while others are heard: their answers come over connections
        of their own."""
        heir = None if self._is_over else self._best_heir()
        if heir is None:
            return
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                await self.transfer_leadership(heir)
        except (ApiError, StorageError, TimeoutError) as error:
            log.info("node %d did not take over the metadata quorum in time: %s", heir, error)

    def _best_heir(self) -> int | None:
        """Of the voters that can be reached, the one with the most of the log."""
        able = [each for each in self.status.replicas if each.is_voter and self._links.is_up(each.node)]
        return max(able, key=lambda each: each.match_index).node if able else None

    def _end(self, error: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._inbox.clear()
        self._held_back.clear()
        self._proposals.fail_all(error)
        self._set_inactive()

    def _give_up(self, error: Exception) -> None:
        """This server's memory or disk cannot be relied upon."""
        if self._is_over:
            return
        self._failure = error if isinstance(error, StorageError) else StorageError(f"the metadata quorum: {error}")
        log.critical(
            "node %d leaves the metadata quorum until it is restarted: %s",
            self.node_id,
            error,
            exc_info=None if isinstance(error, StorageError | OSError) else error,
        )
        self._end(self._failure)
        self._links.stop()
        self._tell_leader(None, self.term)
        self.on_failed(self._failure)

    def _stalled(self, error: Exception) -> None:
        log.error("the disk of the metadata log is full, nothing can be stored until there is room: %s", error)
        self._proposals.fail_all(StorageError(str(error)))
        if not self._is_stall_watched:
            self._is_stall_watched = True
            self._loop.call_later(STALLED_AT_MOST_S, self._hand_over_if_stalled)

    def _hand_over_if_stalled(self) -> None:
        """Others may have room. Tried for as long as the disk is full: they may not be ready yet."""
        self._is_stall_watched = not self._is_over and self._store.is_stalled
        if not self._is_stall_watched:
            return
        self._loop.call_later(STALLED_AT_MOST_S, self._hand_over_if_stalled)
        heir = self._best_heir() if self.is_leader else None
        if heir is not None:
            log.warning("node %d hands the metadata quorum over to node %d: its own disk is full", self.node_id, heir)
            token, done = self._proposals.begin()
            done.add_done_callback(_forget_outcome)
            self._post(TransferLeadership(token, heir))

    # ---- what others want

    async def propose(self, data: bytes) -> int:
        """The entry's index, once it is committed and applied here."""
        self._check_usable()
        token, done = self._proposals.begin()
        began_s = self._clock.monotonic()
        self._post(Propose((Proposal(token, data),)))
        try:
            index = await done
        except (ApiError, StorageError):
            self.proposal_times.failed += 1
            raise
        self.proposal_times.observe(self._clock.monotonic() - began_s)
        return index

    async def change_membership(self, change: Change, node: int, timeout_s: float = MEMBERSHIP_TIMEOUT_S) -> None:
        """Returns when it is committed. `ProposalRefused` (an ApiError) says why not.

        Tried again for a while where the reason passes by itself: an observer that has not caught up yet, say.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        while True:
            self._check_usable()
            token, done = self._proposals.begin()
            self._post(ChangeMembership(token, change, node))
            try:
                await done
                return
            except ProposalRefused as refused:
                if refused.refusal not in TEMPORARY or self._clock.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(MEMBERSHIP_PAUSE_S)

    async def transfer_leadership(self, to: int | None) -> None:
        """Returns when this server does not lead any more. `to`: None is whoever has the most of the log."""
        self._check_usable()
        token, done = self._proposals.begin()
        self._post(TransferLeadership(token, to))
        await done
        if to == self.node_id:
            return
        if not await self._proposals.when_not_leading(self._settings.election_timeout_ms / 1000):
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the other voter did not take over in time")

    async def wait_applied(self, index: int, timeout_s: float) -> bool:
        if self.applied_index >= index:
            return True
        return await self._proposals.when_applied(index, timeout_s)

    async def settled(self) -> None:
        """Returns when all that this leader has in its log is applied, also what nobody waits for any more, or when it
        leads no more. Raises as `propose` does."""
        while self.is_leader and self.applied_index < (last := self._core.node.log.last_index):
            self._check_usable()
            await self._proposals.when_applied(last, SETTLED_LOOK_S)

    def set_address(self, node: int, host: str, port: int) -> None:
        self._links.set_address(node, (host, port))

    def receive(self, payload: memoryview) -> None:
        """A message of another server. Raises ProtocolError."""
        if self._is_over:
            return
        message = decode(payload)
        if message.recipient != self.node_id:
            raise ProtocolError(f"a message for node {message.recipient} came to node {self.node_id}")
        self._post(Received(message))

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping")
        if self._store.is_stalled:
            raise StorageError(f"the disk of {self._store.directory} is full")

    def _peer_lost(self, peer: int) -> None:
        if peer == self.leader_id or self.is_leader:
            self._post(PeerLost(peer))

    def _peer_back(self, peer: int) -> None:
        self._post(PeerBack(peer))

    # ---- one fact at a time

    def _post(self, fact: Input) -> None:
        self._inbox.append(fact)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._inbox and not self._is_over:
                self._step(self._inbox.popleft())
        finally:
            self._is_busy = False

    def _step(self, fact: Input) -> None:
        try:
            outcome = self._core.step(fact, int(self._clock.monotonic() * 1000))
            self._carry_out(outcome)
        except Exception as error:  # memory may have moved: only a new core, from the disk, could go on
            self._give_up(error)

    def _carry_out(self, outcome: Outcome) -> None:
        if outcome.has_writes:
            self._write(outcome)
        self._send(outcome.send_now)
        if outcome.generation <= self._stable_generation:
            self._send(outcome.send_after_persist)
        elif outcome.send_after_persist:
            self._held_back.append((outcome.generation, outcome.send_after_persist))
        for accepted in outcome.accepted:
            self._proposals.accepted(accepted)
        for refused in outcome.refused:
            self._proposals.refused(refused)
        if outcome.restore is not None:
            self._restore(outcome.restore)
        for entry in outcome.committed:
            self._apply(entry)
        if outcome.restore is not None or outcome.committed:
            self._proposals.applied_to(self.applied_index)
        self._arm(outcome.next_deadline_ms)
        if outcome.leadership is not None:
            self._leadership_changed(outcome.leadership)
        if outcome.committed:
            self._become_active(outcome.committed)
            if (ready := self._applied.snapshot_if_due()) is not None:
                self._inbox.append(ready)

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
        if self._is_over:
            return
        self._note_stable(outcome)
        self._post(PersistDone(outcome.generation))

    def _note_stable(self, outcome: Outcome) -> None:
        self._stable_generation = outcome.generation
        if outcome.snapshot_to_store is not None:
            self._applied.end_storing()
        while self._held_back and self._held_back[0][0] <= outcome.generation:
            self._send(self._held_back.popleft()[1])

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self._links.send(message.recipient, encode(message))

    # ---- the state machine

    def _restore(self, snapshot: Snapshot) -> None:
        self._applied.restore(snapshot)
        self._members = snapshot.configuration.members

    def _apply(self, entry: Entry) -> None:
        self._applied.apply(entry)
        if entry.kind is EntryKind.CONFIGURATION:
            self._follow_configuration(Configuration.decode(entry.data))
        self._proposals.committed(entry)

    def _follow_configuration(self, configuration: Configuration) -> None:
        """Who has left is not looked for any more. Those who have not come yet may be."""
        log.info("the metadata quorum has %s", configuration)
        gone = [node for node in self._members if node not in configuration.members]
        self._members = configuration.members
        if self.node_id in configuration.members:
            for node in gone:
                self._links.forget(node)
        self.on_members()

    # ---- roles

    def _leadership_changed(self, leadership: Leadership) -> None:
        role, term, leader = leadership
        if role is not Role.LEADER:
            lost = ApiError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} does not lead the metadata quorum any more")
            self._proposals.leadership_lost(lost)
            self._set_inactive()
        if role in (Role.FOLLOWER, Role.LEADER) and leader is not None:
            whom = "leads" if leader == self.node_id else f"follows node {leader} in"
            is_alone = self._core.status.configuration.members == (self.node_id,)
            level = logging.DEBUG if is_alone else logging.INFO
            log.log(level, "node %d %s the metadata quorum, term %d", self.node_id, whom, term)
        self._tell_leader(leader, term)

    def _become_active(self, committed: list[Entry]) -> None:
        if not self.is_active and self.is_leader and committed[-1].term == self.term:
            self.is_active = True
            self.on_active(self.term)

    def _tell_leader(self, leader: int | None, term: int) -> None:
        """A new term without a leader is no news after another one."""
        known = (leader, term if leader is not None else 0)
        if known != self._known_leader:
            self._known_leader = known
            self.on_leader(leader, term)

    def _set_inactive(self) -> None:
        if self.is_active:
            self.is_active = False
            self.on_inactive()

    # ---- time

    def _arm(self, deadline_ms: int | None) -> None:
        """A timer that is armed for an earlier time stays: when it fires, the core says how long there is left."""
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ms / 1000 - self._clock.monotonic(), SHORTEST_TIMER_S)
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._is_over:
            self._post(Tick())


def _forget_outcome(done: asyncio.Future[int]) -> None:
    """Nobody waits for it."""
    if not done.cancelled():
        done.exception()


def _first_voters(store: RaftStore, node_id: int, configured: tuple[int, ...]) -> tuple[int, ...]:
    """Who voted when this server first took part. Settings that name others later do not change that: the log does.

    A log of before there was Raft is that of a single broker, whose every entry counts.
    """
    known = store.first_voters
    if known is None:
        known = (node_id,) if store.has_history else tuple(sorted(configured))
        store.first_voters = known
    elif set(known) != set(configured):
        log.warning(
            "controller.quorum.voters names %s, but the quorum began with %s and changes by adding and removing voters",
            list(configured),
            list(known),
        )
    return known
