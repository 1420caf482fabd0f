"""Findings of `penstock doctor` about transactions that have held back the last stable offset for a long time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.cli.doctor.command import Diagnosis
from penstock.cli.reach.connection import Target
from penstock.cli.reach.wire_admin import transaction_admin
from penstock.cli.transactions import old
from penstock.cli.transactions.old import OldTransaction, moment, since, span
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
    from penstock.wire_client.requests.transactions import TransactionDescription

LONG_MS = 300_000
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
NAMED = 3
MOST = 10
WAIT = "consumers with read_committed cannot read past it"


def old_transactions(target: Target) -> Iterator[Diagnosis]:
    """A finding for each transaction. None if all is well, or if the brokers do not serve these requests."""
    try:
        with transaction_admin(target) as admin:
            hanging = [one for one in old.old_transactions(admin, LONG_MS) if one.is_hanging]
            known = list(_long_open(admin))
    except PenstockError as error:
        if not isinstance(error, ApiError) or error.code is not ErrorCode.UNSUPPORTED_VERSION:
            yield Diagnosis("warning", "transactions", f"they cannot be read: {error}")
        return
    by_producer: dict[int, list[OldTransaction]] = {}
    for one in hanging:
        by_producer.setdefault(one.producer.producer_id, []).append(one)
    sinks, others = _of_sinks(known)
    findings = [*map(_hanging, by_producer.values()), *map(_sink, sinks, sinks.values()), *map(_open, others)]
    yield from findings[:MOST]
    if len(findings) > MOST:
        yield Diagnosis("warning", "transactions", f"{len(findings) - MOST} more have been open for a long time")


def _long_open(admin: TransactionAdmin) -> Iterator[TransactionDescription]:
    from penstock.wire_client.requests.transactions import TransactionFilter

    for listed in admin.transactional_ids(TransactionFilter(OPEN_STATES, longer_than_ms=LONG_MS)):
        found = admin.describe(listed.transactional_id)
        if found.state in OPEN_STATES and found.start_ms is not None:
            yield found


def _hanging(parts: Sequence[OldTransaction]) -> Diagnosis:
    producer = parts[0].producer
    topic, index = producer.partition
    sentence = (
        f"producer {producer.producer_id} has left a transaction open in "
        f"{_named([one.producer.partition for one in parts])}, from offset {producer.start_offset}, and last wrote at "
        f"{moment(producer.last_write_ms)}. No coordinator will end it, and {WAIT}"
    )
    abort = f"`penstock transactions abort --topic {topic} --partition {index} --start-offset {producer.start_offset}`"
    advice = f"{abort} aborts it."
    if len(parts) > 1:
        advice = f"{abort} aborts it in that partition; repeat this for each of the others."
    return Diagnosis("problem", "transactions", sentence, advice)


def _of_sinks(
    known: Sequence[TransactionDescription],
) -> tuple[dict[str, list[TransactionDescription]], list[TransactionDescription]]:
    """Open transactions of Spark's sink by query, and all others."""
    from penstock.spark.sink.operating import query_of

    sinks: dict[str, list[TransactionDescription]] = {}
    others = []
    for one in known:
        query_id = query_of(one.transactional_id) if one.state == "Ongoing" else None
        if query_id is None:
            others.append(one)
        else:
            sinks.setdefault(query_id, []).append(one)
    return sinks, others


def _sink(query_id: str, found: Sequence[TransactionDescription]) -> Diagnosis:
    began_ms = min(one.start_ms or 0 for one in found)
    partitions = sorted({partition for one in found for partition in one.partitions})
    sentence = (
        f"Spark query {query_id}, which writes exactly once, has had {len(found)} open transaction"
        f"{'' if len(found) == 1 else 's'} in {_named(partitions)} for {since(began_ms)}, since "
        f"{moment(began_ms)}: {WAIT}"
    )
    advice = (
        "If the query is running, its batch takes long. If it is stopped, start it again, and it ends them. If it "
        f"never comes back, `penstock pipeline sinks finish {query_id}` ends them."
    )
    return Diagnosis("warning", "transactions", sentence, advice)


def _open(known: TransactionDescription) -> Diagnosis:
    began_ms = known.start_ms or 0
    name = known.transactional_id
    sentence = (
        f"{name} (producer {known.producer_id}) has been {known.state} in {_named(known.partitions)} for "
        f"{since(began_ms)}, since {moment(began_ms)}: {WAIT}"
    )
    if known.state != "Ongoing":
        return Diagnosis(
            "warning",
            "transactions",
            sentence,
            "Its outcome is decided, but not all partition leaders have written the marker yet: see their logs.",
        )
    abort = f"`penstock transactions abort --transactional-id {name}`"
    if known.is_decided_outside:
        advice = (
            "It has no timeout (two-phase commit): its application must commit or abort it, so start that again. "
            f"If nobody will decide, {abort} aborts it; if the application has already decided to commit, that loses "
            "these records."
        )
    else:
        advice = (
            f"Its producer must commit or abort it; its timeout is {span(known.timeout_ms)}. "
            f"{abort} aborts it and fences the producer."
        )
    return Diagnosis("warning", "transactions", sentence, advice)


def _named(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:NAMED]))
    return shown + (f" and {len(partitions) - NAMED} more" if len(partitions) > NAMED else "")
