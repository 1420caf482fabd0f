"""What `penstock doctor` says of brokers that are down, and of the partitions that miss them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.cli.cluster.missing_replicas import under_replicated
from penstock.cli.cluster.voters import Voter, tried
from penstock.cli.doctor.command import Finding
from penstock.cli.reach.connection import CONNECT_TIMEOUT_S, HANGS, REFUSED, Target
from penstock.cli.reach.probe import Probe
from penstock.cli.reach.wire_admin import wire_admin
from penstock.model.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster_admin import PartitionReplicas

NAMED = 3


def fenced_at(entrance: tuple[str, int]) -> list[Voter]:
    """Brokers that the controller has given up, as the broker at `entrance` knows them. None where it cannot tell."""
    try:
        brokers = Probe(*entrance, CONNECT_TIMEOUT_S).all_brokers()
    except (OSError, ProtocolError):
        return []
    return [Voter(one.broker_id, one.host, one.port) for one in brokers if one.is_fenced]


def down(fenced: Iterable[Voter], told: Collection[str]) -> Iterator[Finding]:
    """`told`: what the findings from before are about; a voter that is down is among them."""
    for broker in tried(one for one in fenced if f"voter {one.node_id}" not in told):
        about = f"broker {broker.node_id}"
        if not broker.problem:
            advice = "It starts, catches up or cannot reach the controller: its log says more."
            yield Finding("warning", about, f"{broker.address} answers, but the controller has not let it in", advice)
        elif broker.problem in (REFUSED, HANGS):
            yield Finding("warning", about, f"is down: {broker.address}: {broker.problem}", broker.advice)
        else:
            advice = "Is its machine up? Check the network and firewalls, and its advertised.listeners."
            yield Finding("warning", about, f"is down: {broker.address}: {broker.problem}", advice)


def partitions(target: Target) -> Finding:
    with wire_admin(target) as admin:
        moves = admin.moves()
        found = admin.partitions()
    missing = under_replicated(found, moves)
    offline = [one for one in found if one.leader is None]
    topics = len({one.topic for one in found})
    sentence = f"{topics} with {len(found)} partitions, {len(offline)} offline, {len(missing)} under-replicated"
    if offline:
        return Finding("problem", "topics", sentence, _bring_back(offline))
    if missing:
        absent = sorted({replica for one in missing.values() for replica in one.replicas if replica not in one.isr})
        advice = f"They miss {_brokers(absent)}; `penstock cluster under-replicated --all` shows which."
        return Finding("warning", "topics", sentence, advice)
    return Finding("ok", "topics", sentence)


def _bring_back(offline: Sequence[PartitionReplicas]) -> str:
    """Who may lead them: those in sync, and those that were when it fell below min.insync.replicas."""
    names = ", ".join(f"{one.topic}-{one.partition}" for one in offline[:NAMED])
    more = f" and {len(offline) - NAMED} more" if len(offline) > NAMED else ""
    may_lead = sorted({replica for one in offline for replica in (*one.isr, *one.elr)})
    who = _brokers(may_lead) if may_lead else "their replicas"
    return (
        f"Nobody in sync is alive for {names}{more}: bring {who} back. "
        "`penstock cluster under-replicated --all` shows them; "
        "`penstock cluster elect-leaders --unclean` is for what is gone for good, and loses records."
    )


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"
