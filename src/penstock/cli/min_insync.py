"""A warning for settings that are valid and stop every producer: more in-sync replicas asked for than there are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.clients import BlockingAdmin, TopicInfo

MIN_INSYNC = "min.insync.replicas"
NAMED = 5


def warn_of_topic(admin: BlockingAdmin, name: str) -> None:
    """After a topic was made or its settings were changed. Kafka takes such a setting, and so does the command."""
    with suppress(PenstockError):  # what was asked for is done; this is looked at besides
        replicas = _fewest(admin.topic(name))
        for asked in admin.configs("topic", name):
            if asked.name == MIN_INSYNC and _number(asked.value) > replicas:
                whose = "" if asked.source == "topic" else " (the brokers' setting)"
                _warn(
                    f"{MIN_INSYNC}={asked.value}{whose}, but {name} has {replicas} replica{'s' * (replicas != 1)}: "
                    "every write with acks=all will be refused with NOT_ENOUGH_REPLICAS. Lower it: "
                    f"penstock configs set --topic {name} {MIN_INSYNC}={replicas}"
                )


def warn_of_all_topics(admin: BlockingAdmin, value: str | None) -> None:
    """After the brokers' setting, which holds for topics without one of their own, was changed to `value`."""
    with suppress(PenstockError):
        few = [topic for topic in admin.topics() if _fewest(topic) < _number(value)]
        if few:
            _warn(
                f"{MIN_INSYNC}={value}, but {_names(few)} fewer replicas: every write with acks=all there will be "
                f"refused with NOT_ENOUGH_REPLICAS, unless the topic has a {MIN_INSYNC} of its own"
            )


def _fewest(topic: TopicInfo) -> int:
    """A reassignment may give each partition another number of them."""
    return min((len(one.replicas) for one in topic.partitions), default=0)


def _names(topics: Sequence[TopicInfo]) -> str:
    named = ", ".join(topic.name for topic in topics[:NAMED])
    more = len(topics) - NAMED
    return f"{named}{f' and {more} more' if more > 0 else ''} {'has' if len(topics) == 1 else 'have'}"


def _number(value: str | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0


def _warn(sentence: str) -> None:
    click.echo(f"penstock: warning: {sentence}", err=True)
