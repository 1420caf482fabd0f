"""`penstock cluster`: remove brokers; add and remove voters.

A broker is removed in three steps: `drain` moves its replicas to the others, the operator stops its process, and
`remove` takes its vote and its registration away. A broker that still runs would register again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments.numbers import NUMBER
from penstock.cli.cluster.moves import (
    Carriage,
    carry_out,
    dry_run_option,
    tell_nothing_to_do,
    throttle_option,
    watch_option,
)
from penstock.cli.cluster.plans import drained, image_of, unknown_broker
from penstock.cli.output import show_json
from penstock.cli.reach.connection import Target, cluster_command, json_option, split_address
from penstock.cli.reach.wire_admin import wire_admin
from penstock.model.errors import ApiError, ConfigError, ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin

broker_argument = click.argument("broker_id", metavar="BROKER", type=NUMBER)


@click.command("drain", short_help="Move every replica off a broker.")
@broker_argument
@throttle_option
@watch_option
@dry_run_option
@json_option
@cluster_command
def drain(target: Target, broker_id: int, throttle: int | None, watch: bool, dry_run: bool, as_json: bool) -> None:
    """Move all replicas of a broker to the others, evenly and across racks, so that it can be removed.

    BROKER is the broker's id, as `cluster describe` shows it.
    """
    with wire_admin(target) as admin:
        targets = drained(admin, broker_id)
        carry_out(target, admin, targets, Carriage(throttle, watch=watch, dry_run=dry_run, as_json=as_json))
        if not targets and any(broker_id in one.replicas for one in admin.partitions()):
            tell_nothing_to_do(admin, f"broker {broker_id} holds no replicas")
        elif not targets:
            click.echo(
                f"Broker {broker_id} holds no replicas: stop it, then run `penstock cluster remove {broker_id}`",
                err=True,
            )


@click.command("remove")
@broker_argument
@click.option(
    "--force", is_flag=True, help="Remove a broker that still holds replicas. Its partitions lose these replicas."
)
@json_option
@cluster_command
def remove(target: Target, broker_id: int, force: bool, as_json: bool) -> None:
    """Remove a broker for good. Before that, move its replicas with `cluster drain`, and stop its process.

    BROKER is the broker's id, as `cluster describe` shows it.
    """
    with wire_admin(target) as admin:
        image = image_of(admin)
        is_voter = _is_voter(admin, broker_id)
        if broker_id not in image.brokers and not is_voter:
            raise unknown_broker(broker_id, image)
        held = sum(broker_id in one.replicas for topic in image.topics.values() for one in topic.partitions)
        if held and not force:
            raise PenstockError(
                f"broker {broker_id} holds {held} replica{'s' * (held > 1)}: move them away first with "
                f"`penstock cluster drain {broker_id} --watch`, or use --force to lose them"
            )
        if broker_id in image.brokers and not image.brokers[broker_id].is_fenced:
            raise PenstockError(
                f"broker {broker_id} is running and would register again: stop its process first (a broker that has "
                "just ended counts as running for some seconds)"
            )
        if is_voter:
            admin.remove_voter(broker_id)
        if broker_id in image.brokers:
            admin.unregister(broker_id)
    if as_json:
        show_json({"broker": broker_id, "removed": True, "was_voter": is_voter, "replicas": held})
    else:
        vote = " and no longer a voter" if is_voter else ""
        click.echo(f"Broker {broker_id} is no longer part of the cluster{vote}.")


def _is_voter(admin: ClusterAdmin, node_id: int) -> bool:
    return any(one.is_voter and one.node_id == node_id for one in admin.quorum().replicas)


@click.command("add-voter")
@click.argument("voter_id", metavar="ID", type=NUMBER)
@click.argument("address", metavar="HOST:PORT")
@json_option
@cluster_command
def add_voter(target: Target, voter_id: int, address: str, as_json: bool) -> None:
    """Make an observer of the metadata quorum a voter.

    ID is the node id, as `cluster quorum` shows it. HOST:PORT is the address where the other nodes reach it.
    """
    host, port = split_address(address)
    if re.search(r":\d+$", address.strip()) is None:
        raise ConfigError(
            f"{address} has no port: write HOST:PORT, the address where the other nodes reach node {voter_id}"
        )
    with wire_admin(target) as admin:
        _check_is_up(admin, voter_id)
        try:
            admin.add_voter(voter_id, (host, port))
        except ApiError as error:
            if error.code is ErrorCode.DUPLICATE_VOTER:
                raise PenstockError(f"node {voter_id} is a voter already") from error
            raise
    _tell_voter(voter_id, True, as_json)


def _check_is_up(admin: ClusterAdmin, voter_id: int) -> None:
    """Raises PenstockError if the node is a voter already, or is not up.

    The controller checks the address: it may know names and networks that this machine does not.
    """
    if _is_voter(admin, voter_id):
        raise PenstockError(f"node {voter_id} is a voter already")
    if not any(one.node_id == voter_id and not one.is_fenced for one in admin.nodes().brokers):
        raise PenstockError(f"node {voter_id} is not up in this cluster: start it first, then add it as a voter")


@click.command("remove-voter", short_help="Make a voter an observer.")
@click.argument("voter_id", metavar="ID", type=NUMBER)
@json_option
@cluster_command
def remove_voter(target: Target, voter_id: int, as_json: bool) -> None:
    """Make a voter of the metadata quorum an observer. The node stays in the cluster as a broker.

    ID is the node id, as `cluster quorum` shows it.
    """
    with wire_admin(target) as admin:
        try:
            admin.remove_voter(voter_id)
        except ApiError as error:
            if error.code is ErrorCode.VOTER_NOT_FOUND:
                raise PenstockError(
                    f"node {voter_id} is not a voter: `penstock cluster quorum` shows the voters"
                ) from error
            raise
    _tell_voter(voter_id, False, as_json)


def _tell_voter(voter_id: int, is_voter: bool, as_json: bool) -> None:
    if as_json:
        show_json({"node": voter_id, "voter": is_voter})
    else:
        click.echo(f"Node {voter_id} {'is a voter now' if is_voter else 'is no longer a voter'}.")
