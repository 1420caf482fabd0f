"""`penstock cluster`: the health of the cluster, its brokers and its quorum.

The commands that change the cluster are in `moves` and `members`.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster.members import add_voter, drain, remove, remove_voter
from penstock.cli.cluster.missing_replicas import Replicas, under_replicated
from penstock.cli.cluster.moves import balance, cancel_reassignment, elect_leaders, reassign, reassignments
from penstock.cli.cluster.secret import secret
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, json_option
from penstock.cli.reach.wire_admin import wire_admin
from penstock.cli.topics import partition_line
from penstock.model.errors import ApiError, ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin
    from penstock.wire_client.requests.brokers import ClusterNodes
    from penstock.wire_client.requests.partitions import PartitionReplicas
    from penstock.wire_client.requests.quorum import QuorumInfo

LOOK_EVERY_S = 1.0
SILENT_S = 5.0


@click.group()
def cluster() -> None:
    """Show the health of the cluster and its brokers, and move replicas between them."""


@cluster.command("status")
@json_option
@cluster_command
def status(target: Target, as_json: bool) -> None:
    """Show brokers, topics and partitions. The exit code is 1 if partitions are offline or under-replicated."""
    with wire_admin(target) as wire:
        down = [one for one in _decided_nodes(wire).brokers if one.is_fenced]
        missing = len(_missing(wire))
    with target.admin() as admin:
        found, topics = admin.cluster(), admin.topics()
    internal = sum(topic.is_internal for topic in topics)
    partitions = [one for topic in topics for one in topic.partitions]
    offline = sum(one.is_offline for one in partitions)
    state = "offline partitions" if offline else "under-replicated" if missing else "healthy"
    if as_json:
        show_json(
            {
                "cluster_id": found.cluster_id,
                "status": state,
                "controller": found.controller_id,
                "brokers": [
                    {"id": one.id, "host": one.host, "port": one.port, "rack": one.rack} for one in found.brokers
                ],
                "down": [one.node_id for one in down],
                "topics": len(topics),
                "internal_topics": internal,
                "partitions": len(partitions),
                "under_replicated_partitions": missing,
                "offline_partitions": offline,
            }
        )
    else:
        click.echo(f"Cluster:    {found.cluster_id}")
        click.echo(f"Status:     {state}")
        click.echo(f"Topics:     {len(topics)} ({internal} internal)")
        click.echo(
            f"Partitions: {len(partitions)} ({missing} under-replicated, {offline} offline)",
        )
        if down:
            click.echo(f"Down:       {', '.join(f'broker {one.node_id} ({one.host}:{one.port})' for one in down)}")
        leaders = [one.leader for one in partitions]
        show_table(
            ("BROKER", "ADDRESS", "LEADS", "ROLE"),
            [
                (one.id, one.address, leaders.count(one.id), "controller" if one.id == found.controller_id else "")
                for one in found.brokers
            ],
        )
    if state != "healthy":
        sys.exit(1)


def _decided_nodes(admin: ClusterAdmin) -> ClusterNodes:
    """Without a controller nobody notices brokers that are down: an error is better than old metadata."""
    try:
        admin.quorum()
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    return admin.nodes()


@cluster.command("describe", short_help="Show brokers, their state and their replicas.")
@json_option
@cluster_command
def describe(target: Target, as_json: bool) -> None:
    """Show all brokers, also those that are down (fenced): rack, state, replicas and leaderships."""
    with wire_admin(target) as admin:
        found, partitions = _decided_nodes(admin), admin.partitions()
    holds = [replica for one in partitions for replica in one.replicas]
    leads = [one.leader for one in partitions]
    if as_json:
        show_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller_id,
                "brokers": [
                    {
                        "id": one.node_id,
                        "host": one.host,
                        "port": one.port,
                        "rack": one.rack,
                        "fenced": one.is_fenced,
                        "replicas": holds.count(one.node_id),
                        "leaders": leads.count(one.node_id),
                    }
                    for one in found.brokers
                ],
            }
        )
        return
    click.echo(f"Cluster:    {found.cluster_id}")
    click.echo(f"Controller: {'none' if found.controller_id is None else found.controller_id}")
    show_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "REPLICAS", "LEADS"),
        [
            (
                one.node_id,
                f"{one.host}:{one.port}",
                one.rack,
                "fenced" if one.is_fenced else "up",
                holds.count(one.node_id),
                leads.count(one.node_id),
            )
            for one in found.brokers
        ],
    )


@cluster.command("quorum", short_help="Show the voters and observers of the metadata quorum.")
@json_option
@cluster_command
def quorum(target: Target, as_json: bool) -> None:
    """Show the voters and observers of the metadata quorum, and the lag of each."""
    with wire_admin(target) as admin:
        found = admin.quorum()
    # By the leader's clock, since this machine's may differ. The leader's own entry is the present time.
    now_ms = max((one.last_fetch_ms or 0 for one in found.replicas), default=0)
    if as_json:
        show_json(
            {
                "leader": found.leader_id,
                "leader_epoch": found.leader_epoch,
                "high_watermark": found.high_watermark,
                "replicas": [
                    {
                        "id": one.node_id,
                        "voter": one.is_voter,
                        "log_end_offset": one.log_end_offset,
                        "lag": found.lag(one),
                        "last_fetch_ms": one.last_fetch_ms,
                        "last_caught_up_ms": one.last_caught_up_ms,
                        "host": one.address[0] if one.address else None,
                        "port": one.address[1] if one.address else None,
                    }
                    for one in found.replicas
                ],
            }
        )
        return
    click.echo(f"Leader:         {found.leader_id} (epoch {found.leader_epoch})")
    click.echo(f"High watermark: {found.high_watermark}")
    show_table(
        ("NODE", "ROLE", "ADDRESS", "LOG END", "LAG", "HEARD", "CAUGHT UP"),
        [
            (
                one.node_id,
                "leader" if one.node_id == found.leader_id else "voter" if one.is_voter else "observer",
                f"{one.address[0]}:{one.address[1]}" if one.address else None,
                one.log_end_offset,
                found.lag(one),
                _ago(one.last_fetch_ms, now_ms),
                _ago(one.last_caught_up_ms, now_ms),
            )
            for one in found.replicas
        ],
    )
    _tell_silent(found, now_ms)


def _tell_silent(found: QuorumInfo, now_ms: int) -> None:
    """Names silent voters: their times in the table are easily overlooked."""
    for one in found.replicas:
        silent_s = (now_ms - one.last_fetch_ms) / 1000 if one.last_fetch_ms is not None else 0.0
        if one.is_voter and silent_s > SILENT_S:
            click.echo(
                f"The leader has not heard from voter {one.node_id} for {silent_s:.0f} s: `penstock doctor` shows more",
                err=True,
            )


def _ago(at_ms: int | None, now_ms: int) -> str | None:
    return None if at_ms is None else f"{max(0, now_ms - at_ms) / 1000:.1f} s ago"


@cluster.command("under-replicated", short_help="Show partitions with missing in-sync replicas.")
@click.option("--watch", is_flag=True, help="Keep running and print changes; Ctrl-C ends.")
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Show the partitions of internal topics, too. Without --all they are only counted.",
)
@json_option
@cluster_command
def show_under_replicated(target: Target, watch: bool, is_all: bool, as_json: bool) -> None:
    """Show partitions with missing in-sync replicas. Standard output stays empty if there are none."""
    with wire_admin(target) as admin:
        found = _missing(admin)
        _show_under_replicated({}, found, is_all=is_all, as_json=as_json)
        is_silent = False
        while watch:
            time.sleep(LOOK_EVERY_S)
            try:
                before, found = found, _missing(admin)
            except PenstockError as error:
                if not is_silent:
                    click.echo(f"The cluster does not answer, trying again: {error}", err=True)
                is_silent = True
                continue
            if is_silent:
                click.echo("The cluster answers again.", err=True)
            is_silent = False
            if before != found:
                _show_under_replicated(before, found, is_all=is_all, as_json=as_json)


def _show_under_replicated(before: Replicas, found: Replicas, *, is_all: bool, as_json: bool) -> None:
    """Prints the number of partitions, and each partition that is new or has changed."""
    if as_json:
        show_json([_replica_object(one) for one in found.values()])
        return
    click.echo(_summary(found, is_all=is_all), err=True)
    for key, one in found.items():
        if before.get(key) != one and (is_all or not _is_internal(key)):
            click.echo(_missing_line(one))
    for key in before:
        if key not in found and (is_all or not _is_internal(key)):
            click.echo(f"{key[0]} Partition {key[1]}: all replicas are in sync again")


def _summary(found: Replicas, *, is_all: bool) -> str:
    count, internal = len(found), sum(map(_is_internal, found))
    if not count:
        return "No under-replicated partitions."
    hidden = f", {internal} of them in internal topics" + ("" if is_all else " (--all shows them)") if internal else ""
    return f"{count} under-replicated partition{'s' * (count > 1)}{hidden}:"


def _is_internal(partition: tuple[str, int]) -> bool:
    return partition[0].startswith("__")


def _missing(admin: ClusterAdmin) -> Replicas:
    """Asks for the moves first: only the controller knows them, so that this fails without a controller."""
    moves = admin.moves()
    return under_replicated(admin.partitions(), moves)


def _missing_line(one: PartitionReplicas) -> str:
    missing = ",".join(str(replica) for replica in one.replicas if replica not in one.isr)
    return f"{one.topic} {partition_line(one.partition, one.leader, one.isr, one.elr)}, Missing=[{missing}]"


def _replica_object(one: PartitionReplicas) -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "elr": list(one.elr),
    }


@cluster.command("features", short_help="Show features and their levels.")
@json_option
@cluster_command
def features(target: Target, as_json: bool) -> None:
    """Show the features that the brokers support, and the level of each that is in force in the cluster."""
    with wire_admin(target) as admin:
        found = admin.features()
    if as_json:
        show_json(
            [
                {"feature": one.name, "min_level": one.min_level, "max_level": one.max_level, "level": one.finalized}
                for one in found
            ]
        )
    elif found:
        show_table(
            ("FEATURE", "SUPPORTED", "LEVEL"),
            [
                (one.name, None if one.max_level is None else f"{one.min_level} to {one.max_level}", one.finalized)
                for one in found
            ],
        )
    else:
        click.echo("No features.", err=True)


for command in (
    elect_leaders,
    reassign,
    balance,
    reassignments,
    cancel_reassignment,
    drain,
    remove,
    add_voter,
    remove_voter,
    secret,
):
    cluster.add_command(command)
