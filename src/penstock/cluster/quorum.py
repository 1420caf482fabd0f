"""The metadata quorum as seen by this server: its own state, and requests to the quorum from other code.

The server is *active* when it leads and has applied the first entry of its term: then its state machine is up to date.
A proposal is answered when it is applied here. If leadership ends first, its outcome is not known here.
`cluster.raft_driver` drives the core and takes requests as facts. Must not know: the meaning of entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.cluster.applied_log import AppliedLog, StateMachine
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.proposals import ProposalRefused, Proposals, ProposalTimes
from penstock.cluster.raft_codec import decode
from penstock.cluster.raft_driver import QuorumEvents, QuorumServer, RaftDriver
from penstock.cluster.raft_store import QuorumLane, RaftStore
from penstock.core.raft.core import Status
from penstock.core.raft.exchange import (
    Change,
    ChangeMembership,
    PeerBack,
    PeerLost,
    Proposal,
    Propose,
    Received,
    Refusal,
    TransferLeadership,
)
from penstock.core.raft.messages import Entry, PreVote, RequestVote
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError
from penstock.ports.clock import Clock, Entropy

HAND_OVER_TIMEOUT_S = 1.0
STALLED_AT_MOST_S = 1.0
"""A leader that could not write for this long hands over."""
MEMBERSHIP_TIMEOUT_S = 5.0
MEMBERSHIP_PAUSE_S = 0.05
EXPLAIN_EVERY_S = 30.0
SETTLED_LOOK_S = 0.1
"""How often a waiter for the log to settle checks whether this server still leads."""
TEMPORARY = (Refusal.NOT_CAUGHT_UP, Refusal.CHANGE_IN_PROGRESS, Refusal.TERM_NOT_COMMITTED)

log = logging.getLogger(__name__)


class Quorum:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: QuorumServer,
        store: RaftStore,
        lane: QuorumLane,
        links: PeerLinks,
        machine: StateMachine,
        events: QuorumEvents,
        entropy: Entropy,
        clock: Clock,
    ) -> None:
        """The `events` of the links must call this quorum's `peer_lost` and `peer_back`."""
        self._loop = loop
        self.node_id = server.node_id
        self._settings = server.settings
        self._store = store
        self._links = links
        self._clock = clock
        self._applied = AppliedLog(machine, server.snapshot_every_bytes)
        self._proposals = Proposals(loop)
        self.proposal_times = ProposalTimes()
        self._driver = RaftDriver(loop, server, store, links, self._applied, self._proposals, events, entropy, clock)
        self._is_stall_watched = False
        self._is_disk_hung = False
        self._explains_from_s = 0.0
        self._how_to_vote = server.how_to_vote
        store.attach(loop, lane, on_failed=self._driver.give_up, on_stalled=self._stalled)

    # # ---- state

    @property
    def is_leader(self) -> bool:
        return self._driver.is_leader

    @property
    def is_active(self) -> bool:
        return self._driver.is_active

    @property
    def term(self) -> int:
        return self._driver.term

    @property
    def applied_index(self) -> int:
        return self._applied.index

    @property
    def failure(self) -> Exception | None:
        """Why this server has left the quorum; None: it has not."""
        return self._driver.failure

    @property
    def implausible_terms(self) -> int:
        """Ignored messages with an implausible term."""
        return self._driver.implausible_terms

    @property
    def status(self) -> Status:
        return self._driver.core.status

    @property
    def leader_id(self) -> int | None:
        return None if self._driver.is_over else self._driver.core.get_leader()

    @property
    def commit_index(self) -> int:
        return self._driver.core.node.log.commit_index

    @property
    def last_index(self) -> int:
        """The last index of this server's log, committed or not; 0: the log was always empty."""
        return self._driver.core.node.log.last_index

    @property
    def voters(self) -> tuple[int, ...]:
        return self._driver.core.node.configuration.voters

    @property
    def members(self) -> list[int]:
        """The members of the current configuration, and of the previous one while the current is not committed."""
        return list(dict.fromkeys((*self._driver.core.node.configuration.members, *self._driver.members)))

    @property
    def configuration_index(self) -> int:
        """The index of the current voters in the log; 0: the log names none."""
        return self._driver.core.node.configurations.latest_index

    @property
    def unapplied(self) -> list[Entry]:
        """The log beyond the applied part, committed or not. Empty if a snapshot is about to be applied."""
        return self._driver.core.node.log.after(self.applied_index)

    def has_entry(self, index: int, term: int) -> bool:
        """False also if that part of the log has been compacted."""
        return self._driver.core.node.log.term_at(index) == term

    @property
    def log_bytes(self) -> int:
        return self._store.log.size_bytes

    @property
    def snapshot_bytes(self) -> int:
        """The size of the newest snapshot, 0 if there is none."""
        return self._applied.snapshot_bytes

    @property
    def snapshots_taken(self) -> int:
        return self._applied.snapshots_taken

    # # ---- start and stop

    def start(self) -> None:
        """A sole voter leads and has applied everything when this returns; others start to look for each other."""
        self._driver.start()
        self._links.start()

    async def stop(self) -> None:
        """A leader hands over first, if another voter can take over."""
        await self.hand_over()
        self._driver.end(ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping"))
        self._links.stop()
        await self._store.settled()

    async def hand_over(self, among: Sequence[int] | None = None) -> None:
        """Hand leadership over to a voter that can take it, from `among` if given. Call this while the links are up:
        the others answer over connections of their own.
        """
        heir = None if self._driver.is_over else self._best_heir(among)
        if heir is None:
            return
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                await self.transfer_leadership(heir)
        except (ApiError, StorageError, TimeoutError) as error:
            log.info("node %d did not take over the metadata quorum in time: %s", heir, error)

    def _best_heir(self, among: Sequence[int] | None = None) -> int | None:
        """The reachable voter with the longest log."""
        able = [
            each
            for each in self.status.replicas
            if each.is_voter and self._links.is_up(each.node) and (among is None or each.node in among)
        ]
        return max(able, key=lambda each: each.match_index).node if able else None

    def _stalled(self, error: Exception) -> None:
        log.error("nothing can be stored in the metadata log until there is room: %s", error)
        self._proposals.fail_all(StorageError(str(error)))
        if not self._is_stall_watched:
            self._is_stall_watched = True
            self._loop.call_later(STALLED_AT_MOST_S, self._hand_over_if_stalled)

    def disk_hung(self, is_hung: bool) -> None:
        """Writes of this server hang, or end again. Entries are committed by the other disks meanwhile, but no new term
        can begin here, so a server with a working disk should lead.
        """
        self._is_disk_hung = is_hung
        if is_hung and not self._is_stall_watched:
            self._hand_over_if_stalled()

    def _hand_over_if_stalled(self) -> None:
        """Other servers may be able to write. Repeated while this one cannot: they may not be ready yet."""
        self._is_stall_watched = not self._driver.is_over and (self._store.is_stalled or self._is_disk_hung)
        if not self._is_stall_watched:
            return
        self._loop.call_later(STALLED_AT_MOST_S, self._hand_over_if_stalled)
        heir = self._best_heir() if self.is_leader else None
        if heir is not None:
            why = "hangs" if self._is_disk_hung else "cannot be written"
            log.warning(
                "node %d hands the metadata quorum over to node %d: this node's disk %s", self.node_id, heir, why
            )
            token, done = self._proposals.begin()
            done.add_done_callback(_forget_outcome)
            self._driver.post(TransferLeadership(token, heir))

    # # ---- requests

    async def propose(self, data: bytes) -> int:
        """The entry's index, once it is committed and applied here."""
        self._check_usable()
        token, done = self._proposals.begin()
        began_s = self._clock.monotonic()
        self._driver.post(Propose((Proposal(token, data),)))
        try:
            index = await done
        except (ApiError, StorageError):
            self.proposal_times.failed += 1
            raise
        self.proposal_times.observe(self._clock.monotonic() - began_s)
        return index

    async def change_membership(self, change: Change, node: int, timeout_s: float = MEMBERSHIP_TIMEOUT_S) -> None:
        """Return when the change is committed. Raises `ProposalRefused` (an ApiError) with the reason.

        Tries again for a while if the reason is temporary: an observer that has not caught up yet, for example.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        while True:
            self._check_usable()
            token, done = self._proposals.begin()
            self._driver.post(ChangeMembership(token, change, node))
            try:
                await done
                return
            except ProposalRefused as refused:
                if refused.refusal not in TEMPORARY or self._clock.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(MEMBERSHIP_PAUSE_S)

    async def transfer_leadership(self, to: int | None) -> None:
        """Return when this server no longer leads. `to`: None selects the voter with the longest log."""
        self._check_usable()
        token, done = self._proposals.begin()
        self._driver.post(TransferLeadership(token, to))
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
        """Return when all entries in this leader's log are applied, including abandoned proposals, or when it has lost
        leadership. Raises as `propose` does.
        """
        while self.is_leader and self.applied_index < (last := self._driver.core.node.log.last_index):
            self._check_usable()
            await self._proposals.when_applied(last, SETTLED_LOOK_S)

    def set_address(self, node: int, host: str, port: int) -> None:
        self._links.set_addresses(node, [(host, port)])

    def receive(self, payload: memoryview) -> None:
        """Handle a message of another server. Raises ProtocolError."""
        if self._driver.is_over:
            return
        message = decode(payload)
        if message.recipient != self.node_id:
            raise ProtocolError(f"a message for node {message.recipient} came to node {self.node_id}")
        self._driver.post(Received(message))
        if isinstance(message, PreVote | RequestVote):
            self._explain_refusal(message)

    def _explain_refusal(self, ask: PreVote | RequestVote) -> None:
        """Only the operator knows whether the disk is empty because it is new."""
        node = self._driver.core.node
        if node.may_vote_for(ask.last_index) or node.leader is not None or self._loop.time() < self._explains_from_s:
            return
        self._explains_from_s = self._loop.time() + EXPLAIN_EVERY_S
        log.warning(
            "node %d does not vote for node %d: its disk is empty, and may have held votes and metadata. It votes once "
            "a controller has brought it up to date. If it never ran before, and too few other voters can be started, "
            "start it with %s. If it ran before and lost its disk, do not: committed metadata may be lost",
            self.node_id,
            ask.sender,
            self._how_to_vote,
        )

    def _check_usable(self) -> None:
        if self._driver.failure is not None:
            raise self._driver.failure
        if self._driver.is_over:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping")
        if self._store.is_stalled:
            raise StorageError(
                f"the disk of {self._store.directory} is full, or the process has no free file descriptors"
            )

    def peer_lost(self, peer: int) -> None:
        if peer == self.leader_id or self.is_leader:
            self._driver.post(PeerLost(peer))

    def peer_back(self, peer: int) -> None:
        self._driver.post(PeerBack(peer))


def _forget_outcome(done: asyncio.Future[int]) -> None:
    """The result is not needed."""
    if not done.cancelled():
        done.exception()
