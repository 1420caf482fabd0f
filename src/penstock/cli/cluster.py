"""`penstock cluster`: is it well?"""

from __future__ import annotations

import sys

import click

from penstock.cli.connection import Target, cluster_command, json_option
from penstock.cli.output import show_json, show_table
from penstock.cli.topics import partition_line


@click.group()
def cluster() -> None:
    """Health of the cluster."""


@cluster.command("status")
@json_option
@cluster_command
def status(target: Target, as_json: bool) -> None:
    """Brokers, topics and partitions. The exit code is 1 when partitions are offline or under-replicated."""
    with target.admin() as admin:
        found, topics = admin.cluster(), admin.topics()
    internal = sum(topic.is_internal for topic in topics)
    partitions = [one for topic in topics for one in topic.partitions]
    offline = sum(one.is_offline for one in partitions)
    under_replicated = sum(one.is_under_replicated for one in partitions)
    state = "offline partitions" if offline else "under-replicated" if under_replicated else "healthy"
    if as_json:
        show_json(
            {
                "cluster_id": found.cluster_id,
                "status": state,
                "controller": found.controller_id,
                "brokers": [
                    {"id": one.id, "host": one.host, "port": one.port, "rack": one.rack} for one in found.brokers
                ],
                "topics": len(topics),
                "internal_topics": internal,
                "partitions": len(partitions),
                "under_replicated_partitions": under_replicated,
                "offline_partitions": offline,
            }
        )
    else:
        click.echo(f"Cluster:    {found.cluster_id}")
        click.echo(f"Status:     {state}")
        click.echo(f"Topics:     {len(topics)} ({internal} internal)")
        click.echo(
            f"Partitions: {len(partitions)} ({under_replicated} under-replicated, {offline} offline)",
        )
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


@cluster.command("under-replicated")
@json_option
@cluster_command
def under_replicated(target: Target, as_json: bool) -> None:
    """Partitions with fewer in-sync replicas than they should have."""
    with target.admin() as admin:
        found = [(topic.name, one) for topic in admin.topics() for one in topic.partitions if one.is_under_replicated]
    if as_json:
        show_json(
            [
                {
                    "topic": name,
                    "partition": one.id,
                    "leader": one.leader,
                    "replicas": list(one.replicas),
                    "isr": list(one.isr),
                }
                for name, one in found
            ]
        )
    elif found:
        for name, one in found:
            missing = ",".join(str(replica) for replica in one.replicas if replica not in one.isr)
            click.echo(f"{name} {partition_line(one.id, one.leader, one.isr)}, Missing=[{missing}]")
    else:
        click.echo("No under-replicated partitions.")
