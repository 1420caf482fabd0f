"""The findings of `penstock doctor` about controller and voters: whether there is one, and which are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from penstock.cli.cluster.voters import Quorum, TriedNode, named_voters, quorum_at, tried, verdict, what_to_do
from penstock.cli.doctor.command import Diagnosis
from penstock.cli.reach.connection import Target
from penstock.model.errors import ApiError

SILENT_S = 5.0
UNTIL_THEN = "Without a controller no topic, setting, replica or leader can change, and writes may be refused."


def voters(target: Target, entrance: tuple[str, int], fenced: Collection[int] = ()) -> Iterator[Diagnosis]:
    """The first finding is a problem if there is no controller. No finding for a single voter, or if none can be asked.

    `fenced`: brokers that the controller has fenced.
    """
    try:
        quorum = quorum_at(target, entrance)
    except ApiError as error:
        yield from _without_controller(entrance, str(error))
    else:
        if quorum is not None and len(quorum.voters) > 1:
            yield from _with_controller(quorum, fenced)


def _without_controller(entrance: tuple[str, int], refusal: str) -> Iterator[Diagnosis]:
    found = tried(named_voters(refusal))
    if not found:
        yield Diagnosis("problem", "controller", f"{entrance[0]}:{entrance[1]} says: {refusal}", UNTIL_THEN)
        return
    advice = f"{what_to_do(found)} {UNTIL_THEN}"
    yield Diagnosis("problem", "controller", f"the cluster has no controller: {verdict(found)}", advice)
    yield from (_voter(voter, "problem") for voter in found)


def _with_controller(quorum: Quorum, fenced: Collection[int]) -> Iterator[Diagnosis]:
    """The leader says which voters are silent; this machine tries those voters to find the reason."""
    silent_s = quorum.silent_s
    suspects = tried(one for one in quorum.voters if silent_s[one.node_id] > SILENT_S or one.node_id in fenced)
    # A voter that is fenced but answers is coming back.
    silent = [one for one in suspects if one.problem or silent_s[one.node_id] > SILENT_S]
    count = len(quorum.voters)
    heard = f"{count - len(silent)} of {count} voters follow it" if silent else f"all {count} voters follow it"
    yield Diagnosis("ok", "controller", f"node {quorum.leader_id}, and {heard}")
    for voter in silent:
        yield _voter(voter, "warning") if voter.problem else _unheard(voter, quorum.leader_id)


def _voter(voter: TriedNode, state: Literal["warning", "problem"]) -> Diagnosis:
    about = f"voter {voter.node_id}"
    if not voter.problem:
        return Diagnosis("ok", about, f"{voter.address} answers")
    return Diagnosis(state, about, f"{voter.address}: {voter.problem}", voter.advice)


def _unheard(voter: TriedNode, leader_id: int) -> Diagnosis:
    return Diagnosis(
        "warning",
        f"voter {voter.node_id}",
        f"{voter.address} answers this machine, but node {leader_id} does not hear from it",
        "Check the network between the two nodes, and see both logs.",
    )
