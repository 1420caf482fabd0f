"""`penstock cluster`: elect leaders and move replicas.

A command only starts a reassignment, and the cluster finishes it: new replicas are added, catch up, and then the old
ones are removed. `--watch` shows the progress. The command that watches to the end also removes the throttle
(`throttle`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from penstock.cli.arguments.numbers import INT64_MAX, NUMBER, Number
from penstock.cli.cluster.plans import Targets, balanced, ids, parse_replicas, read_plan, replicated, show_plan
from penstock.cli.cluster.progress import progress_of, show_progress, watch_moves
from penstock.cli.cluster.throttle import UNTHROTTLE, is_throttled, remove_throttle, set_throttle
from penstock.cli.output import show_json
from penstock.cli.reach.connection import Target, cluster_command, complete_topics, json_option
from penstock.cli.reach.wire_admin import wire_admin
from penstock.model.errors import ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin
    from penstock.wire_client.requests.partitions import PartitionReplicas

LIMIT_STAYS = f"The throttle stays until you remove it with `{UNTHROTTLE}`"

throttle_option = click.option(
    "--throttle",
    type=Number(1, INT64_MAX),
    metavar="BYTES/S",
    help="Limit the bytes that each broker copies per second.",
)
watch_option = click.option("--watch", is_flag=True, help="Show the progress until the reassignment is done.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only print the plan, in the format of `cluster reassign --file`."
)


# -- leaders ------------------------------------------------------------------------------


@click.command("elect-leaders", short_help="Make the preferred replica of each partition its leader.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Only partitions of this topic; repeatable.",
)
@click.option(
    "--unclean",
    is_flag=True,
    help="If no in-sync replica is up, let any replica lead. Records that only other replicas have are lost.",
)
@json_option
@cluster_command
def elect_leaders(target: Target, topics: tuple[str, ...], unclean: bool, as_json: bool) -> None:
    """Make the preferred (first) replica of each partition its leader again, for example after a restart."""
    with wire_admin(target) as admin:
        asked = [(one.topic, one.partition) for one in admin.partitions(topics)] if topics else None
        verdicts = admin.elect_leaders(asked, is_unclean=unclean)
        elected = [one for one in verdicts if one.code is ErrorCode.NONE]
        leaders = {
            (one.topic, one.partition): one.leader for one in admin.partitions({one.topic for one in elected} or ())
        }
    refused = [one for one in verdicts if one.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)]
    if as_json:
        show_json(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "leader": leaders.get((one.topic, one.partition)),
                    "error": None if one.code is ErrorCode.NONE else one.code.name,
                }
                for one in verdicts
            ]
        )
    else:
        for one in elected:
            click.echo(f"{one.topic}-{one.partition} now has leader {leaders.get((one.topic, one.partition))}.")
        if not elected and not refused:
            what = "has a leader" if unclean else "has its preferred leader"
            click.echo(f"Nothing to do: every partition {what}.", err=True)
    if refused:
        raise PenstockError("; ".join(f"{one.topic}-{one.partition}: {one.message.rstrip('.')}" for one in refused))


# -- replicas -----------------------------------------------------------------------------


@click.command("reassign", short_help="Give partitions other replicas.")
@click.option("--topic", shell_complete=complete_topics, help="The topic.")
@click.option("--partition", type=NUMBER, help="The partition of the topic.")
@click.option(
    "--replicas", metavar="ID,ID,...", help="Its new replicas, by broker id. The first one is the preferred leader."
)
@click.option(
    "--file", "path", metavar="PLAN", help="A JSON file in the format of Kafka's kafka-reassign-partitions tool."
)
@click.option(
    "--replication-factor",
    "factor",
    type=Number(1),
    metavar="N",
    help="Give all partitions of --topic, or of all topics, N replicas. The command chooses the brokers.",
)
@throttle_option
@watch_option
@dry_run_option
@json_option
@cluster_command
def reassign(
    target: Target,
    topic: str | None,
    partition: int | None,
    replicas: str | None,
    path: str | None,
    factor: int | None,
    throttle: int | None,
    watch: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give partitions other replicas.

    Use --topic, --partition and --replicas for one partition, --file for a plan, or --replication-factor.
    """
    told: Targets = {}
    if factor is not None and (path, partition, replicas) == (None, None, None):
        pass
    elif path is not None and (topic, partition, replicas, factor) == (None, None, None, None):
        told = read_plan(path)
    elif topic is not None and partition is not None and replicas is not None and (path, factor) == (None, None):
        told = {(topic, partition): parse_replicas(replicas)}
    else:
        raise click.UsageError(
            "give --topic, --partition and --replicas; or --file; or --replication-factor, with or without --topic"
        )
    with wire_admin(target) as admin:
        targets = told if factor is None else replicated(admin, factor, topic)
        carry_out(target, admin, targets, Carriage(throttle, watch=watch, dry_run=dry_run, as_json=as_json))
        if not targets:
            tell_nothing_to_do(admin, "the plan is empty" if factor is None else _has_so_many(topic, factor))


