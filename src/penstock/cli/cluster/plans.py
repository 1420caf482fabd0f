"""Plans of reassignments: from options, from a file, or computed from a goal for the cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from penstock.cli.arguments.numbers import INT32_MAX
from penstock.cli.output import show_json
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.core.metadata.image import MetadataImage
    from penstock.core.metadata.plans import Plan
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin

EXAMPLE_PLAN = '{"partitions": [{"topic": "events", "partition": 0, "replicas": [1, 2, 3]}]}'

Targets = dict[tuple[str, int], tuple[int, ...]]


# -- told ---------------------------------------------------------------------------------


def parse_replicas(text: str) -> tuple[int, ...]:
    try:
        replicas = tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of brokers: write broker ids, for example 1,2,3") from None
    _check_replicas(replicas, repr(text))
    return replicas


def _check_replicas(replicas: Sequence[int], where: str) -> None:
    if not replicas or min(replicas) < 0 or max(replicas) > INT32_MAX or len(set(replicas)) < len(replicas):
        raise ConfigError(f"{where}: replicas must be the ids of different brokers, at least one")


def read_plan(path: str) -> Targets:
    """{"partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    entries = plan.get("partitions") if isinstance(plan, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} is not a plan: write {EXAMPLE_PLAN}")
    targets: Targets = {}
    for number, entry in enumerate(entries):
        where = f"{path}, partitions[{number}]"
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: write topic, partition and replicas")
        topic, partition, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
        if not isinstance(topic, str) or not topic:
            raise ConfigError(f"{where}: topic must be the name of a topic, not {topic!r}")
        if not _is_number(partition) or not 0 <= partition <= INT32_MAX:
            raise ConfigError(f"{where}: partition must be a number from 0 on, not {partition!r}")
        if not isinstance(replicas, list) or not all(map(_is_number, replicas)):
            raise ConfigError(f"{where}: replicas must be a list of broker ids, not {replicas!r}")
        _check_replicas(replicas, where)
        if (topic, partition) in targets:
            raise ConfigError(f"{where}: {topic}-{partition} is in the plan twice")
        targets[topic, partition] = tuple(replicas)
    return targets


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# -- made ---------------------------------------------------------------------------------


def drained(admin: ClusterAdmin, broker_id: int) -> Targets:
    """Raises PenstockError for an unknown broker."""
    from penstock.core.metadata.plans import drain_plan

    image = image_of(admin)
    plan = drain_plan(image, broker_id)
    if broker_id not in image.brokers and not plan:  # a broker that was removed with --force may still have replicas
        raise unknown_broker(broker_id, image)
    return _targets(plan)


def balanced(admin: ClusterAdmin) -> tuple[Targets, int]:
    """The plan, and the number of partitions that cannot be moved now."""
    from penstock.core.metadata.plans import balance_plan, can_be_balanced

    image = image_of(admin)
    left_out = sum(not can_be_balanced(image, partition) for _, partition in image.all_partitions())
    return _targets(balance_plan(image)), left_out


def replicated(admin: ClusterAdmin, replication_factor: int, topic: str | None) -> Targets:
    """A plan that gives every partition of the topic, or of all topics, `replication_factor` replicas."""
    from penstock.core.metadata.plans import factor_plan

    image = image_of(admin)
    if topic is not None and topic not in image.topics:
        admin.partitions([topic])  # raises if the topic does not exist; it may have been created meanwhile
        image = image_of(admin)
    return _targets(factor_plan(image, replication_factor, None if topic is None else [topic]))


def _targets(plan: Plan) -> Targets:
    return {(topic, index): replicas for topic, partitions in plan.items() for index, replicas in partitions.items()}


def ids(replicas: Sequence[int]) -> str:
    return f"[{','.join(map(str, replicas))}]"


def show_plan(targets: Targets) -> None:
    """In the format of `read_plan`."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in targets.items()
    ]
    show_json({"version": 1, "partitions": partitions})


def image_of(admin: ClusterAdmin) -> MetadataImage:
    """The cluster's metadata in the form that the planning functions take."""
    from penstock.core.metadata.image import BrokerState, MetadataImage, PartitionState, TopicState

    image = MetadataImage()
    for node in admin.nodes().brokers:
        image.brokers[node.node_id] = BrokerState(
            node.node_id, 0, b"", {"": (node.host, node.port)}, node.rack, is_fenced=node.is_fenced
        )
    moves = {(one.topic, one.partition): one for one in admin.moves()}
    for one in admin.partitions():
        topic = image.topics.setdefault(one.topic, TopicState(one.topic, one.topic.encode()))
        under_way = moves.get((one.topic, one.partition))
        topic.partitions.append(
            PartitionState(
                one.partition,
                one.replicas,
                -1 if one.leader is None else one.leader,
                isr=one.isr,
                elr=one.elr,
                adding=under_way.adding if under_way is not None else (),
                removing=under_way.removing if under_way is not None else (),
            )
        )
    return image


def unknown_broker(broker_id: int, image: MetadataImage) -> PenstockError:
    return PenstockError(f"there is no broker {broker_id}; the brokers are: {', '.join(map(str, image.brokers))}")
