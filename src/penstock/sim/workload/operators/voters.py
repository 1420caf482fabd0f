"""An operator who changes the voters of the metadata quorum: removes and adds voters, also the controller, down to one
voter and up to all nodes. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.model.addresses import Address
from penstock.sim.judges.history import History, Outcome
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.add_raft_voter import AddRaftVoterResponse
from penstock.wire.messages.describe_quorum import DescribeQuorumResponse, ResponsePartitionData
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterResponse
from penstock.wire_client.requests.quorum import (
    add_voter_request,
    check_voters,
    quorum_request,
    read_quorum,
    remove_voter_request,
)

LISTENER = "PLAINTEXT"
TIMEOUT_MS = 1000
GIVE, TAKE = "give a vote to", "take the vote of"
NAMED_CHANCE = 0.5
RETRY_S = 0.1


class VoterOperator:
    def __init__(self, caller: Caller, history: History, nodes: Mapping[int, Address]) -> None:
        """`nodes` includes those that may join later."""
        self._caller = caller
        self._history = history
        self._nodes = dict(nodes)
        self._way: Address | None = None

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            await self._caller.pause(pause_s)
            await self._change()

    async def settle(self, voters: Collection[int]) -> None:
        """Repeat until exactly these have a vote."""
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
        """Voters and observers, each with its directory id."""
        quorum = await self._quorum()
        voters = {one.replica_id: one.replica_directory_id for one in quorum.current_voters}
        return voters, {one.replica_id: one.replica_directory_id for one in quorum.observers}

    async def _quorum(self) -> ResponsePartitionData:
        answer = await self._caller.ask(
            self._caller.any_address(),
            Api.DESCRIBE_QUORUM,
            quorum_request(),
            DescribeQuorumResponse,
            purpose="voters",
        )
        return read_quorum(answer)

    async def ask(self, verb: str, node: int, way: int) -> None:
        """Ask once, through this broker, ignoring the outcome."""
        self._way = self._nodes[way]
        await self._act(verb, node, bytes(16))
        self._way = None

    async def _act(self, verb: str, node: int, disk: bytes) -> None:
        action = self._history.begin_admin(verb, "", str(node))
        try:
            await (self._give(node, disk) if verb == GIVE else self._take(node, disk))
        except TROUBLE as error:
            self._caller.note(error)
            # Whatever the error: a broker asks the next controller if its connection to the previous one breaks.
            self._history.end_admin(action, Outcome.UNKNOWN, str(error))
        else:
            self._history.end_admin(action, Outcome.ACKNOWLEDGED)

    async def _give(self, node: int, disk: bytes) -> None:
        address = self._nodes[node]
        request = add_voter_request(node, address, TIMEOUT_MS, directory_id=disk, listener_name=LISTENER)
        answer = await self._caller.ask(
            self._way or self._caller.any_address(), Api.ADD_RAFT_VOTER, request, AddRaftVoterResponse, purpose="voters"
        )
        check_voters(answer)

    async def _take(self, node: int, disk: bytes) -> None:
        request = remove_voter_request(node, directory_id=disk)
        answer = await self._caller.ask(
            self._way or self._caller.any_address(),
            Api.REMOVE_RAFT_VOTER,
            request,
            RemoveRaftVoterResponse,
            purpose="voters",
        )
        check_voters(answer)
