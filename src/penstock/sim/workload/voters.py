"""An operator who changes who votes on the metadata: takes votes away, from the controller too, and gives them back.

Down to one voter, and up to every node there is. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.sim.judges.history import History, Outcome
from penstock.sim.workload.caller import TROUBLE, Address, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire_client.requests.errors import check

METADATA_TOPIC = "__cluster_metadata"
TIMEOUT_MS = 1000
GIVE, TAKE = "give a vote to", "take the vote of"
NAMED_CHANCE = 0.5
RETRY_S = 0.1


class VoterOperator:
    def __init__(self, caller: Caller, history: History, nodes: Mapping[int, Address]) -> None:
        """`nodes`: also those that may join later."""
        self._caller = caller
        self._history = history
        self._nodes = dict(nodes)
        self._way: Address | None = None

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            await self._caller.pause(pause_s)
            await self._change()

    async def settle(self, voters: Collection[int]) -> None:
        """Until these have a vote, and nobody else."""
        while True:
            try:
                now, others = await self._members()
            except TROUBLE as error:
                self._caller.note(error)
            else:
                too_few = [node for node in voters if node not in now]
                too_many = [node for node in now if node not in voters]
                if too_few:
                    await self._act(GIVE, too_few[0], others.get(too_few[0], bytes(16)))
                elif too_many:
                    await self._act(TAKE, too_many[0], now[too_many[0]])
                else:
                    return
            await self._caller.pause(RETRY_S)

    async def _change(self) -> None:
        node = self._caller.random.choice(list(self._nodes))
        is_disk_named = self._caller.random.random() < NAMED_CHANCE
        try:
            voters, observers = await self._members()
        except TROUBLE as error:
            self._caller.note(error)
            return
        disk = (voters | observers).get(node)
        if disk is not None:
            await self._act(GIVE if node in observers else TAKE, node, disk if is_disk_named else bytes(16))

    async def _members(self) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Voters and observers, each with its disk."""
        quorum = await self._quorum()
        voters = {one.replica_id: one.replica_directory_id for one in quorum.current_voters}
        return voters, {one.replica_id: one.replica_directory_id for one in quorum.observers}

    async def _quorum(self) -> ResponsePartitionData:
        asked = RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.DESCRIBE_QUORUM,
            DescribeQuorumRequest(topics=[asked]),
            DescribeQuorumResponse,
            purpose="voters",
        )
        check(answer.error_code, answer.error_message)
        found = answer.topics[0].partitions[0]
        check(found.error_code, found.error_message)
        return found

    async def ask(self, verb: str, node: int, way: int) -> None:
        """Once, by way of this broker, and whatever comes of it."""
        self._way = self._nodes[way]
        await self._act(verb, node, bytes(16))
        self._way = None

    async def _act(self, verb: str, node: int, disk: bytes) -> None:
        action = self._history.begin_admin(verb, "", str(node))
        try:
            await (self._give(node, disk) if verb == GIVE else self._take(node, disk))
        except TROUBLE as error:
            self._caller.note(error)
            # Whatever it says: a broker asks the next controller where the connection to the last one broke.
            self._history.end_admin(action, Outcome.UNKNOWN, str(error))
        else:
            self._history.end_admin(action, Outcome.ACKNOWLEDGED)

    async def _give(self, node: int, disk: bytes) -> None:
        host, port = self._nodes[node]
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=TIMEOUT_MS,
            voter_id=node,
            voter_directory_id=disk,
            listeners=[Listener(name="PLAINTEXT", host=host, port=port)],
        )
        answer = await self._caller.ask(
            self._way or self._caller.any_address(), Api.ADD_RAFT_VOTER, request, AddRaftVoterResponse, purpose="voters"
        )
        check(answer.error_code, answer.error_message)

    async def _take(self, node: int, disk: bytes) -> None:
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=node, voter_directory_id=disk)
        answer = await self._caller.ask(
            self._way or self._caller.any_address(),
            Api.REMOVE_RAFT_VOTER,
            request,
            RemoveRaftVoterResponse,
            purpose="voters",
        )
        check(answer.error_code, answer.error_message)
