"""Readers of committed records: up to the last stable offset, without records of aborted transactions.

`CommittedReader` goes by the list of aborted transactions in the answers of Fetch, as clients do. `Decided` goes by the
markers in a log; the judges hold one against the other. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from penstock.model.errors import ApiError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.records.control import ABORT, COMMIT, marker_of
from penstock.sim.checks.files import records_of
from penstock.sim.judges.history import Place, Violation
from penstock.sim.judges.transactions import Delivered, TransactionHistory
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire_client.requests.errors import error_code

READ_COMMITTED = 1
WAIT_MS = 100
MAX_BYTES = 16 << 10
RETRY_S = 0.05
AGAIN_CHANCE = 0.02


class Ended(NamedTuple):
    """A record whose transaction has ended."""

    offset: int
    value: bytes
    is_committed: bool


class RecordOutcomes:
    """Takes batches in the order of a log, and finds the outcome of their records."""

    def __init__(self) -> None:
        self._open: dict[int, list[tuple[int, bytes]]] = {}  # by producer id

    def add(self, header: BatchHeader, batch: memoryview) -> Iterator[Ended]:
        """The records whose outcome this batch decides."""
        if header.is_control:
            marker = marker_of(header, batch)
            if marker is not None:
                for offset, value in self._open.pop(header.producer_id, ()):
                    yield Ended(offset, value, marker.kind == COMMIT)
            return
        for record in records_of(header, batch):
            value = (record.value or b"").partition(b" ")[0]
            if header.is_transactional:
                self._open.setdefault(header.producer_id, []).append((record.offset, value))
            else:
                yield Ended(record.offset, value, is_committed=True)

    @property
    def undecided(self) -> dict[int, int]:
        """The open transactions: producer id -> first offset."""
        return {producer_id: records[0][0] for producer_id, records in self._open.items()}


class AbortedRecords:
    """The batches of one answer that a client drops, in their order."""

    def __init__(self, listed: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(((one.first_offset, one.producer_id) for one in listed), reverse=True)
        self._open: set[int] = set()  # producer ids

    def has(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether nothing of this batch is for an application."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            marker = marker_of(header, batch)
            if marker is not None and marker.kind == ABORT:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


class CommittedReader:
    def __init__(self, caller: Caller, history: TransactionHistory, places: Sequence[Place]) -> None:
        self._caller = caller
        self._history = history
        self._positions = dict.fromkeys(places, 0)
        self.given: dict[Place, set[int]] = {place: set() for place in places}
        """Offsets of the records that were taken for committed ones."""
        self._shown: dict[Place, tuple[int, int]] = {}  # the last stable offset, and by the leader of which epoch

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        caller = self._caller
        while not is_over():
            for place in self._positions:
                try:
                    await self._read(place)
                except TROUBLE as error:
                    caller.note(error)
                    await caller.pause(RETRY_S)
                    await caller.look_again(place)
                else:
                    if caller.random.random() < AGAIN_CHANCE:
                        self._positions[place] = 0
            await caller.pause(pause_s)

    async def read_all(self, place: Place, end: int) -> frozenset[int]:
        """The offsets of the records below `end` that are committed."""
        caller = self._caller
        while self._positions[place] < end:
            try:
                await self._read(place)
            except TROUBLE as error:
                caller.note(error)
                await caller.pause(RETRY_S)
                await caller.look_again(place)
        return frozenset(self.given[place])

    async def _read(self, place: Place) -> None:
        caller = self._caller
        leader = await caller.leader(place)
        partition = FetchPartition(
            partition=place.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self._positions[place],
            partition_max_bytes=MAX_BYTES,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=READ_COMMITTED,
            session_epoch=-1,
            topics=[FetchTopic(topic=place.topic, partitions=[partition])],
        )
        address = caller.address_of(leader.node_id)
        answer = await caller.ask(
            address, Api.FETCH, request, FetchResponse, purpose="committed", wait_s=WAIT_MS / 1000
        )
        if answer.error_code:
            raise ApiError(error_code(answer.error_code), "no data")
        data = answer.responses[0].partitions[0]
        if data.error_code:
            raise ApiError(error_code(data.error_code), f"cannot read {place}")
        self._was_shown(place, leader.epoch, data.last_stable_offset)
        aborted = AbortedRecords(data.aborted_transactions or ())
        self._take(place, data.last_stable_offset, aborted, memoryview(cast("Buffer", data.records or b"")))

    def _was_shown(self, place: Place, epoch: int, last_stable_offset: int) -> None:
        """The leader of the next epoch may not know the latest high watermark yet."""
        before, shown_in = self._shown.get(place, (0, epoch))
        if shown_in == epoch and last_stable_offset < before:
            raise Violation(
                "a last stable offset that was shown does not go back",
                f"{self._caller.name} gets the last stable offset {last_stable_offset} of {place} in epoch {epoch}, "
                f"but got {before}",
            )
        self._shown[place] = last_stable_offset, epoch

    def _take(self, place: Place, last_stable_offset: int, aborted: AbortedRecords, data: memoryview) -> None:
        at, position = 0, self._positions[place]
        while len(data) - at >= HEADER_SIZE:
            header = read_header(data, at)
            batch = data[at : at + header.size_bytes]
            if len(batch) < header.size_bytes:
                break  # cut off by the limit
            if header.next_offset > last_stable_offset:
                raise Violation(
                    "nothing above the last stable offset is served",
                    f"{self._caller.name} got {place} up to {header.next_offset}, but its last stable offset is "
                    f"{last_stable_offset}",
                )
            if header.base_offset >= position:
                if not aborted.has(header, batch):
                    for record in records_of(header, batch):
                        self._deliver(place, record.offset, (record.value or b"").partition(b" ")[0])
                position = header.next_offset
            at += header.size_bytes
        self._positions[place] = position

    def _deliver(self, place: Place, offset: int, value: bytes) -> None:
        self.given[place].add(offset)
        known = self._history.delivered.setdefault(place, {})
        first = known.setdefault(offset, Delivered(value, self._caller.name, self._history.time()))
        if first.value != value:
            raise Violation(
                "a read is stable",
                f"{self._caller.name} reads {value!r} at {place}@{offset}, where {first.reader} read {first.value!r}",
            )
