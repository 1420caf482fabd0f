"""How transactions end: decisions, markers, last stable offsets and epochs, checked while a history runs.

- A marker is written only after its decision is committed.
- A last stable offset stays below every transaction whose marker is not committed.
- A batch opens a transaction in a partition only if its coordinator has an open transaction with that partition.
- Once a producer has started with a transactional id, earlier producers with that id write nothing more.
- The coordinator's state of a transactional id changes only with the records it writes, as the table of states permits,
  and an epoch increases by one at a time.

Gets the committed records in the order of the log. Must not know: nodes, clients, faults.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from penstock.core.shard.exchange import Marker
from penstock.core.txn.records import TransactionStored, decode_transaction
from penstock.core.txn.shard import TRANSACTION_STATE_TOPIC
from penstock.core.txn.states import MOVES, State
from penstock.core.txn.transaction import Transaction
from penstock.records.batch import BatchHeader
from penstock.sim.checks.files import records_of
from penstock.sim.judges.history import Violation
from penstock.sim.judges.transactions import Begun

Key = tuple[bytes, int]
STEPS = frozenset((*((state, after) for (state, _), after in MOVES.items()), (State.ONGOING, State.PREPARE_ABORT)))
USED_UP = 1 << 15
FOLLOWS = "a marker follows its decision"
UNDER_WAY = "a batch is part of a transaction under way"
WAITS = "a last stable offset waits for its markers"
ALONE = "a transaction changes with its log alone"
RISES = "an epoch rises by one"
ENDLESS = "no epoch is beyond the largest"


class _Decision(NamedTuple):
    producer_id: int
    epoch: int
    is_commit: bool


class _Partition:
    """The committed part of a partition."""

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[int, int] = {}  # producer id -> first offset


class MarkerChecker:
    def __init__(self) -> None:
        self._partitions: dict[Key, _Partition] = {}
        self._blind: dict[Key, None] = {}
        self._decided: dict[_Decision, None] = {}
        self._under_way: dict[int, frozenset[tuple[str, int]]] = {}
        """By producer id: the partitions of its transaction, until the transaction is complete."""
        self._suspicions: dict[tuple[Key, int, int], str] = {}  # by partition, offset and leader epoch of a batch
        self._may_miss_decisions = False
        self.catch_up: Callable[[], None] = lambda: None
        """Makes the watch report everything that is committed by now, through `committed`."""
        self._fenced: dict[int, int] = {}  # by producer id: epochs below this one are fenced
        # by transactional id: its producer ids, and when each was first answered
        self._ids: dict[str, dict[int, float]] = {}
        self._written: dict[object, dict[str, Transaction]] = {}  # by shard: the state that it wrote last

    def lose_sight(self, key: Key, topic: str) -> None:
        """Records are committed there that this checker does not see."""
        self._blind[key] = None
        self._may_miss_decisions |= topic == TRANSACTION_STATE_TOPIC

    # -- logs ---------------------------------------------------------------------------

    def committed(self, key: Key, topic: str, header: BatchHeader, batch: bytes) -> None:
        known = self._partitions.setdefault(key, _Partition())
        known.end = header.next_offset
        if topic == TRANSACTION_STATE_TOPIC:
            self._learn_decisions(header, batch)
        if not header.is_transactional:
            return
        if header.is_control:
            known.open.pop(header.producer_id, None)
            return
        known.open.setdefault(header.producer_id, header.base_offset)
        suspicion = self._suspicions.get((key, header.base_offset, header.leader_epoch))
        if suspicion is not None:
            raise Violation(UNDER_WAY, suspicion)
        fence = self._fenced.get(header.producer_id, 0)
        if header.producer_epoch < fence and key not in self._blind:
            raise Violation(
                "nobody writes after its successor has begun",
                f"{topic}-{key[1]}: a batch of producer {header.producer_id} with epoch {header.producer_epoch} is "
                f"committed up to {header.next_offset}, but one with "
                f"{'another id' if fence == USED_UP else f'epoch {fence}'} has begun",
            )

    def opened(self, key: Key, topic: str, header: BatchHeader, offset: int, leader_epoch: int) -> None:
        """A leader has appended a batch that opens a transaction. It is judged only when it is committed, because this
        broker may no longer be the leader.
        """
        place = topic, key[1]
        if self._may_miss_decisions or place in self._under_way.get(header.producer_id, ()):
            return
        self.catch_up()
        under_way = self._under_way.get(header.producer_id, frozenset())
        if place not in under_way:
            self._suspicions[key, offset, leader_epoch] = (
                f"{topic}-{key[1]}: a batch of producer {header.producer_id} with epoch {header.producer_epoch} at "
                f"{offset} opens a transaction, but the coordinator has its transaction only in {sorted(under_way)}"
            )

    def _learn_decisions(self, header: BatchHeader, batch: bytes) -> None:
        for record in records_of(header, memoryview(batch)):
            if record.key is None or record.key[:2] != b"\0\0":
                continue
            stored = decode_transaction(record.key, record.value)
            if not isinstance(stored, TransactionStored):
                continue
            one = stored.transaction
            self._under_way[one.producer_id] = one.partitions
            if one.is_ending:
                is_commit = one.state is State.PREPARE_COMMIT
                self._decided[_Decision(one.producer_id, one.epoch, is_commit)] = None

    def marker_appended(self, name: str, marker: Marker) -> None:
        decision = _Decision(marker.producer_id, marker.epoch, marker.is_commit)
        if decision not in self._decided:
            self.catch_up()
        if decision not in self._decided and not self._may_miss_decisions:
            raise Violation(
                FOLLOWS,
                f"{name}: a marker of producer {marker.producer_id} with epoch {marker.epoch} "
                f"({'commit' if marker.is_commit else 'abort'}) is written, but no such decision is committed",
            )

    def has_open(self, key: Key) -> bool:
        known = self._partitions.get(key)
        return known is not None and bool(known.open)

    def is_stable(self, node: int, name: str, key: Key, high_watermark: int, last_stable_offset: int) -> None:
        """A leader reports this last stable offset."""
        known = self._partitions.get(key)
        if known is None or not known.open or high_watermark > known.end or key in self._blind:
            return
        producer_id, first = min(known.open.items(), key=lambda one: one[1])
        if last_stable_offset > first:
            raise Violation(
                WAITS,
                f"{name} on {node} has the last stable offset {last_stable_offset}, but a transaction of producer "
                f"{producer_id} begins at {first}, and its marker is not committed (high watermark {high_watermark})",
            )

    # -- producers ----------------------------------------------------------------------

    def begun(self, begun: Begun) -> None:
        """A producer got this answer."""
        self.catch_up()
        ids = self._ids.setdefault(begun.transactional_id, {})
        for producer_id, answered_s in ids.items():
            if producer_id != begun.producer_id and answered_s < begun.asked_s:
                self._fenced[producer_id] = USED_UP
        ids.setdefault(begun.producer_id, begun.answered_s)
        self._fenced[begun.producer_id] = max(self._fenced.get(begun.producer_id, 0), begun.epoch)

    def forgets(self, shard: object, transactional_id: str) -> None:
        """The transactional id has expired."""
        self._written.setdefault(shard, {}).pop(transactional_id, None)

    def replays(self, shard: object, before: Transaction | None, after: Transaction) -> None:
        """An active coordinator is about to replay a record that it has just written."""
        written = self._written.setdefault(shard, {})
        last = written.get(after.transactional_id, before)
        written[after.transactional_id] = after
        if before != last:
            raise Violation(ALONE, f"{last} was written, but the coordinator's state was {before}")
        if before is not None:
            _check_step(before, after)


def _check_step(before: Transaction, after: Transaction) -> None:
    if (before.state, after.state) not in STEPS:
        raise Violation(
            "a transaction moves along its table",
            f"{before.transactional_id} goes from {before.state.title} to {after.state.title}",
        )
    largest = import_module("penstock.core.txn.transaction").LARGEST_EPOCH
    if after.epoch > largest:
        raise Violation(ENDLESS, f"{after}: the largest epoch is {largest}")
    is_same = before.producer_id == after.producer_id
    if is_same and not before.epoch <= after.epoch <= before.epoch + 1:
        raise Violation(
            RISES,
            f"{before.transactional_id} goes from epoch {before.epoch} ({before.state.title}) to {after.epoch} "
            f"({after.state.title})",
        )
    if not is_same and (after.epoch != 0 or before.epoch < largest - 1):
        raise Violation(
            "a producer id is used up",
            f"{before.transactional_id} goes from producer {before.producer_id} with epoch {before.epoch} to "
            f"{after.producer_id} with {after.epoch}",
        )
