"""Promises about changes of voters: in the end the acknowledged voters vote, and every node knows them.

Whether a node votes is a register: it has the last acknowledged value, unless a change of unknown outcome took effect
at a later moment. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.sim.judges.history import AdminAction, History, Outcome, Violation
from penstock.sim.workload.operators.voters import GIVE


def check_votes(history: History, known: Mapping[int, Sequence[int]], first: Sequence[int]) -> None:
    """`known`: the voters as each node knows them; `first`: the initial voters."""
    voters = _agreed(known)
    told: dict[int, list[AdminAction]] = {}
    for action in history.admin:
        told.setdefault(int(action.key), []).append(action)
    for node in sorted({*told, *first, *voters}):
        votes, is_known = node in first, True
        for action in told.get(node, []):
            if action.outcome is Outcome.ACKNOWLEDGED:
                votes = action.verb == GIVE
            else:
                is_known = False
        if is_known and votes != (node in voters):
            raise Violation(
                "acknowledged changes of votes are kept",
                f"node {node} should {'' if votes else 'not '}be one of the voters, which are {list(voters)}",
            )


def check_given(history: History, given: Mapping[int, int]) -> None:
    """`given`: number of votes each node got. A request without an answer may have taken effect, but only once."""
    for node, times in given.items():
        asked = sum(action.verb == GIVE and int(action.key) == node for action in history.admin)
        if times > asked:
            raise Violation(
                "a vote is given once per request",
                f"node {node} got a vote {times} times, but {asked} requests asked for it",
            )


def check_last_voters(known: Mapping[int, Sequence[int]], wanted: Sequence[int]) -> None:
    """The voters are as before: no change was requested."""
    if _agreed(known) != tuple(sorted(wanted)):
        raise Violation("the voters do not change by themselves", f"they were {list(wanted)}, but are {dict(known)}")


def _agreed(known: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    sets = {tuple(sorted(voters)) for voters in known.values()}
    if len(sets) != 1:
        raise Violation("all nodes agree on the voters", f"they say {dict(known)}")
    return sets.pop()
