"""`penstock transactions`: list, describe, describe-producers, find-hanging, abort."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from penstock.cli.arguments.naming import NAME, TOPIC_NAME, named
from penstock.cli.arguments.numbers import INT64_MAX, NUMBER, Number
from penstock.cli.arguments.times import Duration
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import (
    Target,
    cluster_command,
    complete_topics,
    complete_transactional_ids,
    json_option,
)
from penstock.cli.reach.wire_admin import transaction_admin
from penstock.cli.transactions.old import decided_outside, moment, old_transactions, since, span
from penstock.model.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.wire_client.requests.transactions import TransactionDescription

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN = "Ongoing"

transactional_id_name = partial(
    named, "transactional id", "--transactional-id", "transactional_id", complete_transactional_ids
)
EPOCH = Number(0, 2**15 - 1)
PRODUCER_ID = Number(0, INT64_MAX)


@click.group()
def transactions() -> None:
    """List, describe and abort transactions, and find those that hang."""


@transactions.command("list", short_help="List transactional ids and their states.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only transactional ids in this state; repeatable.",
)
@click.option(
    "--producer-id", "producer_ids", multiple=True, type=PRODUCER_ID, help="Only this producer id; repeatable."
)
@click.option(
    "--longer-than",
    "--duration-filter",
    "longer_than_ms",
    type=Duration(),
    default=None,
    help="Only transactions that have been open for longer than this: 90s, 15m, or milliseconds.",
)
@click.option(
    "--pattern",
    "--transactional-id-pattern",
    "pattern",
    default="",
    metavar="REGEX",
    help="Only transactional ids that match all of this regular expression (RE2).",
)
@json_option
@cluster_command
def list_(
    target: Target,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str,
    as_json: bool,
) -> None:
    """List transactional ids with their producer id and state.

    Ongoing (two-phase): the transaction has no timeout. Its application, or an outside coordinator, decides.
    """
    from penstock.wire_client.requests.transactions import TransactionFilter

    duration_ms = -1 if longer_than_ms is None else longer_than_ms
    with transaction_admin(target) as admin:
        found = admin.transactional_ids(TransactionFilter(states, producer_ids, duration_ms, pattern))
        outside = decided_outside(admin, [one.transactional_id for one in found if one.state == OPEN])
    if as_json:
        show_json(
            [
                {
                    "transactional_id": one.transactional_id,
                    "coordinator": one.coordinator_id,
                    "producer_id": one.producer_id,
                    "state": one.state,
                    "two_phase": one.transactional_id in outside if one.state == OPEN else None,
                }
                for one in found
            ]
        )
    elif found:
        show_table(
            ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"),
            [
                one._replace(state=f"{one.state} (two-phase)") if one.transactional_id in outside else one
                for one in found
            ],
        )
    else:
        click.echo("No transactional ids.", err=True)


@transactions.command("describe", short_help="Show state, timeout, age and partitions of a transaction.")
@transactional_id_name(required=True)
@json_option
@cluster_command
def describe(target: Target, transactional_id: str, as_json: bool) -> None:
    """Show the state, the producer, the timeout, the age and the partitions of a transactional id."""
    with transaction_admin(target) as admin:
        found = admin.describe(transactional_id)
    if as_json:
        show_json(_described(found))
        return
    is_running = found.start_ms is not None and (found.state == OPEN or found.state.startswith("Prepare"))
    age = f" for {since(found.start_ms)}, since {moment(found.start_ms)}" if is_running and found.start_ms else ""
    click.echo(f"Transactional id: {found.transactional_id}")
    click.echo(f"State:            {found.state}{age}")
    click.echo(f"Producer:         id {found.producer_id}, epoch {found.producer_epoch}")
    click.echo(f"Timeout:          {_timeout(found)}")
    click.echo(f"Coordinator:      broker {found.coordinator_id}")
    click.echo(f"Partitions:       {', '.join(map(str, found.partitions)) or 'none'}")


@transactions.command("describe-producers", short_help="Show the producers of a partition.")
@click.option("--topic", type=TOPIC_NAME, required=True, help="Name of the topic.", shell_complete=complete_topics)
@click.option("--partition", required=True, type=NUMBER, help="Number of the partition.")
@json_option
@cluster_command
def describe_producers(target: Target, topic: str, partition: int, as_json: bool) -> None:
    """Show the producers that have recently written to a partition, with the first offset of an open transaction."""
    with transaction_admin(target) as admin:
        found = admin.producers(TopicPartition(topic, partition))
    if as_json:
        show_json(
            [
                {
                    "producer_id": one.producer_id,
                    "producer_epoch": one.epoch,
                    "coordinator_epoch": one.coordinator_epoch,
                    "last_sequence": one.last_sequence,
                    "last_write_ms": one.last_write_ms,
                    "start_offset": one.start_offset,
                }
                for one in found
            ]
        )
    elif found:
        show_table(
            ("PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "LAST SEQUENCE", "LAST WRITE", "OPEN SINCE OFFSET"),
            [
                (
                    one.producer_id,
                    one.epoch,
                    one.coordinator_epoch,
                    one.last_sequence,
                    moment(one.last_write_ms),
                    one.start_offset,
                )
                for one in found
            ],
        )
    else:
        click.echo(f"No idempotent or transactional producer has written to {topic}-{partition} recently.", err=True)


@transactions.command("find-hanging", short_help="Find open transactions that no coordinator will end.")
@click.option("--topic", type=TOPIC_NAME, help="Only this topic.", shell_complete=complete_topics)
@click.option("--partition", type=NUMBER, help="Only this partition of the topic.")
@click.option(
    "--max-age",
    "max_age_ms",
    type=Duration(),
    default="15m",
    show_default=True,
    help="Ignore transactions whose last write is more recent than this: 90s, 15m, 2h. Must not be less than the "
    "brokers' transaction.max.timeout.ms.",
)
@json_option
@cluster_command
def find_hanging(target: Target, topic: str | None, partition: int | None, max_age_ms: int, as_json: bool) -> None:
    """Find open transactions that no coordinator will end.

    Such a transaction is open in a partition, but no transactional id has its producer id, or the transaction of that
    id does not have this partition. Consumers with isolation.level=read_committed never get past it.
    A two-phase transaction that its coordinator knows does not hang, however old it is.
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with transaction_admin(target) as admin:
        if topic is not None:
            admin.check_topic(topic, partition)
        topics = None if topic is None else [topic]
        found = [one for one in old_transactions(admin, max_age_ms, topics, partition) if one.is_hanging]
    if as_json:
        show_json(
            [
                {
                    "topic": producer.partition.topic,
                    "partition": producer.partition.partition,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "start_offset": producer.start_offset,
                    "last_write_ms": producer.last_write_ms,
                    "transactional_id": None if known is None else known.transactional_id,
                    "state": None if known is None else known.state,
                }
                for producer, known in found
            ]
        )
    elif not found:
        click.echo("No hanging transactions.")
    else:
        show_table(
            ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET", "LAST WRITE", "AGE", "COORDINATOR SAYS"),
            [
                (
                    *producer.partition,
                    producer.producer_id,
                    producer.epoch,
                    producer.start_offset,
                    moment(producer.last_write_ms),
                    since(producer.last_write_ms),
                    "unknown" if known is None else f"{known.transactional_id}: {known.state}",
                )
                for producer, known in found
            ],
        )
        click.echo("`penstock transactions abort --topic T --partition N --start-offset OFFSET` aborts one.", err=True)


