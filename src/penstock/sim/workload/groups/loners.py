"""A consumer that assigns partitions itself: it commits without being a member, and its offsets are deleted at times.

Numbers only increase, also across deletions, so an old offset that reappears is recognised. A deletion is recorded as
a commit of NOTHING. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import NOTHING, Commit, History, Outcome, Place
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.groups.members import RETRY_S, Member
from penstock.wire.apis import Api
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from penstock.wire_client.requests.errors import WireClientError, error_code

READ_CHANCE = 0.3
DELETE_CHANCE = 0.15
DELETE_GROUP_CHANCE = 0.1


class Loner(Member):
    def __init__(self, caller: Caller, history: History, group: str, places: Sequence[Place]) -> None:
        super().__init__(caller, history, group, [])
        self._next = dict.fromkeys(places, 0)

    async def run(self, is_over: Callable[[], bool], pause_s: float, stay_chance: float = 1.0) -> None:
        random = self._caller.random
        while not is_over():
            try:
                await self._commit()
                if random.random() < READ_CHANCE:
                    await self.committed(self._next)
                if random.random() < DELETE_CHANCE:
                    await self._delete(random.choice(list(self._next)))
                if random.random() < DELETE_GROUP_CHANCE:
                    await self._delete_group()
            except TROUBLE as error:
                self._caller.note(error)
                self._coordinator = None
                await self._caller.pause(RETRY_S)
            await self._caller.pause(pause_s)

    async def _delete(self, place: Place) -> None:
        address = await self._address()
        commits = self._begin([place])
        partition = OffsetDeleteRequestPartition(partition_index=place.partition)
        topic = OffsetDeleteRequestTopic(name=place.topic, partitions=[partition])
        request = OffsetDeleteRequest(group_id=self.group, topics=[topic])
        try:
            answer = await self._caller.ask(
                address, Api.OFFSET_DELETE, request, OffsetDeleteResponse, purpose=self.group
            )
        except WireClientError:
            self._end_all(commits, Outcome.UNKNOWN)
            raise
        self._answered(commits, answer.error_code or answer.topics[0].partitions[0].error_code)

    async def _delete_group(self) -> None:
        address = await self._address()
        commits = self._begin(list(self._next))
        request = DeleteGroupsRequest(groups_names=[self.group])
        try:
            answer = await self._caller.ask(
                address, Api.DELETE_GROUPS, request, DeleteGroupsResponse, purpose=self.group
            )
        except WireClientError:
            self._end_all(commits, Outcome.UNKNOWN)
            raise
        self._answered(commits, answer.results[0].error_code)

    def _begin(self, places: Sequence[Place]) -> list[Commit]:
        return [self._history.begin_commit(self.group, place, NOTHING, "", self.generation) for place in places]

    def _end_all(self, commits: Sequence[Commit], outcome: Outcome) -> None:
        for commit in commits:
            self._history.end_commit(commit, outcome)

    def _answered(self, commits: Sequence[Commit], code: int) -> None:
        if code == ErrorCode.NONE:
            self._end_all(commits, Outcome.ACKNOWLEDGED)
            return
        # Without a group there is nothing to delete.
        self._end_all(commits, Outcome.REFUSED if code == ErrorCode.GROUP_ID_NOT_FOUND else Outcome.UNKNOWN)
        raise ApiError(error_code(code), "not deleted")
