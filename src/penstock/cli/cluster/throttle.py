"""The throttle of reassignments: set and removed as settings of brokers and topics, as in Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import click

from penstock.cli.reach.connection import Target
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
UNTHROTTLE = "penstock cluster reassignments --unthrottle"


def set_throttle(
    target: Target, admin: ClusterAdmin, targets: Mapping[tuple[str, int], Sequence[int]], rate: int
) -> None:
    """Limits the rate of leaders and of new replicas of the partitions that move, as Kafka's tool does."""
    now = {(one.topic, one.partition): one for one in admin.partitions(dict.fromkeys(topic for topic, _ in targets))}
    sending: dict[str, list[str]] = {}
    receiving: dict[str, list[str]] = {}
    for (topic, partition), replicas in targets.items():
        known = now.get((topic, partition))
        old = known.replicas if known is not None else ()
        sending.setdefault(topic, []).extend(f"{partition}:{replica}" for replica in old)
        receiving.setdefault(topic, []).extend(f"{partition}:{new}" for new in replicas if new not in old)
    with target.admin() as settings:
        for topic in sending:
            lists = (",".join(sending[topic]), ",".join(receiving[topic]))
            settings.alter_configs("topic", topic, set_=dict(zip(REPLICAS, lists, strict=True)))
        for broker in settings.cluster().brokers:
            settings.alter_configs("broker", str(broker.id), set_=dict.fromkeys(RATES, str(rate)))


def is_throttled(target: Target, topics: Collection[str]) -> bool:
    """Whether one of the topics has a throttle; False if no broker answers."""
    with suppress(PenstockError), target.admin() as settings:
        return any(
            one.name in REPLICAS and one.source == "topic" for name in topics for one in settings.configs("topic", name)
        )
    return False


def remove_throttle(target: Target, admin: ClusterAdmin, *, as_json: bool) -> None:
    with target.admin() as settings:
        brokers = [str(one.id) for one in settings.cluster().brokers]
        brokers = [name for name in brokers if _take_back(settings, "broker", name, RATES)]
        topics = list(dict.fromkeys(one.topic for one in admin.partitions()))
        topics = [name for name in topics if _take_back(settings, "topic", name, REPLICAS)]
    freed = [_several(noun, names) for noun, names in (("broker", brokers), ("topic", topics)) if names]
    if freed:
        click.echo(f"Throttle removed from {' and '.join(freed)}.", err=as_json)
    else:
        click.echo("No throttle is set.", err=True)
    down = [str(one.node_id) for one in admin.nodes().brokers if one.is_fenced]
    if down:
        click.echo(
            f"{_several('Broker', down)} {'is' if len(down) == 1 else 'are'} down and may keep a throttle: run "
            f"`{UNTHROTTLE}` again when {'it is' if len(down) == 1 else 'they are'} up",
            err=True,
        )


def _several(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' * (len(names) > 1)} {', '.join(names)}"


def _take_back(settings: BlockingAdmin, kind: Literal["broker", "topic"], name: str, keys: Sequence[str]) -> bool:
    """Whether a throttle was removed."""
    own = [one.name for one in settings.configs(kind, name) if one.source == kind]
    stale = [key for key in keys if key in own]
    if stale:
        settings.alter_configs(kind, name, delete=stale)
    return bool(stale)
