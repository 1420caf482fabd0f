"""The voters of the metadata quorum: which of them answer this machine, and why the others do not.

A broker that finds no controller names the voters in its error (`api.forwarding`). Each voter is tried with a plain
socket and one small request: a process that is stopped still accepts connections. This module does not know which
command asks, nor how the command shows the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.cli.reach.connection import (
    CONNECT_TIMEOUT_S,
    HANGS,
    REFUSED,
    STUCK,
    Target,
    ask_api_versions,
    connect_problem,
)
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api

if TYPE_CHECKING:
    from penstock.wire_client.blocking.connection import BlockingConnection

# How long a broker looks for a controller before it says that there is none. A moment is enough after a command that
# has already waited in vain.
LOOK_S = 5.0
MOMENT_S = 0.5
ANSWER_S = 1.0
"""How much longer to wait for the broker's answer."""
MOST_AT_ONCE = 16
OTHER = "the server there does not answer as a broker does"
CLOSED = "it closed the connection at once"
_NAMED = re.compile(r"\b(\d+) at (\S+):(\d+)(?=[,)])")


@dataclass(frozen=True, slots=True)
class TriedNode:
    node_id: int
    host: str
    port: int
    problem: str = ""
    """Empty: the node answers."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def advice(self) -> str:
        if not self.problem:
            return ""
        if self.problem == REFUSED:
            return "No process listens there: start that node. If it ended by itself, its log says why."
        if self.problem == HANGS:
            return STUCK
        if self.problem == OTHER:
            return "Another program may use its port: compare controller.quorum.voters with the listeners of the node."
        if self.problem == CLOSED:
            return "It may have too many connections: see its log. Or another program uses its port."
        return "Check that its machine is up, the network and firewalls, and the name in controller.quorum.voters."


def named_voters(refusal: str) -> list[TriedNode]:
    """The voters in the error of a broker that found no controller; empty if the error names none."""
    _, _, named = refusal.partition("(voters: ")
    return [TriedNode(int(node_id), host, int(port)) for node_id, host, port in _NAMED.findall(named)]


def tried(voters: Iterable[TriedNode], timeout_s: float | None = None) -> list[TriedNode]:
    """The same voters, each with its problem seen from this machine. All are tried at once: each may take its time."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return list(pool.map(partial(_try, CONNECT_TIMEOUT_S if timeout_s is None else timeout_s), voters))


def _try(timeout_s: float, voter: TriedNode) -> TriedNode:
    problem = connect_problem(voter.host, voter.port, timeout_s)
    if not problem:
        answer = ask_api_versions(voter.host, voter.port, timeout_s)
        problem = {"kafka": "", "nothing": HANGS, "other": OTHER, "closed": CLOSED}[answer]
    return TriedNode(voter.node_id, voter.host, voter.port, problem)


def verdict(voters: Sequence[TriedNode]) -> str:
    """How many voters answer, and how many are needed."""
    count = sum(not voter.problem for voter in voters)
    majority = len(voters) // 2 + 1
    answers = f"{count} of {len(voters)} voters answer{'s' * (count == 1)} this machine"
    return f"{answers}, {majority} are needed" if count < majority else f"{answers}, which is a majority"


def what_to_do(voters: Sequence[TriedNode]) -> str:
    missing = [str(voter.node_id) for voter in voters if voter.problem]
    if len(voters) - len(missing) > len(voters) // 2:
        return (
            "An election may be under way: try again in a few seconds. If it does not end, the voters cannot reach "
            "each other: their logs say which."
        )
    if not any(voter.problem in ("", REFUSED) for voter in voters):
        return (
            "The nodes may use names or networks that this machine does not know: run the command on one of the nodes."
        )
    needed = len(voters) // 2 + 1 - (len(voters) - len(missing))
    enough = f" ({needed} of them {'is' if needed == 1 else 'are'} enough)" if needed < len(missing) else ""
    return f"Start node{'s' * (len(missing) > 1)} {', '.join(missing)} again{enough}."


@dataclass(frozen=True, slots=True)
class Quorum:
    """The metadata quorum as its leader sees it."""

    leader_id: int
    voters: tuple[TriedNode, ...]
    """Not tried yet; voters without a known address are left out."""
    silent_s: dict[int, float]
    """How long the leader has not heard from each voter."""


def has_controller(target: Target, address: tuple[str, int], look_s: float = MOMENT_S) -> bool | None:
    """Whether the broker at `address` finds a controller within `look_s`; None if the broker cannot say.

    Raises ApiError(NOT_CONTROLLER), which names the voters.
    """
    from penstock.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
    from penstock.wire_client.requests.errors import WireClientError
    from penstock.wire_client.requests.replicas import moves_request, read_moves

    # An empty request: only the controller answers it, and its timeout limits the search for the controller.
    request = moves_request(int(look_s * 1000), [])
    try:
        with _connection(target, address, min(look_s + ANSWER_S, CONNECT_TIMEOUT_S)) as connection:
            answer = connection.call(
                Api.LIST_PARTITION_REASSIGNMENTS, request, ListPartitionReassignmentsResponse, look_s + ANSWER_S
            )
        read_moves(answer)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        return None
    except WireClientError:
        return None
    return True


def _connection(target: Target, address: tuple[str, int], timeout_s: float) -> BlockingConnection:
    from penstock.wire_client.blocking.connection import BlockingConnection
    from penstock.wire_client.blocking.security import security_from_settings

    security = security_from_settings({name: str(value) for name, value in target.settings.items()})
    return BlockingConnection.open(*address, "penstock-cli", security, timeout_s)


def quorum_at(target: Target, address: tuple[str, int]) -> Quorum | None:
    """One request to the broker at `address`; None if the broker cannot answer it.

    Raises ApiError(NOT_CONTROLLER), which names the voters.
    """
    from penstock.wire.messages.describe_quorum import DescribeQuorumResponse
    from penstock.wire_client.requests.errors import WireClientError
    from penstock.wire_client.requests.quorum import quorum_request, read_quorum, read_voter_addresses

    # First, because DescribeQuorum has no timeout for the search for the leader.
    has_controller(target, address, min(LOOK_S, target.timeout_s))

    try:
        with _connection(target, address, CONNECT_TIMEOUT_S) as connection:
            answer = connection.call(Api.DESCRIBE_QUORUM, quorum_request(), DescribeQuorumResponse, LOOK_S + ANSWER_S)
        found = read_quorum(answer)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        return None
    except (WireClientError, IndexError):
        return None
    addresses = read_voter_addresses(answer)
    # By the leader's clock: the leader's own entry is the present time.
    now_ms = max((one.last_fetch_timestamp for one in found.current_voters), default=0)
    return Quorum(
        found.leader_id,
        tuple(
            TriedNode(node_id, *addresses[node_id])
            for node_id in sorted(one.replica_id for one in found.current_voters)
            if node_id in addresses
        ),
        {one.replica_id: (now_ms - one.last_fetch_timestamp) / 1000 for one in found.current_voters},
    )
