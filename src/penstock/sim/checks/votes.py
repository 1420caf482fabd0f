"""What was promised to whoever changes the voters: in the end those vote who were said to, and everybody knows it.

Whether a node votes is a register: it has the value that was acknowledged last, unless one whose outcome is unknown may
have come at any later moment. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.sim.judges.history import AdminAction, History, Outcome, Violation
from penstock.sim.workload.voters import GIVE


def check_votes(history: History, known: Mapping[int, Sequence[int]], first: Sequence[int]) -> None:
    """`known`: the voters as each node has them; `first`: as they were in the beginning."""
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
                "a vote given is kept, and one taken away is gone",
                f"node {node} should {'' if votes else 'not '}be one of the voters, which are {list(voters)}",
            )


def check_given(history: History, given: Mapping[int, int]) -> None:
    """`given`: how often each node got a vote. A request whose answer is lost may have done what it asked for, once."""
    for node, times in given.items():
        asked = sum(action.verb == GIVE and int(action.key) == node for action in history.admin)
        if times > asked:
            raise Violation(
                "a vote is given once for each time it is asked for",
                f"node {node} got a vote {times} times, and {asked} times somebody asked for that",
            )


def check_last_voters(known: Mapping[int, Sequence[int]], wanted: Sequence[int]) -> None:
    """Nobody has changed them since they were these."""
    if _agreed(known) != tuple(sorted(wanted)):
        raise Violation("the voters stay who they are", f"they were {list(wanted)} and are {dict(known)}")


def _agreed(known: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    sets = {tuple(sorted(voters)) for voters in known.values()}
    if len(sets) != 1:
        raise Violation("all nodes agree on the voters", f"they say {dict(known)}")
    return sets.pop()
