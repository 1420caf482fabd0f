"""`penstock transactions abort`: through the coordinator, or in one partition whose transaction hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from penstock.cli.output import confirmed, show_json
from penstock.cli.transactions.old import OldTransaction, coordinated, since
from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
    from penstock.wire_client.requests.transactions import PartitionProducer


class Hung(NamedTuple):
    """A transaction of one partition, by its first offset or by its producer."""

    partition: TopicPartition
    start_offset: int | None
    producer_id: int | None
    producer_epoch: int | None
    coordinator_epoch: int | None


def fence(admin: TransactionAdmin, transactional_id: str, *, ask: bool, as_json: bool) -> bool:
    """False: the user declined."""
    from penstock.spark.sink.operating import query_of

    known = admin.describe(transactional_id)  # it must exist: to fence an unknown id would create it
    if ask:
        where = f" in {', '.join(map(str, known.partitions))}" if known.partitions else ""
        click.echo(f"{transactional_id} is {known.state}{where}.")
        click.echo(
            f"Producer {known.producer_id} with epoch {known.producer_epoch} will be fenced: its next request fails."
        )
        query_id = query_of(transactional_id)
        if query_id is not None:
            click.echo(
                f"It belongs to Spark query {query_id}. If the query has decided to commit it, its records are lost. "
                f"`penstock pipeline sinks finish {query_id}` commits what is decided, and aborts the rest."
            )
        if not confirmed("Continue?"):
            return False
    producer_id, epoch = admin.fence(transactional_id)
    if as_json:
        show_json(
            {
                "transactional_id": transactional_id,
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "state_before": known.state,
            }
        )
    else:
        was_open = known.state == "Ongoing"
        none_open = f"No transaction of {transactional_id} was open."
        done = f"Aborted the transaction of {transactional_id}." if was_open else none_open
        click.echo(f"{done} Its producer is fenced: the epoch of producer {producer_id} is {epoch} now.")
    return True


def abort_in_partition(admin: TransactionAdmin, hung: Hung, *, ask: bool, force: bool, as_json: bool) -> bool:
    """False: the user declined."""
    producer = _look_up(admin, hung)
    if not force:
        _check_hanging(OldTransaction(producer, coordinated(admin, [producer.producer_id]).get(producer.producer_id)))
    if ask:
        click.echo(
            f"{producer.partition}: the transaction of producer {producer.producer_id}, epoch {producer.epoch}, is "
            f"open since offset {producer.start_offset}. Its last write is {since(producer.last_write_ms)} ago."
        )
        if not confirmed("Abort it?"):
            return False
    epoch = producer.coordinator_epoch if hung.coordinator_epoch is None else hung.coordinator_epoch
    admin.abort(producer.partition, producer.producer_id, producer.epoch, epoch)
    if as_json:
        show_json(
            {
                "topic": producer.partition.topic,
                "partition": producer.partition.partition,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "start_offset": producer.start_offset,
                "aborted": True,
            }
        )
    else:
        click.echo(f"Aborted the transaction of producer {producer.producer_id} in {producer.partition}.")
    return True


def _look_up(admin: TransactionAdmin, hung: Hung) -> PartitionProducer:
    here = admin.producers(hung.partition)
    see = (
        f"`penstock transactions describe-producers --topic {hung.partition.topic} "
        f"--partition {hung.partition.partition}` shows its producers"
    )
    if hung.start_offset is not None:
        found = next((one for one in here if one.start_offset == hung.start_offset), None)
        if found is None:
            raise PenstockError(f"no open transaction of {hung.partition} begins at offset {hung.start_offset}; {see}")
        return found
    found = next((one for one in here if one.producer_id == hung.producer_id), None)
    if found is None or found.start_offset is None:
        raise PenstockError(f"producer {hung.producer_id} has no open transaction in {hung.partition}; {see}")
    if found.epoch != hung.producer_epoch:
        raise PenstockError(
            f"producer {hung.producer_id} has epoch {found.epoch} in {hung.partition}, not {hung.producer_epoch}; {see}"
        )
    return found


def _check_hanging(found: OldTransaction) -> None:
    """Refuses to abort one partition of a transaction that its coordinator may commit: it would no longer be atomic."""
    known = found.known
    if known is None or found.is_hanging:
        return
    name = known.transactional_id
    alone = f"--force aborts it in {found.producer.partition} alone, whatever happens in its other partitions"
    if known.state == "Ongoing":
        raise PenstockError(
            f"this transaction does not hang: {name} is Ongoing. "
            f"`penstock transactions abort --transactional-id {name}` aborts all of it; {alone}"
        )
    raise PenstockError(
        f"this transaction does not hang: {name} is {known.state}, and its markers are being written; {alone}"
    )
