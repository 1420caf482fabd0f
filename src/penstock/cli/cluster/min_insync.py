"""min.insync.replicas and too few replicas: a warning after a change of settings, and the reason why writes wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.reach.connection import Target
    from penstock.sdk import BlockingAdmin, TopicInfo

LOOK_S = 2.0
MIN_INSYNC = "min.insync.replicas"
NAMED = 5


def warn_of_topic(admin: BlockingAdmin, name: str) -> None:
    """Warn after a topic was created or changed: more in-sync replicas are required than it has. Kafka accepts that."""
    with suppress(PenstockError):  # the change itself is done, and this check is extra
        replicas = _fewest(admin.topic(name))
        for asked in admin.configs("topic", name):
            if asked.name == MIN_INSYNC and _number(asked.value) > replicas:
                whose = "" if asked.source == "topic" else " (the brokers' setting)"
                _warn(
                    f"{MIN_INSYNC}={asked.value}{whose}, but {name} has {replicas} replica{'s' * (replicas != 1)}: "
                    f"the effective value is {replicas}, and acks=all waits for no more"
                )


def warn_of_all_topics(admin: BlockingAdmin, value: str | None) -> None:
    """Warn after the brokers' setting, the default of topics without their own, was changed to `value`."""
    with suppress(PenstockError):
        few = [topic for topic in admin.topics() if _fewest(topic) < _number(value)]
        if few:
            _warn(
                f"{MIN_INSYNC}={value}, but {_names(few)} fewer replicas: the effective value is the number of "
                "replicas, and acks=all waits for no more"
            )


def too_few_in_sync(target: Target, topic: str, partition: int | None) -> PenstockError | None:
    """The error if writes with acks=all fail for lack of in-sync replicas; None if not, or if no broker answers.

    librdkafka tries again until its timeout, and then hides the error of the broker. `partition`: None for any.
    """
    with suppress(PenstockError), replace(target, timeout_s=min(target.timeout_s, LOOK_S)).admin() as admin:
        settings = {one.name: one.value for one in admin.configs("topic", topic)}
        least = _number(settings.get(MIN_INSYNC))
        few = [
            one
            for one in admin.topic(topic).partitions
            if len(one.isr) < min(least, len(one.replicas)) and not one.is_offline and partition in (None, one.id)
        ]
        if few:
            first = few[0]
            more = f" (and the same for {len(few) - 1} more partition{'s' * (len(few) > 2)})" if len(few) > 1 else ""
            missing = ", ".join(str(replica) for replica in first.replicas if replica not in first.isr)
            return PenstockError(
                f"{topic}-{first.id} has {len(first.isr)} in-sync replica{'s' * (len(first.isr) != 1)}, but "
                f"{MIN_INSYNC} is {least}{more}. Writes with acks=all are refused: start broker {missing} again "
                "(`penstock cluster under-replicated`)"
            )
    return None


def _fewest(topic: TopicInfo) -> int:
    """The smallest number of replicas: a reassignment may give each partition another number."""
    return min((len(one.replicas) for one in topic.partitions), default=0)


def _names(topics: Sequence[TopicInfo]) -> str:
    named = ", ".join(topic.name for topic in topics[:NAMED])
    more = len(topics) - NAMED
    return f"{named}{f' and {more} more' if more > 0 else ''} {'has' if len(topics) == 1 else 'have'}"


def _number(value: str | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0


def _warn(sentence: str) -> None:
    click.echo(f"penstock: warning: {sentence}", err=True)
