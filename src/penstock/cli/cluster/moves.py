"""`penstock cluster`: which broker leads, and which brokers hold what.

A reassignment is begun and goes on by itself: new replicas are added, catch up, and then the old ones go. `--watch`
only looks on. A limit on its speed (`cluster_throttle`) is taken back by whoever sees the end of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin, PartitionReplicas

LIMIT_STAYS = f"The limit stays until it is taken back: {UNTHROTTLE}"

throttle_option = click.option(
    "--throttle", type=Number(1, INT64_MAX), metavar="BYTES/S", help="How fast each broker may copy, at most."
)
watch_option = click.option("--watch", is_flag=True, help="Show the progress until it is done.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only print the plan, as `cluster reassign --file` takes it."
)


# -- leaders ------------------------------------------------------------------------------


@click.command("elect-leaders", short_help="Let the first replica of each partition lead.")
@click.option("--topic", "topics", multiple=True, shell_complete=complete_topics, help="Only of this one; repeatable.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Where nobody in sync is left, let any replica lead: records that only others have are lost.",
)
@json_option
@cluster_command
def elect_leaders(target: Target, topics: tuple[str, ...], unclean: bool, as_json: bool) -> None:
    """Let the first replica of each partition lead again, as after a restart."""
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
            click.echo(f"{one.topic}-{one.partition} is led by {leaders.get((one.topic, one.partition))} now.")
        if not elected and not refused:
            what = "has a leader" if unclean else "is led by its first replica"
            click.echo(f"Nothing to do: every partition {what}.", err=True)
    if refused:
        raise PenstockError("; ".join(f"{one.topic}-{one.partition}: {one.message.rstrip('.')}" for one in refused))


# -- replicas -----------------------------------------------------------------------------


@click.command("reassign", short_help="Give partitions other replicas.")
@click.option("--topic", shell_complete=complete_topics, help="Of which topic.")
@click.option("--partition", type=NUMBER, help="Which partition of it.")
@click.option("--replicas", metavar="ID,ID,...", help="Its new replicas; the first of them leads when it can.")
@click.option("--file", "path", metavar="PLAN", help="A plan as JSON, as Kafka's own tool writes it.")
@click.option(
    "--replication-factor",
    "factor",
    type=Number(1),
    metavar="N",
    help="So many replicas, of all partitions of --topic or of all topics; which, is up to this command.",
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
    """Give partitions other replicas: --topic, --partition and --replicas, a --file, or a --replication-factor."""
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
        carry_out(target, admin, targets, throttle=throttle, watch=watch, dry_run=dry_run, as_json=as_json)
        if not targets:
            tell_nothing_to_do(admin, "the plan is empty" if factor is None else _has_so_many(topic, factor))


def _has_so_many(topic: str | None, factor: int) -> str:
    what = "every topic" if topic is None else f"topic {topic}"
    return f"every partition of {what} has {_several(factor, 'replica')}"


@click.command("balance", short_help="Spread replicas and leaders evenly, as after a broker was added.")
@throttle_option
@watch_option
@dry_run_option
@json_option
@cluster_command
def balance(target: Target, throttle: int | None, watch: bool, dry_run: bool, as_json: bool) -> None:
    """Move replicas from brokers that have many to those that have few, as after one was added.

    By numbers, not by bytes: no more moves than it takes until brokers differ by one replica at most, as far as racks
    allow; then each is the first to lead for about as many partitions, in all and of each topic. `cluster
    elect-leaders` lets them lead at once. What has no leader, or a replica that is down, stays where it is.
    """
    with wire_admin(target) as admin:
        targets, left_out = balanced(admin)
        carry_out(target, admin, targets, throttle=throttle, watch=watch, dry_run=dry_run, as_json=as_json)
        if left_out:
            click.echo(
                f"Left where they are: {_several(left_out, 'partition')} without a leader or with a replica that is "
                "down (`penstock cluster under-replicated --all`)",
                err=True,
            )
        if not targets:
            tell_nothing_to_do(admin, "what can be moved is spread evenly over the brokers that are up")


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def tell_nothing_to_do(admin: ClusterAdmin, is_so: str) -> None:
    under_way = len(admin.moves())
    if under_way:
        click.echo(
            f"Nothing more to do: {is_so}, once {_several(under_way, 'reassignment')} under way "
            f"{'is' if under_way == 1 else 'are'} through (`penstock cluster reassignments`)",
            err=True,
        )
    else:
        click.echo(f"Nothing to do: {is_so}.", err=True)


def carry_out(
    target: Target,
    admin: ClusterAdmin,
    targets: Targets,
    *,
    throttle: int | None,
    watch: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """A plan, which may be empty: then it is what is under way already that is watched. Raises PenstockError."""
    before = (
        {(one.topic, one.partition): one for one in admin.partitions(dict.fromkeys(topic for topic, _ in targets))}
        if targets
        else {}
    )
    _check_targets(admin, targets, before)
    if dry_run:
        show_plan(targets)
    elif targets:
        _move(target, admin, targets, before, throttle=throttle, watch=watch, as_json=as_json)
    elif watch and admin.moves():
        watch_moves(admin, as_json=as_json)
    elif as_json:
        show_json([])


def _move(
    target: Target,
    admin: ClusterAdmin,
    targets: Targets,
    before: Mapping[tuple[str, int], PartitionReplicas],
    *,
    throttle: int | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Begin, say so, and look on if asked to."""
    from penstock.wire_client.blocking.cluster_admin import raise_refusals

    is_limited = throttle is not None
    try:
        if throttle is not None:
            set_throttle(target, admin, targets, throttle)
        raise_refusals(admin.reassign(targets), "cannot reassign")
        if not as_json:
            for (topic, partition), replicas in targets.items():
                old = before[topic, partition].replicas
                click.echo(f"{topic}-{partition}: from {ids(old)} to {ids(replicas)}")
        if watch:
            watch_moves(admin, as_json=as_json)
            if throttle is not None:
                remove_throttle(target, admin, as_json=as_json)
                is_limited = False
        elif as_json:
            show_json([_target_object(key, before[key], replicas) for key, replicas in targets.items()])
    finally:  # also after Ctrl-C, or a refusal: of several, some may have begun
        if is_limited:
            click.echo(LIMIT_STAYS, err=True)


