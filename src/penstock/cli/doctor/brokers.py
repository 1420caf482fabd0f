"""The findings of `penstock doctor` about brokers that are down, and about partitions without all their replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.cli.cluster.missing_replicas import under_replicated
from penstock.cli.cluster.voters import TriedNode, tried
from penstock.cli.doctor.command import Diagnosis
from penstock.cli.reach.connection import CONNECT_TIMEOUT_S, HANGS, REFUSED, Target
from penstock.cli.reach.probe import Probe
from penstock.cli.reach.wire_admin import wire_admin
from penstock.model.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.wire_client.requests.partitions import PartitionReplicas

NAMED = 3


def fenced_at(entrance: tuple[str, int]) -> list[TriedNode]:
    """Fenced brokers, as the broker at `entrance` knows them. Empty if that broker cannot say."""
    try:
        brokers = Probe(*entrance, CONNECT_TIMEOUT_S).all_brokers()
    except (OSError, ProtocolError):
        return []
    return [TriedNode(one.broker_id, one.host, one.port) for one in brokers if one.is_fenced]


def down(fenced: Iterable[TriedNode], told: Collection[str]) -> Iterator[Diagnosis]:
    """`told`: the subjects of earlier findings, which include the voters that are down."""
    for broker in tried(one for one in fenced if f"voter {one.node_id}" not in told):
        about = f"broker {broker.node_id}"
        if not broker.problem:
            advice = "It is starting, is catching up, or cannot reach the controller: see its log."
            yield Diagnosis("warning", about, f"{broker.address} answers, but the controller keeps it fenced", advice)
        elif broker.problem in (REFUSED, HANGS):
            yield Diagnosis("warning", about, f"is down: {broker.address}: {broker.problem}", broker.advice)
        else:
            advice = "Check that its machine is up, the network and firewalls, and its advertised.listeners."
            yield Diagnosis("warning", about, f"is down: {broker.address}: {broker.problem}", advice)


def partitions(target: Target) -> Diagnosis:
    with wire_admin(target) as admin:
        moves = admin.moves()
        found = admin.partitions()
    missing = under_replicated(found, moves)
    offline = [one for one in found if one.leader is None]
    topics = len({one.topic for one in found})
    sentence = f"{topics} with {len(found)} partitions, {len(offline)} offline, {len(missing)} under-replicated"
    if offline:
        return Diagnosis("problem", "topics", sentence, _bring_back(offline))
    if missing:
        absent = sorted({replica for one in missing.values() for replica in one.replicas if replica not in one.isr})
        where = f"Replicas are missing on {_brokers(absent)}."
        advice = f"{where} `penstock cluster under-replicated --all` shows the partitions."
        return Diagnosis("warning", "topics", sentence, advice)
    return Diagnosis("ok", "topics", sentence)


def _bring_back(offline: Sequence[PartitionReplicas]) -> str:
    """Names the brokers that may lead: the in-sync replicas, and the eligible leader replicas."""
    names = ", ".join(f"{one.topic}-{one.partition}" for one in offline[:NAMED])
    more = f" and {len(offline) - NAMED} more" if len(offline) > NAMED else ""
    may_lead = sorted({replica for one in offline for replica in (*one.isr, *one.elr)})
    needed = _brokers(may_lead) if may_lead else "the brokers of their replicas"
    return (
        f"No in-sync replica is up for {names}{more}: start {needed} again. "
        "`penstock cluster under-replicated --all` shows the partitions. If the data of these brokers is lost, "
        "`penstock cluster elect-leaders --unclean` elects other leaders, and records are lost."
    )


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"
