"""Defects of transactions, to be planted: in what coordinators decide, in markers, and in what partitions take.

Most were there once in Kafka, whose issue is named then. See `sim.planted.bugs`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.sim.checks.marked import MARKED
from penstock.sim.checks.markers import ALONE, ENDLESS, FOLLOWS, RISES, UNDER_WAY, WAITS
from penstock.sim.checks.transactions import ABORTED, CONFIRMED, OFFSETS, PREPARED, READ
from penstock.sim.judges.healed import ENDS, SERVES
from penstock.sim.planted.bug import Bug

TXN_SHARD = "penstock.core.txn.shard"
TRANSACTION = "penstock.core.txn.transaction:Transaction"
HOSTED = "penstock.coordination.hosted_shard:HostedShard"
PRODUCERS = "penstock.storage.producers.producer_state:ProducerStates"


def _ends_whatever_is_open(original: Any) -> Any:
    def asked(request: Any, known: Any) -> Any:
        is_same = known.producer_id == request.producer_id and request.epoch <= known.epoch
        if request.version >= 2 and is_same and known.state is import_module("penstock.core.txn.states").State.ONGOING:
            return original(request._replace(epoch=known.epoch), known)
        return original(request, known)

    return asked


def _takes_every_guard(original: Any) -> Any:
    return lambda self, header, guard, *, has_batches: None


def _believes_clients(original: Any) -> Any:
    async def verify(self: Any, request: Any, *rest: Any) -> Any:
        if request.version < 2:
            return dict.fromkeys(request.partitions, import_module("penstock.model.errors").ErrorCode.NONE)
        return await original(self, request, *rest)

    return verify


def _refuses_a_repeat(original: Any) -> Any:
    def check(self: Any, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> Any:
        errors, kinds = import_module("penstock.model.errors"), import_module("penstock.storage.producers.transactions")
        found = original(self, producer_id, epoch, coordinator_epoch, version)
        if found is kinds.MarkerCheck.ALREADY_THERE:
            raise errors.ApiError(errors.ErrorCode.INVALID_PRODUCER_EPOCH, "the marker has the epoch of the last one")
        return found

    return check


def _rises_twice(original: Any) -> Any:
    def fenced(self: Any, version: int, now_ms: int) -> Any:
        once = original(self, version, now_ms)
        return once._replace(epoch=once.epoch + 1)

    return fenced


def _is_never_used_up(original: Any) -> Any:
    return property(lambda self: False)


def _knows_before_it_is_written(original: Any) -> Any:
    def raise_epoch(self: Any, request: Any, known: Any, *rest: Any) -> None:
        original(self, request, known, *rest)
        out = rest[1]
        if out.records:
            self.transactions[known.transactional_id] = out.records[-1].transaction

    return raise_epoch


def _stays_pending(original: Any) -> Any:
    def not_appended(self: Any, outcome: Any, error: Any) -> None:
        original(self, outcome, error)
        pending = vars(self.shard).setdefault("pending_ids", set())
        pending.update(one.transaction.transactional_id for one in outcome.records if hasattr(one, "transaction"))

    return not_appended


def _asks_what_is_pending(original: Any) -> Any:
    def of_producer(self: Any, transactional_id: str, *rest: Any) -> Any:
        if transactional_id in vars(self).get("pending_ids", ()):
            return None, import_module("penstock.model.errors").ErrorCode.CONCURRENT_TRANSACTIONS
        return original(self, transactional_id, *rest)

    return of_producer


def _goes_by_open_ones(original: Any) -> Any:
    return lambda self, high_watermark: next(iter(self._open), None)


def _carries_out_at_once(original: Any) -> Any:
    def carry_out(self: Any, life: int, end: int, deeds: list[Any], code: Any) -> None:
        for deed in deeds:
            self._kind.carry_out(deed, self)

    return carry_out


def _forgets_what_is_due(original: Any) -> Any:
    def loaded(self: Any, now_ms: int) -> Any:
        outcome = original(self, now_ms)
        outcome.deeds.clear()
        return outcome

    return loaded


def _counts_at_once(original: Any) -> Any:
    def replay(self: Any, record: Any) -> None:
        original(self, getattr(record, "commit", record))

    return replay


def _nothing_is_open(original: Any) -> Any:
    return lambda self: iter(())


def _keeps_its_time_out(original: Any) -> Any:
    def init(self: Any, request: Any, *rest: Any, **options: Any) -> None:
        is_known = request.transactional_id in self.transactions
        original(self, request._replace(is_decided_outside=False) if is_known else request, *rest, **options)

    return init


def _knows_the_present_id(original: Any) -> Any:
    def asked(request: Any, known: Any) -> Any:
        if known.producer_id != request.producer_id:
            return import_module("penstock.model.errors").ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return original(request, known)

    return asked


def _waits_for_nobody(original: Any) -> Any:
    def store_ended(self: Any, ended: Any, out: Any, now_ms: int) -> None:
        if ended.partitions:
            original(self, ended, out, now_ms)
        else:
            self._store(ended, out)

    return store_ended


def _has_no_last_epoch(original: Any) -> Any:
    return property(lambda self: False)


def _ends_in_the_last_epoch(original: Any) -> Any:
    def asked(request: Any, known: Any) -> Any:
        largest = import_module(TXN_SHARD).LARGEST_EPOCH
        if request.epoch == known.epoch == largest:
            return original(request._replace(epoch=largest - 1), known._replace(epoch=largest - 1))
        return original(request, known)

    return asked


def _serves_the_last_epoch(original: Any) -> Any:
    def of_producer(self: Any, transactional_id: str, producer_id: int, epoch: int) -> Any:
        known = self.transactions.get(transactional_id)
        if known is not None and known.epoch_of(producer_id) == epoch:
            return known, import_module("penstock.model.errors").ErrorCode.NONE
        return original(self, transactional_id, producer_id, epoch)

    return of_producer


def _removes_markers(original: Any) -> Any:
    rewrite = import_module("penstock.storage.cleaner.rewrite")
    return lambda self, data, at, header, keeps_empty: rewrite._emptied(header) if keeps_empty else None


def _loads_no_aborted(original: Any) -> Any:
    def load_aborted(self: Any) -> None:
        for segment in self.segments:
            segment.transaction_index = None

    return load_aborted


TRANSACTION_BUGS = (
    Bug(
        "ends-the-next",
        "an EndTxn that arrives late ends the transaction that is open by then, whatever its epoch (KAFKA-17754)",
        ABORTED,
        ((f"{TXN_SHARD}:_asked", _ends_whatever_is_open),),
    ),
    Bug(
        "opens-late",
        "a batch that arrives after the end of its transaction opens another, which nobody ends (KIP-890)",
        UNDER_WAY,
        (
            ("penstock.storage.producers.verification:Guards.check", _takes_every_guard),
            ("penstock.coordination.verification:Verifier.verify", _believes_clients),
        ),
    ),
    Bug(
        "refuses-a-repeated-marker",
        "a marker that a partition has already is refused, each time that it comes (KAFKA-19999)",
        ENDS,
        ((f"{PRODUCERS}.check_marker", _refuses_a_repeat),),
    ),
    Bug(
        "rises-twice",
        "fencing a producer raises its epoch by two (KAFKA-19367)",
        RISES,
        ((f"{TRANSACTION}.fenced", _rises_twice),),
    ),
    Bug(
        "never-used-up",
        "epochs go on beyond the largest one of a producer id (KAFKA-18660)",
        ENDLESS,
        ((f"{TRANSACTION}.is_exhausted", _is_never_used_up),),
    ),
    Bug(
        "knows-before-it-writes",
        "an epoch is raised in memory, also where that cannot be written (KAFKA-9666)",
        ALONE,
        ((f"{TXN_SHARD}:TransactionShard._raise_epoch", _knows_before_it_is_written),),
    ),
    Bug(
        "stays-pending",
        "what could not be written stays pending, and partitions are neither added nor verified (KAFKA-14904)",
        SERVES,
        (
            (f"{HOSTED}._not_appended", _stays_pending),
            (f"{TXN_SHARD}:TransactionShard._of_producer", _asks_what_is_pending),
        ),
    ),
    Bug(
        "stable-too-early",
        "a last stable offset passes a transaction whose marker is not replicated",
        WAITS,
        (("penstock.storage.producers.transactions:Transactions.first_unstable_offset", _goes_by_open_ones),),
    ),
    Bug(
        "marks-undecided",
        "markers are sent before the decision that they carry out is committed",
        FOLLOWS,
        ((f"{HOSTED}._carry_out", _carries_out_at_once),),
    ),
    Bug(
        "marks-once",
        "a coordinator that takes over does not send the markers that are due",
        ENDS,
        ((f"{TXN_SHARD}:TransactionShard.loaded", _forgets_what_is_due),),
    ),
    Bug(
        "counts-at-once",
        "offsets that a transaction commits count before it does",
        OFFSETS,
        (("penstock.core.group.shard:GroupShard.replay", _counts_at_once),),
    ),
    Bug(
        "keeps-its-timeout",
        "a transactional id that is known already keeps a timeout under two-phase commit (KIP-939 in Kafka 4.3)",
        PREPARED,
        ((f"{TXN_SHARD}:TransactionShard._init", _keeps_its_time_out),),
    ),
    Bug(
        "knows-the-present-id",
        "a commit that is told again, after it has used up the epochs of its producer id, is refused (FLINK-40689)",
        CONFIRMED,
        ((f"{TXN_SHARD}:_asked", _knows_the_present_id),),
    ),
    Bug(
        "waits-for-nobody",
        "the end of a transaction to which nothing was added waits for markers that nobody writes (FLINK-31363)",
        ENDS,
        ((f"{TXN_SHARD}:TransactionShard._store_ended", _waits_for_nobody),),
    ),
    Bug(
        "has-no-last-epoch",
        "an abort that comes after the coordinator's own is confirmed with the last epoch, which is for markers alone, "
        "and a producer may work with it (KAFKA-20090)",
        ENDLESS,
        (
            (f"{TRANSACTION}.has_last_epoch", _has_no_last_epoch),
            (f"{TXN_SHARD}:_asked", _ends_in_the_last_epoch),
            (f"{TXN_SHARD}:TransactionShard._of_producer", _serves_the_last_epoch),
        ),
    ),
    Bug(
        "removes-markers",
        "compaction removes markers of transactions whose records are still there",
        MARKED,
        (("penstock.storage.cleaner.rewrite:_Cleaning._filter_control", _removes_markers),),
    ),
    Bug(
        "loads-no-aborted",
        "a broker that recovers a log forgets which transactions in it were aborted",
        READ,
        (("penstock.storage.recovery:RecoveredLog.load_aborted", _loads_no_aborted),),
    ),
    Bug(
        "forgets-open-offsets",
        "a coordinator of groups that loads its log forgets the offsets of open transactions",
        OFFSETS,
        (("penstock.coordination.loading:Latest.still_open", _nothing_is_open),),
    ),
)