def _has_so_many(topic: str | None, factor: int) -> str:
    what = "every topic" if topic is None else f"topic {topic}"
    return f"every partition of {what} has {_several(factor, 'replica')}"


@click.command("balance", short_help="Spread replicas and leaders evenly over the brokers.")
@throttle_option
@watch_option
@dry_run_option
@json_option
@cluster_command
def balance(target: Target, throttle: int | None, watch: bool, dry_run: bool, as_json: bool) -> None:
    """Move replicas from brokers that have many to brokers that have few, for example after a broker was added.

    The command balances the number of replicas, not bytes. It moves as few replicas as possible until brokers differ
    by at most one, as far as racks allow. Each broker then is the preferred leader of about as many partitions, in all
    and of each topic; `cluster elect-leaders` makes the preferred leaders lead at once. Partitions without a leader, or
    with a replica that is down, stay where they are.
    """
    with wire_admin(target) as admin:
        targets, left_out = balanced(admin)
        carry_out(target, admin, targets, Carriage(throttle, watch=watch, dry_run=dry_run, as_json=as_json))
        if left_out:
            click.echo(
                f"Not moved: {_several(left_out, 'partition')} without a leader or with a replica that is down "
                "(`penstock cluster under-replicated --all`)",
                err=True,
            )
        if not targets:
            tell_nothing_to_do(admin, "the replicas are spread evenly over the brokers that are up")


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def tell_nothing_to_do(admin: ClusterAdmin, is_so: str) -> None:
    under_way = len(admin.moves())
    if under_way:
        click.echo(
            f"Nothing more to do: {is_so} when {_several(under_way, 'reassignment')} under way "
            f"{'is' if under_way == 1 else 'are'} done (`penstock cluster reassignments`)",
            err=True,
        )
    else:
        click.echo(f"Nothing to do: {is_so}.", err=True)


class Carriage(NamedTuple):
    """The options for carrying out a plan."""

    throttle: int | None
    """Bytes a second."""
    watch: bool
    dry_run: bool
    as_json: bool


def carry_out(
    target: Target,
    admin: ClusterAdmin,
    targets: Targets,
    how: Carriage,
) -> None:
    """Carries out a plan. With an empty plan, `watch` shows the reassignments under way. Raises PenstockError."""
    before = (
        {(one.topic, one.partition): one for one in admin.partitions(dict.fromkeys(topic for topic, _ in targets))}
        if targets
        else {}
    )
    _check_targets(admin, targets, before)
    if how.dry_run:
        show_plan(targets)
    elif targets:
        _move(target, admin, targets, before, how)
    elif how.watch and admin.moves():
        watch_moves(admin, as_json=how.as_json)
    elif how.as_json:
        show_json([])


