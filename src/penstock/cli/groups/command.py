"""`penstock groups`: list, describe, explain, reset-offsets, delete."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments.naming import NAME, named
from penstock.cli.arguments.numbers import INT64_MAX, Number
from penstock.cli.arguments.times import PointInTime
from penstock.cli.groups.story import fetch_story, story_lines
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, complete_groups, complete_topics, json_option
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin, GroupInfo, PartitionLag, ShiftBy, TopicPartition
    from penstock.sdk.records import Position

group_option = click.option(
    "--group", "group_id", type=NAME, required=True, help="Name of the group.", shell_complete=complete_groups
)
group_name = partial(named, "group", "--group", "group_id", complete_groups)
NO_MEMBER = "(no member)"


@click.group()
def groups() -> None:
    """List, describe, explain, reset and delete consumer groups."""


@groups.command("list")
@json_option
@cluster_command
def list_(target: Target, as_json: bool) -> None:
    """List consumer groups."""
    with target.admin() as admin:
        found = admin.groups()
    if as_json:
        show_json([{"group": one.group_id, "state": one.state, "protocol": one.protocol} for one in found])
    elif found:
        show_table(("GROUP", "STATE", "PROTOCOL"), [(one.group_id, one.state, one.protocol) for one in found])
    else:
        click.echo("No groups.", err=True)


@groups.command("describe", short_help="Show members, their partitions and their lag.")
@group_name(required=True)
@json_option
@cluster_command
def describe(target: Target, group_id: str, as_json: bool) -> None:
    """Show the members of a group, their partitions and their lag.

    Partitions with committed offsets but without a member are listed under (no member).
    """
    with target.admin() as admin:
        group, lags = admin.group(group_id), admin.lag(group_id)
    if as_json:
        show_json(_described(group, lags))
        return
    names = group.names()
    by_member: dict[str | None, list[PartitionLag]] = {member.member_id: [] for member in group.members}
    for one in lags:
        by_member.setdefault(one.member_id, []).append(one)
    for member_id, held in by_member.items():
        name = NO_MEMBER if member_id is None else names.get(member_id, member_id)
        click.echo(f"{name}: Partitions [{_partitions(held)}], Lag: {_total(held)}")
    if not by_member:
        click.echo(f"Group {group_id} is {group.state.lower()} and has committed nothing.", err=True)


@groups.command("explain")
@group_name(required=True)
@click.option("--all", "show_all", is_flag=True, help="Show every member of large assignments.")
@json_option
@cluster_command
def explain(target: Target, group_id: str, show_all: bool, as_json: bool) -> None:
    """Show the history of a group: members and rebalances.

    The history names members that joined, left, timed out or changed their subscription, each with the reason, and
    each rebalance with its assignment. The coordinator keeps the last events since it started.
    """
    with target.admin() as admin:
        group = admin.group(group_id)
    told = fetch_story(target, group_id)
    if as_json:
        show_json({"group": group_id, "state": group.state, "protocol": group.protocol, "story": told})
        return
    for line in story_lines(told, show_all=show_all):
        click.echo(line)
    if not told:
        click.echo(f"Nothing has happened to group {group_id} since its coordinator started.", err=True)


@groups.command("reset-offsets", short_help="Move the committed offsets of a group.")
@group_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,...]",
    shell_complete=complete_topics,
    help="A topic, or some of its partitions; repeatable.",
)
@click.option("--all-topics", is_flag=True, help="All topics with committed offsets of the group.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end: the group reads only new records.")
@click.option("--to-datetime", type=PointInTime(), help="To the first record at or after TIME (UTC).")
@click.option("--to-offset", type=Number(0, INT64_MAX), help="To this offset.")
@click.option("--shift-by", type=int, help="Forward by this number of offsets; backward if negative.")
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@json_option
@cluster_command
def reset_offsets(
    target: Target,
    group_id: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: datetime | None,
    to_offset: int | None,
    shift_by: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group, so that it reads records again or skips records.

    The group must have no members. Prints old and new offsets.
    """
    place = _place(to_earliest, to_latest, to_datetime, to_offset, shift_by)
    if bool(topics) == all_topics:
        raise click.UsageError("give --topic (repeatable) or --all-topics")
    with target.admin() as admin:
        if all_topics:
            partitions = list(admin.group_offsets(group_id))
            if not partitions:
                raise ConfigError(f"group {group_id} has committed nothing: name a --topic")
        else:
            partitions = [one for topic in topics for one in _partitions_of(admin, topic)]
        changes = admin.reset_offsets(group_id, partitions, place, dry_run=dry_run)
    if as_json:
        show_json(
            {
                "group": group_id,
                "dry_run": dry_run,
                "offsets": [
                    {"topic": one.topic, "partition": one.partition, "old": one.old, "new": one.new} for one in changes
                ],
            }
        )
        return
    show_table(
        ("GROUP", "TOPIC", "PARTITION", "OLD", "NEW"),
        [(group_id, one.topic, one.partition, one.old, one.new) for one in changes],
    )
    if dry_run:
        click.echo("Nothing was changed (--dry-run).", err=True)


