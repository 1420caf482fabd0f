"""Named states that histories should reach, with counts, to see what the simulation has never tried.

A promise kept in a state that never occurs means nothing. There are three tables: decisions in the metadata log about a
partition, the state of a node when it ends, and observed calls of production code (`sim.places`). Rare states that must
work belong in one of them; `tests/sim` requires that none stays at zero.
Must not know: clients, checkers. Invariant: nothing here changes what nodes do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from penstock.core.metadata.image import NO_LEADER, PartitionState
from penstock.core.metadata.records import PartitionChanged
from penstock.core.raft.exchange import Change
from penstock.core.txn.states import State
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.cluster import SimCluster
from penstock.sim.places import replaced
from penstock.storage.files import CLEANED, LOG, SWAP
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.producers.producer import Producer

# -- decisions in the metadata log, each counted once --------------------------------------


def _elects_from_elr(before: PartitionState, change: PartitionChanged) -> bool:
    return change.leader in before.elr and change.leader not in before.isr


def _leads_no_more(before: PartitionState, change: PartitionChanged) -> bool:
    return change.leader == NO_LEADER


def _leaves_one(before: PartitionState, change: PartitionChanged) -> bool:
    return change.isr is not None and len(change.isr) == 1 < len(before.isr)


def _remembers_eligible(before: PartitionState, change: PartitionChanged) -> bool:
    return bool(change.elr)


def _completes_isr(before: PartitionState, change: PartitionChanged) -> bool:
    return change.isr is not None and len(change.isr) == len(before.replicas) > len(before.isr)


def _returns_to_preferred(before: PartitionState, change: PartitionChanged) -> bool:
    return change.leader == before.replicas[0] and before.leader in (before.isr if change.isr is None else change.isr)


def _moves_on(before: PartitionState, change: PartitionChanged) -> bool:
    return before.is_reassigning and change.replicas is not None and not (change.adding or change.removing)


def _ends_move(before: PartitionState, change: PartitionChanged) -> bool:
    return _moves_on(before, change) and bool(before.adding) and set(before.adding) <= set(change.replicas or ())


def _calls_off_move(before: PartitionState, change: PartitionChanged) -> bool:
    return _moves_on(before, change) and bool(before.adding) and not set(before.adding) & set(change.replicas or ())


DECIDED: Mapping[str, Callable[[PartitionState, PartitionChanged], bool]] = {
    "a leader elected from the eligible ones (KIP-966)": _elects_from_elr,
    "nobody left to lead": _leads_no_more,
    "one in-sync replica left": _leaves_one,
    "eligible ones remembered": _remembers_eligible,
    "in full sync again": _completes_isr,
    "back to the preferred leader": _returns_to_preferred,
    "replicas moved to other brokers": _ends_move,
    "a move of replicas called off": _calls_off_move,
}

# -- the state of a node when it ends ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    node: Any
    lost_power: bool
    is_network_whole: bool
    others_up: int

    @property
    def logs(self) -> list[Log]:
        return [partition.log for partition in getattr(self.node, "partitions", ())]

    @property
    def led(self) -> list[Any]:
        return _led(self.node)


def _ends_unflushed(end: End) -> bool:
    return end.lost_power and any(log.stable_offset < log.log_end_offset for log in end.logs)


def _ends_unreplicated(end: End) -> bool:
    return any(partition.high_watermark < partition.log.log_end_offset for partition in end.led)


def _ends_swapping(end: End) -> bool:
    return any(log._swap is not None for log in end.logs)


def _ends_alone(end: End) -> bool:
    return any(partition.isr == (partition.node_id,) and len(partition.replicas) > 1 for partition in end.led)


def _ends_starting(end: End) -> bool:
    return not hasattr(end.node, "cleaning")


def _ends_as_controller(end: End) -> bool:
    return hasattr(end.node, "membership") and end.node.membership.quorum.is_leader


ENDED: Mapping[str, Callable[[End], bool]] = {
    "power lost with a tail not flushed": _ends_unflushed,
    "a leader's end with a tail not replicated": _ends_unreplicated,
    "the end of the last in-sync replica": _ends_alone,
    "an end while a compacted segment is swapped in": _ends_swapping,
    "an end while starting": _ends_starting,
    "the controller's end": _ends_as_controller,
    "an end while the network is cut": lambda end: not end.is_network_whole,
    "power lost while the network is cut": lambda end: end.lost_power and not end.is_network_whole,
    "all machines down": lambda end: not end.others_up,
}

# -- observed calls ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    place: str
    is_it: Callable[..., bool] = lambda *_, **__: True
    """Called afterwards, with the result and the arguments."""


def _recovered_torn(recovered: Any, *_: Any, **__: Any) -> bool:
    return bool(recovered.report.truncated_bytes)


def _settled_without_old(_: Any, _disk: Any, _directory: str, names: list[str], **__: Any) -> bool:
    """The new segment is only there under its temporary name, and the old one is gone."""
    found = frozenset(names)
    swapped = [name.removesuffix(SWAP) for name in names if name.endswith(LOG + SWAP)]
    return any(name not in found and name + CLEANED not in found for name in swapped)


def _recovered_clean(_: Any, _disk: Any, _directory: str, _config: Any, last_run: LastRun, **__: Any) -> bool:
    return last_run.was_clean


CALLS: tuple[Call, ...] = (
    Call("a torn tail cut by recovery", "penstock.storage.log:recover", _recovered_torn),
    Call("a log opened after a clean stop", "penstock.storage.log:recover", _recovered_clean),
    Call("a compaction cut short and settled by recovery", "penstock.storage.recovery:settle_swaps"),
    Call(
        "a compaction settled whose old segments are gone",
        "penstock.storage.recovery:settle_swaps",
        _settled_without_old,
    ),
    Call("a compacted segment swapped in", "penstock.storage.log:Log.end_swap", lambda done, *_: done),
    Call(
        "a follower's log cut",
        "penstock.storage.log:Log.begin_cut",
        lambda cut, log, offset, **_: cut is not None and offset > 0,
    ),
    Call("a log started again", "penstock.storage.log:Log.begin_anew"),
    Call("a log begun inside a batch", "penstock.storage.log:Log.begin_below"),
    Call("damage cut out", "penstock.replica.repair:Repairs._cut"),
    Call(
        "a compacted log repaired as a whole",
        "penstock.replica.repair:_cut_from",
        lambda offset, _, damaged: offset < damaged,
    ),
    Call(
        "a silent producer forgotten",
        "penstock.storage.producers.producer_state:ProducerStates.expire",
        lambda ids, *_: bool(ids),
    ),
    Call("a log offline", "penstock.replica.partition:Partition._went_offline"),
    Call(
        "a leader's lease over",
        "penstock.replica.partition:Partition.lease_over",
        lambda _, partition: partition.is_leader,
    ),
    Call("a change of in-sync replicas refused", "penstock.replica.partition:Partition.isr_refused"),
    Call(
        "metadata restored at run time",
        "penstock.cluster.metadata_machine:MetadataMachine.restore",
        lambda _, machine, *__: machine._listener is not None,
    ),
    Call("entries of a deposed controller cut", "penstock.core.raft.log:RaftLog.truncate_from"),
    Call(
        "a vote given", "penstock.core.raft.membership:changed", lambda _, __, change, ___: change is Change.ADD_VOTER
    ),
    Call(
        "a vote taken away",
        "penstock.core.raft.membership:changed",
        lambda _, __, change, ___: change is Change.REMOVE_VOTER,
    ),
    Call(
        "a controller without a vote of its own",
        "penstock.core.raft.replication:follow_configuration",
        lambda _, node: not node.is_voter,
    ),
    Call("a controller hands over", "penstock.cluster.quorum:Quorum.transfer_leadership"),
    Call(
        "leaders handed over by a clean stop",
        "penstock.core.metadata.brokers:begin_controlled_shutdown",
        lambda records, *_: any(isinstance(record, PartitionChanged) for record in records),
    ),
    Call(
        "a second generation of a classic group",
        "penstock.core.group.rebalance:Rebalance._form",
        lambda _, __, group, *___: group.generation > 1,
    ),
    Call("a member of a classic group given up", "penstock.core.group.classic_protocol:ClassicProtocol.session_over"),
    Call(
        "a coordinator's groups loaded from its log",
        "penstock.coordination.hosted_shard:HostedShard._serve",
        lambda _, shard: shard.partition.log.log_end_offset > 0,
    ),
    Call(
        "markers due again where another coordinator leads",
        "penstock.core.txn.shard:TransactionShard.loaded",
        lambda outcome, *_: bool(outcome.deeds),
    ),
    Call(
        "an open transaction loaded",
        "penstock.core.txn.shard:TransactionShard.loaded",
        lambda _, shard, __: any(one.state is State.ONGOING for one in shard.transactions.values()),
    ),
    Call(
        "offsets of an open transaction loaded",
        "penstock.core.group.shard:GroupShard.decode_pending",
        lambda record, *_: record is not None,
    ),
    Call(
        "a transaction that timed out",
        "penstock.core.txn.shard:TransactionShard.tick",
        lambda outcome, *_: bool(outcome.notices),
    ),
    Call(
        "a transaction aborted for a producer that begins",
        "penstock.core.txn.shard:TransactionShard.init_producer_id",
        lambda outcome, *_: bool(outcome.deeds),
    ),
    Call(
        "a producer goes on with a higher epoch (KIP-360)",
        "penstock.core.txn.shard:TransactionShard.init_producer_id",
        lambda outcome, _, request, *__: bool(outcome.records) and request.producer_id >= 0,
    ),
    Call("a producer id used up", "penstock.core.txn.transaction:Transaction.with_producer_id"),
    Call(
        "a commit or abort confirmed again",
        "penstock.core.txn.shard:TransactionShard.end",
        lambda outcome, *_: not outcome.records and getattr(outcome.replies[0][1], "code", None) is ErrorCode.NONE,
    ),
    Call(
        "a transaction ended that was decided outside (KIP-939)",
        "penstock.core.txn.shard:TransactionShard.end",
        lambda outcome, *_: bool(outcome.records) and outcome.records[0].transaction.is_decided_outside,
    ),
    Call(
        "a transaction ended to which nothing was added",
        "penstock.core.txn.shard:TransactionShard.end",
        lambda outcome, *_: bool(outcome.records) and not outcome.records[0].transaction.partitions,
    ),
    Call(
        "a marker that is there already",
        "penstock.replica.partition:Partition.append_marker",
        lambda is_new, *_: not is_new,
    ),
    Call("markers for another broker", "penstock.coordination.markers:MarkerSender._ask"),
    Call(
        "a partition that is not part of its transaction",
        "penstock.core.txn.shard:TransactionShard.verify_partitions",
        lambda outcome, *_: bool(outcome.replies[0][1].missing),
    ),
)
REPEATED = "a repeated batch known"
REPEATED_FROM_SNAPSHOT = "a repeated batch known from a snapshot"
BEHIND_EARLY = "a batch refused because an earlier one came too early"
WOKEN = "a leader woken after another was elected"
STATES: tuple[str, ...] = (
    *DECIDED,
    *ENDED,
    *(call.name for call in CALLS),
    WOKEN,
    REPEATED,
    REPEATED_FROM_SNAPSHOT,
    BEHIND_EARLY,
)

MAX = sys.maxsize
PRODUCERS = "penstock.storage.producers.producer_state:ProducerStates"


class Probes:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._decided: dict[tuple[str, int, int], None] = {}
        self._restored: dict[int, tuple[object, int]] = {}  # producers read from a snapshot, up to that offset
        self.counts: Counter[str] = Counter()

    @contextmanager
    def listening(self) -> Iterator[None]:
        for number, machine in self._cluster.machines.items():
            machine.on_end = partial(self._ended, number)
            machine.on_wake = partial(self._woken, number)
        with ExitStack() as stack:
            stack.enter_context(replaced("penstock.core.metadata.image:_change", self._overhear_decisions))
            stack.enter_context(replaced(f"{PRODUCERS}._restore", self._overhear_snapshots))
            stack.enter_context(replaced(f"{PRODUCERS}._find_repeated", self._overhear_repeats))
            stack.enter_context(replaced("penstock.api.produce.early_batches:EarlyBatches.check", self._overhear_early))
            for call in CALLS:
                stack.enter_context(replaced(call.place, partial(self._overhear, call)))
            yield

    def _overhear(self, call: Call, original: Any) -> Any:
        @wraps(original)
        def overheard(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            if call.is_it(result, *args, **named):
                self.counts[call.name] += 1
            return result

        return overheard

    def _overhear_decisions(self, original: Any) -> Any:
        def decided(partition: PartitionState, change: PartitionChanged) -> PartitionState:
            key = change.topic_id, change.index, partition.partition_epoch
            if key not in self._decided:  # every node learns of it
                self._decided[key] = None
                self.counts.update(name for name, is_it in DECIDED.items() if is_it(partition, change))
            changed: PartitionState = original(partition, change)
            return changed

        return decided

    def _overhear_snapshots(self, original: Any) -> Any:
        def restored(states: object, producer: Producer) -> None:
            original(states, producer)
            self._restored[id(producer)] = producer, producer.last_offset

        return restored

    def _overhear_early(self, original: Any) -> Any:
        def checked(*args: Any) -> None:
            try:
                original(*args)
            except ApiError:
                self.counts[BEHIND_EARLY] += 1
                raise

        return checked

    def _overhear_repeats(self, original: Any) -> Any:
        def repeated(producer: object, *args: Any) -> int:
            offset: int = original.__func__(producer, *args)
            self.counts[REPEATED] += 1
            if offset <= self._restored.get(id(producer), (None, -1))[1]:
                self.counts[REPEATED_FROM_SNAPSHOT] += 1
            return offset

        return staticmethod(repeated)

    def _ended(self, number: int, how: str) -> None:
        node = self._cluster.nodes.get(number)
        if node is None or how == "exits":
            return
        others = sum(self._cluster.is_running(other) for other in self._cluster.started if other != number)
        end = End(node, how.startswith("crashes"), self._cluster.world.network.is_whole, others)
        self.counts.update(name for name, is_it in ENDED.items() if is_it(end))

    def _woken(self, number: int) -> None:
        """The node was paused or suspended: its partitions may have another leader that it does not know yet."""
        living = dict(self._cluster.living)
        woken = living.pop(number, None)
        led = {(partition.topic_id, partition.index): partition.leader_epoch for partition in _led(woken)}
        others = (partition for node in living.values() for partition in _led(node))
        if any(partition.leader_epoch > led.get((partition.topic_id, partition.index), MAX) for partition in others):
            self.counts[WOKEN] += 1


def _led(node: Any) -> list[Any]:
    return [partition for partition in getattr(node, "partitions", ()) if partition.is_leader]
