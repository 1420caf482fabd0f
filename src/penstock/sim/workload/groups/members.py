"""Members of a consumer group (the classic protocol) that commit increasing offsets and look them up again.

They do not read records, because the records do not matter here: a member commits increasing numbers for its
partitions, starting at the committed offset. Sessions are short, so that dead members are noticed within a history.
Members come and go: most leave properly, some disappear; a static one returns under its instance id. The ownership of
a member is recorded as intervals that are rather too short than too long: no other member may own it meanwhile.
Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import Assigned, Commit, History, OffsetRead, Outcome, Owned, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.wire_client.requests.errors import WireClientError, check, error_code
from penstock.wire_client.requests.subscription import (
    assign_ranges,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

SESSION_TIMEOUT_MS = 3000
REBALANCE_TIMEOUT_MS = 5000
RETRY_S = 0.1
STAY_CHANCE = 0.85
"""The chance, at each round, that a member stays; otherwise it leaves and joins as a new one."""
LEAVE_CHANCE = 0.8
"""The chance that a leaving member says so; otherwise it is silent, and its session must expire."""
AWAY_S = 0.8
"""The pause before it joins again: long enough that others take over its partitions and must give them up."""
LAST_LEAVE_CHANCE = 0.95
"""At the end, where waiting for sessions makes histories long."""
ASSIGNOR = "range"
# The coordinator refused: nothing was or will be written. A coordinator that lost its log also answers pending
# requests with NOT_COORDINATOR, and those may be stored.
DECIDED_AGAINST = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    )
)


NOT_A_MEMBER = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID))


class Member:
    def __init__(
        self, caller: Caller, history: History, group: str, topics: Sequence[str], instance: str | None = None
    ) -> None:
        """`instance`: the instance id of a static member, which keeps the id and its partitions when it restarts."""
        self.instance = instance
        self.session_ms = SESSION_TIMEOUT_MS
        self._caller = caller
        self._history = history
        self.group = group
        self._topics = tuple(topics)
        self.member_id = ""
        self.generation = -1
        self._coordinator: Address | None = None
        self._next: dict[Place, int] = {}
        self.held: dict[Place, Owned] = {}
        self.committed_in = -1
        """The generation of the last acknowledged commit."""
        self._is_in_doubt = False
        """A join or report was not answered: it may arrive late and revoke a newer assignment."""

    async def run(self, is_over: Callable[[], bool], pause_s: float, stay_chance: float = STAY_CHANCE) -> None:
        while not is_over():
            try:
                await self._join()
                self._next = await self.committed(self._next)
                while not is_over() and self._caller.random.random() < stay_chance:
                    await self._commit()
                    await self._heartbeat()
                    await self._caller.pause(pause_s)
                if not is_over():
                    await self._go(LEAVE_CHANCE)
                    await self._caller.pause(AWAY_S)
            except TROUBLE as error:
                self._caller.note(error)
                self._coordinator = None
                if isinstance(error, ApiError) and error.code in NOT_A_MEMBER:
                    self._let_go(self.held)
                    self._be_new()
                await self._caller.pause(RETRY_S)
        await self._end()

    async def _end(self) -> None:
        if self.member_id:
            try:
                await self._go(LAST_LEAVE_CHANCE, for_good=True)
            except TROUBLE as error:
                self._caller.note(error)

    async def _address(self) -> Address:
        if self._coordinator is None:
            self._coordinator = await self._caller.coordinator(self.group)
        return self._coordinator

    # -- membership ---------------------------------------------------------------------

    @property
    def _who(self) -> str:
        return self.instance or self.member_id

    def _hold(self, places: Iterable[Place], heard_s: float) -> None:
        """The coordinator heard from this member after `heard_s`, so its session lasts at least from then."""
        until_s = heard_s + self.session_ms / 1000
        for owned in self.held.values():
            owned.until_s = until_s
        for place in places:
            if place not in self.held:
                owned = self.held[place] = Owned(self.group, place, self._who, self._history.time(), until_s)
                if not self._is_in_doubt:
                    self._history.owned.append(owned)

    def _let_go(self, places: Iterable[Place]) -> None:
        now_s = self._history.time()
        for place in list(places):
            owned = self.held.pop(place)
            owned.until_s = min(owned.until_s, now_s)

    async def _go(self, leave_chance: float, *, for_good: bool = False) -> None:
        """Leave properly, or disappear and keep the partitions until the session ends."""
        try:
            if self._caller.random.random() < leave_chance:
                self._let_go(self.held)
                await self._leave(for_good=for_good)
        finally:
            self._be_new()

    def _be_new(self) -> None:
        self.member_id = ""
        if self.instance is None:  # a static member keeps its partitions until it joins, perhaps late
            self.held.clear()
            self._is_in_doubt = False

    async def _leave(self, *, for_good: bool) -> None:
        if self.instance is not None and not for_good:
            return  # it restarts unnoticed
        leaving = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveGroupRequest(group_id=self.group, members=[leaving])
        answer = await self._caller.ask(
            await self._address(), Api.LEAVE_GROUP, request, LeaveGroupResponse, purpose=self.group
        )
        check(answer.error_code)
        check(answer.members[0].error_code)

    async def _join(self) -> None:
        self._let_go(self.held)
        joined_s = self._history.time()
        answer = await self._ask_to_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            joined_s = self._history.time()
            answer = await self._ask_to_join()
        check(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        assignments: list[SyncGroupRequestAssignment] = []
        if answer.leader == answer.member_id:
            await self._caller.refresh(self._topics)
            counts = {topic: self._caller.topics.get(topic, 0) for topic in self._topics}
            shares = assign_ranges({member.member_id: self._topics for member in answer.members}, counts)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
                for member, partitions in shares.items()
            ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=ASSIGNOR,
            assignments=assignments,
        )
        synced = await self._caller.ask(
            await self._address(), Api.SYNC_GROUP, request, SyncGroupResponse, purpose=self.group, wait_s=5.0
        )
        check(synced.error_code)
        places = tuple(Place(*assigned) for assigned in decode_assignment(synced.assignment))
        self._history.assigned.append(Assigned(self.group, self.generation, self._who, places))
        self._hold(places, joined_s)
        self._next = dict.fromkeys(places, 0)

    async def _ask_to_join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=encode_subscription(self._topics))],
        )
        wait_s = REBALANCE_TIMEOUT_MS / 1000 + 1
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, self._is_in_doubt or bool(self._who)
        answer = await self._caller.ask(
            await self._address(), Api.JOIN_GROUP, request, JoinGroupResponse, purpose=self.group, wait_s=wait_s
        )
        self._is_in_doubt = was_in_doubt
        return answer

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        sent_s = self._history.time()
        answer = await self._caller.ask(
            await self._address(), Api.HEARTBEAT, request, HeartbeatResponse, purpose=self.group
        )
        check(answer.error_code)
        self._hold((), sent_s)

    # -- offsets ------------------------------------------------------------------------

    async def _commit(self) -> None:
        """Each partition may be refused on its own."""
        if not self._next:
            return
        commits: dict[Place, Commit] = {}
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for place, last in self._next.items():
            offset = self._next[place] = last + self._caller.random.randint(1, 3)
            topics.setdefault(place.topic, []).append(
                OffsetCommitRequestPartition(partition_index=place.partition, committed_offset=offset)
            )
            commits[place] = self._history.begin_commit(self.group, place, offset, self.member_id, self.generation)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=asked) for topic, asked in topics.items()],
        )
        try:
            answer = await self._caller.ask(
                await self._address(), Api.OFFSET_COMMIT, request, OffsetCommitResponse, purpose=self.group
            )
        except WireClientError:
            for commit in commits.values():
                self._history.end_commit(commit, Outcome.UNKNOWN)
            raise
        refusal = ErrorCode.NONE
        for topic in answer.topics:
            for entry in topic.partitions:
                code = error_code(entry.error_code)
                commit = commits[Place(topic.name, entry.partition_index)]
                if code is ErrorCode.NONE:
                    self._history.end_commit(commit, Outcome.ACKNOWLEDGED)
                else:
                    refusal = code
                    is_refused = code in DECIDED_AGAINST
                    self._history.end_commit(commit, Outcome.REFUSED if is_refused else Outcome.UNKNOWN)
        check(refusal)
        self.committed_in = self.generation

    async def committed(self, places: Sequence[Place] | dict[Place, int]) -> dict[Place, int]:
        """The committed offsets, 0 if there is none; recorded as read."""
        if not places:
            return {}
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(place.partition)
        asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group, topics=asked)])
        begun_s = self._history.time()
        answer = await self._caller.ask(
            await self._address(), Api.OFFSET_FETCH, request, OffsetFetchResponse, purpose=self.group
        )
        entry = answer.groups[0]
        check(entry.error_code)
        found: dict[Place, int] = {}
        for topic in entry.topics:
            for partition in topic.partitions:
                check(partition.error_code)
                place = Place(topic.name, partition.partition_index)
                offset = partition.committed_offset
                self._history.offset_reads.append(OffsetRead(self.group, place, offset, begun_s, self._history.time()))
                found[place] = max(offset, 0)
        return found

    def forget_coordinator(self) -> None:
        self._coordinator = None
