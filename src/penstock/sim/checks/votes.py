"""What was promised to whoever changes the voters: in the end those vote who were said to, and everybody knows it.

Whether a node votes is a register: it has the value that was acknowledged last, unless one whose outcome is unknown may
have come at any later moment. Must not know: brokers, faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.sim.history import AdminAction, History, Outcome, Violation
from penstock.sim.workload.voters import GIVE


def check_votes(history: History, known: Mapping[int, Sequence[int]], first: Sequence[int]) -> None:
    """`known`: the voters as each node has them; `first`: as they were in the beginning."""
    told: dict[int, list[AdminAction]] = {}
    for action in history.admin:
        told.setdefault(int(action.key), []).append(action)
    sets = {tuple(sorted(voters)) for voters in known.values()}
    if len(sets) != 1:
        raise Violation("all nodes agree on the voters", f"they say {dict(known)}")
    voters = sets.pop()
    for node in sorted({*told, *first, *voters}):
        actions = told.get(node, [])
        if any(action.outcome in (Outcome.UNKNOWN, Outcome.OPEN) for action in actions):
            continue
        votes = node in first
        for action in actions:
            if action.outcome is Outcome.ACKNOWLEDGED:
                votes = action.verb == GIVE
        if votes != (node in voters):
            raise Violation(
                "a vote given is kept, and one taken away is gone",
                f"node {node} should {'' if votes else 'not '}be one of the voters, which are {list(voters)}",
            )
