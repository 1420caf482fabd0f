"""`penstock topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments.naming import TOPIC_NAME, named
from penstock.cli.arguments.numbers import PARTITIONS, Number
from penstock.cli.arguments.pairs import parse_pairs
from penstock.cli.arguments.setting_names import known_names
from penstock.cli.cluster.min_insync import warn_of_topic
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, complete_topics, json_option
from penstock.cli.reach.no_controller import warn_of_old_news
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin, TopicPartition

LOST_WITH = {
    "__consumer_offsets": "all groups and their committed offsets",
    "__transaction_state": "the state of all transactions",
    "__share_group_state": "the positions of all share groups",
}
"""The loss with each internal topic. The protocol lets any client delete these topics, as in Kafka."""

name_option = click.option(
    "--name", type=TOPIC_NAME, required=True, help="Name of the topic.", shell_complete=complete_topics
)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


@topics.command("create")
@click.option("--name", type=TOPIC_NAME, required=True, help="Name of the new topic.")
@click.option("--partitions", type=PARTITIONS, help="Number of partitions (default: the broker's setting).")
@click.option("--replication-factor", type=Number(1, 32767), help="Number of replicas (default: the broker's setting).")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the topic; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic exists.")
@json_option
@cluster_command
def create(
    target: Target,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create a topic."""
    from penstock.sdk import TopicExists

    settings = parse_pairs("--config", configs)
    with target.admin() as admin:
        try:
            with known_names("topic", settings, "penstock configs describe --topic NAME --all"):
                admin.create_topic(name, partitions, replication_factor, settings)
            created = True
        except TopicExists as error:
            if not if_not_exists:
                raise PenstockError(f"{error}; --if-not-exists accepts that") from error
            created = False
        topic = admin.topic(name)
        if created:
            warn_of_topic(admin, name)
    if as_json:
        show_json({"topic": name, "created": created, "partitions": len(topic.partitions)})
    elif created:
        click.echo(
            f"Created topic {name} with {_count(len(topic.partitions), 'partition')}, "
            f"replication factor {topic.replication_factor}."
        )
    else:
        click.echo(f"Topic {name} already exists, with {_count(len(topic.partitions), 'partition')}.")


@topics.command("list")
@click.option("--internal", "--all", is_flag=True, help="List internal topics, too.")
@json_option
@cluster_command
def list_(target: Target, internal: bool, as_json: bool) -> None:
    """List topics."""
    with target.admin() as admin:
        found = [topic for topic in admin.topics() if internal or not topic.is_internal]
    if as_json:
        show_json(
            [
                {
                    "topic": topic.name,
                    "partitions": len(topic.partitions),
                    "replication_factor": topic.replication_factor,
                    "under_replicated": sum(one.is_under_replicated for one in topic.partitions),
                }
                for topic in found
            ]
        )
    elif found:
        show_table(
            ("TOPIC", "PARTITIONS", "REPLICATION"),
            [(topic.name, len(topic.partitions), topic.replication_factor) for topic in found],
        )
    else:
        click.echo("No topics.", err=True)


@topics.command("describe", short_help="Show leader and in-sync replicas of each partition.")
@named("topic", "--name", "name", complete_topics, kind=TOPIC_NAME)
@click.option("--details", is_flag=True, help="Show replicas, offsets and changed settings, too.")
@json_option
@cluster_command
def describe(target: Target, name: str, details: bool, as_json: bool) -> None:
    """Show the partitions of a topic: leader, in-sync replicas (ISR) and eligible leader replicas (ELR)."""
    with target.admin() as admin:
        topic = admin.topic(name)
        elrs = _eligible(target, name) if any(one.is_under_replicated for one in topic.partitions) else {}
        if not details and not as_json:
            for one in topic.partitions:
                click.echo(partition_line(one.id, one.leader, one.isr, elrs.get(one.id, ())))
            warn_of_old_news(target)
            return
        # The offsets of a partition without a leader are unknown.
        led = [at for at, one in zip(topic.topic_partitions, topic.partitions, strict=True) if not one.is_offline]
        starts, ends = _bounds(admin, led)
        changed = [one for one in admin.configs("topic", name) if one.source == "topic"]
    rows = [
        (
            one.id,
            one.leader,
            list(one.replicas),
            list(one.isr),
            list(elrs.get(one.id, ())),
            starts.get(at),
            ends.get(at),
        )
        for at, one in zip(topic.topic_partitions, topic.partitions, strict=True)
    ]
    warn_of_old_news(target)
    if as_json:
        names = ("partition", "leader", "replicas", "isr", "elr", "log_start_offset", "log_end_offset")
        show_json(
            {
                "topic": name,
                "partitions": [dict(zip(names, row, strict=True)) for row in rows],
                "configs": {one.name: one.value for one in changed},
            }
        )
        return
    show_table(("PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "START", "END"), rows)
    for setting in changed:
        click.echo(f"{setting.name}={setting.value}")


def _bounds(
    admin: BlockingAdmin, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """First and end offsets of each partition; empty, with a warning, if a leader does not answer."""
    from penstock.sdk import TimedOut, Unreachable

    try:
        return admin.offsets(partitions, "earliest"), admin.offsets(partitions, "latest")
    except (TimedOut, Unreachable) as error:
        click.echo(f"penstock: warning: {error}", err=True)
        return {}, {}


def _eligible(target: Target, name: str) -> dict[int, list[int]]:
    """The eligible leader replicas of each partition."""
    from penstock.cli.reach.wire_admin import wire_admin

    with wire_admin(target) as admin:
        return {one.partition: list(one.elr) for one in admin.partitions([name])}


@topics.command("alter")
@name_option
@click.option("--partitions", type=PARTITIONS, required=True, help="New number of partitions; it can only grow.")
@json_option
@cluster_command
def alter(target: Target, name: str, partitions: int, as_json: bool) -> None:
    """Add partitions to a topic. To change its settings, use `penstock configs set`."""
    with target.admin() as admin:
        before = len(admin.topic(name).partitions)
        admin.add_partitions(name, partitions)
    if as_json:
        show_json({"topic": name, "partitions": partitions, "partitions_before": before})
    else:
        click.echo(f"Topic {name} now has {_count(partitions, 'partition')} (before: {before}).")


@topics.command("delete")
@name_option
@click.option("--if-exists", is_flag=True, help="Do not fail if the topic does not exist.")
@click.option("--force", is_flag=True, help="Delete an internal topic, too. Its data is lost.")
@json_option
@cluster_command
def delete(target: Target, name: str, if_exists: bool, force: bool, as_json: bool) -> None:
    """Delete a topic with all its records."""
    from penstock.sdk import UnknownTopic

    if name in LOST_WITH and not force:
        raise PenstockError(f"{name} is an internal topic: {LOST_WITH[name]} would be lost (--force deletes it)")
    with target.admin() as admin:
        try:
            admin.delete_topic(name)
            deleted = True
        except UnknownTopic:
            if not if_exists:
                raise
            deleted = False
    if as_json:
        show_json({"topic": name, "deleted": deleted})
    else:
        click.echo(f"Deleted topic {name}." if deleted else f"There is no topic {name}.")


def partition_line(number: int, leader: int | None, isr: Sequence[int], elr: Sequence[int] = ()) -> str:
    """`elr`: replicas outside of the ISR that may still lead; mostly empty."""
    line = f"Partition {number}: Leader={'none' if leader is None else leader}, ISR=[{','.join(map(str, isr))}]"
    return f"{line}, ELR=[{','.join(map(str, elr))}]" if elr else line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