def _move(
    target: Target,
    admin: ClusterAdmin,
    targets: Targets,
    before: Mapping[tuple[str, int], PartitionReplicas],
    how: Carriage,
) -> None:
    """Starts the reassignments, prints them, and watches them if asked to."""
    from penstock.wire_client.requests.replicas import raise_refusals

    is_limited = how.throttle is not None
    try:
        if how.throttle is not None:
            set_throttle(target, admin, targets, how.throttle)
        raise_refusals(admin.reassign(targets), "cannot reassign")
        if not how.as_json:
            for (topic, partition), replicas in targets.items():
                old = before[topic, partition].replicas
                click.echo(f"{topic}-{partition}: from {ids(old)} to {ids(replicas)}")
        if how.watch:
            watch_moves(admin, as_json=how.as_json)
            if how.throttle is not None:
                remove_throttle(target, admin, as_json=how.as_json)
                is_limited = False
        elif how.as_json:
            show_json([_target_object(key, before[key], replicas) for key, replicas in targets.items()])
    finally:  # also after Ctrl-C or an error: some reassignments may have begun
        if is_limited:
            click.echo(LIMIT_STAYS, err=True)


def _check_targets(admin: ClusterAdmin, targets: Targets, before: Mapping[tuple[str, int], PartitionReplicas]) -> None:
    """Checks a plan before anything is changed. Raises PenstockError."""
    for topic, partition in targets:
        if (topic, partition) not in before:
            count = sum(name == topic for name, _ in before)
            raise PenstockError(f"topic {topic} has no partition {partition}: it has 0 to {count - 1}")
    known = [one.node_id for one in admin.nodes().brokers]
    for (topic, partition), replicas in targets.items():
        strangers = [new for new in replicas if new not in known and new not in before[topic, partition].replicas]
        if strangers:
            raise PenstockError(
                f"cannot move {topic}-{partition} to {ids(strangers)}: the brokers are {ids(known)} "
                "(`penstock cluster describe`)"
            )


def _target_object(key: tuple[str, int], before: PartitionReplicas, replicas: Sequence[int]) -> dict[str, object]:
    return {"topic": key[0], "partition": key[1], "from": list(before.replicas), "to": list(replicas)}


@click.command("reassignments", short_help="Show the reassignments under way.")
@watch_option
@click.option("--unthrottle", is_flag=True, help="Remove the limit of a --throttle, and name the brokers and topics.")
@json_option
@cluster_command
def reassignments(target: Target, watch: bool, unthrottle: bool, as_json: bool) -> None:
    """Show the reassignments under way: the bytes that the new replicas have, and the bytes that they need."""
    with wire_admin(target) as admin:
        if unthrottle:
            remove_throttle(target, admin, as_json=as_json)
        if watch:
            watch_moves(admin, as_json=as_json)
            return
        found = progress_of(admin)
    if as_json:
        show_json([one.as_object() for one in found])
    elif found:
        show_progress(found)
    else:
        click.echo("No reassignments under way.", err=True)


@click.command("cancel-reassignment", short_help="Cancel reassignments under way.")
@click.option("--topic", shell_complete=complete_topics, help="Reassignments of this topic.")
@click.option("--partition", type=NUMBER, help="Only the one of this partition.")
@click.option("--all", "is_all", is_flag=True, help="All reassignments under way.")
@json_option
@cluster_command
def cancel_reassignment(target: Target, topic: str | None, partition: int | None, is_all: bool, as_json: bool) -> None:
    """Cancel reassignments under way. The partitions keep the replicas that they had before."""
    from penstock.wire_client.requests.replicas import raise_refusals

    if is_all == (topic is not None) or (partition is not None and topic is None):
        raise click.UsageError("give --topic, with or without --partition, or --all")
    with wire_admin(target) as admin:
        wanted = [
            (one.topic, one.partition)
            for one in admin.moves()
            if is_all or (one.topic == topic and partition in (None, one.partition))
        ]
        if wanted:
            raise_refusals(
                [
                    one
                    for one in admin.reassign(dict.fromkeys(wanted))
                    if one.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS  # done meanwhile
                ],
                "cannot cancel the reassignment of",
            )
    if as_json:
        show_json([{"topic": name, "partition": number} for name, number in wanted])
    for name, number in () if as_json else wanted:
        click.echo(f"{name}-{number}: cancelled")
    if is_throttled(target, {name for name, _ in wanted}):
        click.echo(LIMIT_STAYS, err=True)
    if not wanted and not as_json:
        click.echo("No such reassignment is under way.", err=True)