@transactions.command("abort", short_help="Abort a transaction.")
@click.option(
    "--transactional-id",
    type=NAME,
    help="Abort the open transaction of this id, and fence its producer.",
    shell_complete=complete_transactional_ids,
)
@click.option(
    "--topic",
    type=TOPIC_NAME,
    help="Abort a hanging transaction in a partition of this topic.",
    shell_complete=complete_topics,
)
@click.option("--partition", type=NUMBER, help="Number of the partition.")
@click.option("--start-offset", type=Number(0, INT64_MAX), help="First offset of the transaction there.")
@click.option("--producer-id", type=PRODUCER_ID, help="Producer id of the transaction, in place of the offset.")
@click.option("--producer-epoch", type=EPOCH, help="The epoch of that producer; needed with --producer-id.")
@click.option(
    "--coordinator-epoch", type=NUMBER, help="Coordinator epoch of the marker (default: the last one in the partition)."
)
@click.option(
    "--force", is_flag=True, help="Abort in this partition alone, even if a coordinator knows the transaction."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@cluster_command
def abort(
    target: Target,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Abort a transaction.

    With --transactional-id its coordinator aborts the open transaction in all partitions, and the running producer is
    fenced: its next request fails. Otherwise an abort marker is written into one partition. That is for a transaction
    that hangs: `penstock transactions find-hanging` finds those.
    """
    from penstock.cli.transactions.abort import Hung, abort_in_partition, fence

    by_partition = (topic, partition, start_offset, producer_id, producer_epoch, coordinator_epoch)
    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: give --yes as well")
    if transactional_id is not None:
        if any(one is not None for one in by_partition) or force:
            raise click.UsageError("give --transactional-id alone, or --topic and --partition")
        with transaction_admin(target) as admin:
            is_done = fence(admin, transactional_id, ask=not yes, as_json=as_json)
    else:
        if topic is None or partition is None:
            raise click.UsageError("give --transactional-id, or --topic and --partition")
        if (start_offset is None) == (producer_id is None):
            raise click.UsageError("give --start-offset, or --producer-id and --producer-epoch")
        if (producer_id is None) != (producer_epoch is None):
            raise click.UsageError("--producer-id and --producer-epoch belong together")
        hung = Hung(TopicPartition(topic, partition), start_offset, producer_id, producer_epoch, coordinator_epoch)
        with transaction_admin(target) as admin:
            is_done = abort_in_partition(admin, hung, ask=not yes, force=force, as_json=as_json)
    if not is_done:
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)


def _timeout(found: TransactionDescription) -> str:
    return "never (two-phase commit)" if found.is_decided_outside else span(found.timeout_ms)


def _described(found: TransactionDescription) -> dict[str, object]:
    return {
        "transactional_id": found.transactional_id,
        "coordinator": found.coordinator_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "two_phase": found.is_decided_outside,
        "start_ms": found.start_ms,
        "partitions": [{"topic": one.topic, "partition": one.partition} for one in found.partitions],
    }