@groups.command("delete")
@group_option
@json_option
@cluster_command
def delete(target: Target, group_id: str, as_json: bool) -> None:
    """Delete a group and its committed offsets. The group must have no members."""
    with target.admin() as admin:
        admin.delete_group(group_id)
    if as_json:
        show_json({"group": group_id, "deleted": True})
    else:
        click.echo(f"Deleted group {group_id}.")


def _place(
    to_earliest: bool, to_latest: bool, to_datetime: datetime | None, to_offset: int | None, shift_by: int | None
) -> Position | ShiftBy:
    from penstock.sdk import ShiftBy

    places: list[Position | ShiftBy] = []
    if to_earliest:
        places.append("earliest")
    if to_latest:
        places.append("latest")
    if to_datetime is not None:
        places.append(to_datetime)
    if to_offset is not None:
        places.append(to_offset)
    if shift_by is not None:
        places.append(ShiftBy(shift_by))
    if len(places) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-datetime, --to-offset, --shift-by")
    return places[0]


def _partitions_of(admin: BlockingAdmin, text: str) -> list[TopicPartition]:
    """TOPIC or TOPIC:0,2"""
    name, colon, numbers = text.partition(":")
    found = admin.topic(name).topic_partitions
    if not colon:
        return list(found)
    try:
        wanted = {int(number) for number in numbers.split(",")}
    except ValueError:
        raise ConfigError(f"--topic {text!r}: write TOPIC or TOPIC:0,1") from None
    missing = wanted - {one.partition for one in found}
    if missing:
        raise ConfigError(f"topic {name} has no partition {min(missing)}: it has 0 to {len(found) - 1}")
    return [one for one in found if one.partition in wanted]


def _partitions(held: list[PartitionLag]) -> str:
    """0, 1 for one topic; events: 0, 1; orders: 2 for several."""
    by_topic: dict[str, list[str]] = {}
    for one in held:
        by_topic.setdefault(one.topic, []).append(str(one.partition))
    lists = {topic: ", ".join(numbers) for topic, numbers in by_topic.items()}
    return (
        "; ".join(f"{topic}: {numbers}" for topic, numbers in lists.items())
        if len(lists) > 1
        else "".join(lists.values())
    )


def _total(held: list[PartitionLag]) -> str:
    """The sum of the known lags; - if nothing was committed."""
    known = [one.lag for one in held if one.lag is not None]
    return str(sum(known)) if known or not held else "-"


def _described(group: GroupInfo, lags: list[PartitionLag]) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol": group.protocol,
        "assignor": group.assignor,
        "coordinator": group.coordinator_id,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "instance_id": member.instance_id,
                "host": member.host,
                "partitions": [{"topic": one.topic, "partition": one.partition} for one in member.partitions],
                "lag": sum(one.lag or 0 for one in lags if one.member_id == member.member_id),
            }
            for member in group.members
        ],
        "partitions": lag_objects(lags),
    }


def lag_objects(lags: list[PartitionLag]) -> list[dict[str, object]]:
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "committed": one.committed,
            "end_offset": one.end_offset,
            "lag": one.lag,
            "member_id": one.member_id,
        }
        for one in lags
    ]