def _check_targets(admin: ClusterAdmin, targets: Targets, before: Mapping[tuple[str, int], PartitionReplicas]) -> None:
    """Before anything is changed. Raises PenstockError."""
    for topic, partition in targets:
        if (topic, partition) not in before:
            count = sum(name == topic for name, _ in before)
            raise PenstockError(f"topic {topic} has no partition {partition}: it has 0 to {count - 1}")
    known = [one.node_id for one in admin.nodes().brokers]
    for (topic, partition), replicas in targets.items():
        strangers = [new for new in replicas if new not in known and new not in before[topic, partition].replicas]
        if strangers:
            raise PenstockError(
                f"cannot put {topic}-{partition} on {ids(strangers)}: brokers are {ids(known)} "
                "(`penstock cluster describe`)"
            )


def _target_object(key: tuple[str, int], before: PartitionReplicas, replicas: Sequence[int]) -> dict[str, object]:
    return {"topic": key[0], "partition": key[1], "from": list(before.replicas), "to": list(replicas)}


@click.command("reassignments", short_help="What is under way, and how far it is.")
@watch_option
@click.option("--unthrottle", is_flag=True, help="Take back the limit of a --throttle, and say of whom.")
@json_option
@cluster_command
def reassignments(target: Target, watch: bool, unthrottle: bool, as_json: bool) -> None:
    """Reassignments under way: bytes that the new replicas have, of those that they need."""
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


@click.command("cancel-reassignment", short_help="Go back to the replicas from before.")
@click.option("--topic", shell_complete=complete_topics, help="Of this topic.")
@click.option("--partition", type=NUMBER, help="Only of this partition of it.")
@click.option("--all", "is_all", is_flag=True, help="All that are under way.")
@json_option
@cluster_command
def cancel_reassignment(target: Target, topic: str | None, partition: int | None, is_all: bool, as_json: bool) -> None:
    """Take reassignments back: partitions keep the replicas that they had before."""
    from penstock.wire_client.blocking.cluster_admin import raise_refusals

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
