"""Instances that read a partition, transform its rows, write the results, and commit their position.

A transactional id has a source partition of its own. The instance that begins under it takes over that source. An
instance asks how far its source is read, and goes on from there in transactions: rows, records in several partitions,
the offset. Some transactions have no rows, and some have nothing at all. Instances abort, die in the middle, sleep for
longer than their transactions may take, and come back. If two supervisors start instances under one id, each of them
fences the other.

Under two-phase commit an instance prepares a transaction and is gone. Its supervisor ends it after the timeout that
the instance named, by producer id and epoch alone, and perhaps several times. Must not know: faults, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import History, Place
from penstock.sim.judges.transactions import Attempt, SentRecord, SourceRead, TransactionHistory
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.reading.readers import Reader
from penstock.sim.workload.transactions.calls import Temper
from penstock.sim.workload.transactions.codes import MustAbort, NotTold, ProducerOver, Vanished
from penstock.sim.workload.transactions.producer import TransactionalProducer
from penstock.wire.apis import Api
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire_client.requests.errors import check

GROUP: Final = "transformers"
ROWS, MADE = "rows", "made"
TIMEOUTS_MS = (400, 2500)
MOST_ROWS = 5
MOST_AT_ONCE = 40
"""The number of rows per transaction at the end, when the remaining rows are transformed."""
SLEEP_CHANCE, SLEEPS = 0.04, (0.7, 2.0)
"""As a multiple of the transaction's timeout."""
SLOW_TIMEOUTS_MS = (1500, 4000)
DOZE_CHANCE, DOZES = 0.4, (0.02, 0.2)
LAST_CHANCE, LASTS = 0.7, (0.1, 0.5)
"""The same for slow instances: at each step, and before the end."""
RESUMES_CHANCE = 0.4
"""The chance that an instance looks up its committed offset again after a transaction."""
DIES_CHANCE = 0.04
ABORTS_CHANCE = 0.2
CARELESS_CHANCE = 0.12
TWO_PHASE_CHANCE, PREPARES_CHANCE = 0.6, 0.35
"""Of instances, and of their transactions: where there is two-phase commit."""
DECIDES_AFTER = (1.0, 1.6)
"""Of the timeout that the instance named, which does not count."""
UNHEARD_CHANCE = 0.4
"""Of a supervisor that ends a prepared transaction: it does not hear the answer, and another one asks again."""
INSISTS_S = 30.0
"""Longer than a history has faults. If nobody answers for so long, the judges of healed clusters say why."""
NOTHING_CHANCE, COMMITS_NOTHING_CHANCE = 0.08, 0.35
OVERDUE_CHANCE, OVERDUE = 0.25, (1.0, 1.2)
"""Of a transaction that is aborted: how long it is open, of its timeout."""
STAYS_CHANCE = 0.93
AWAY_S = 0.3
RETRY_S = 0.08
READS_WITHIN_S = 4.0


def sources(count: int) -> list[Place]:
    return [Place(ROWS, index) for index in range(count)]


def made(count: int) -> list[Place]:
    return [Place(MADE, index) for index in range(count)]


def made_of(row: int, places: Sequence[Place]) -> list[Place]:
    """The partitions for the results of a row: two, if there are as many."""
    return [places[one % len(places)] for one in range(row, row + min(2, len(places)))]


class _Prepared(Exception):
    """The process of an instance is gone, and its transaction waits for a decision."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt.name)
        self.attempt = attempt


class Habits(NamedTuple):
    is_slow: bool = False
    is_calm: bool = False
    has_two_phases: bool = False
    has_odd_ends: bool = False


CALM = Habits(is_calm=True)


class Transformer:
    """One supervisor of one transactional id: it runs one instance after the other."""

    def __init__(
        self,
        caller: Caller,
        history: TransactionHistory,
        rows: History,
        source: Place,
        places: Sequence[Place],
        now_ms: Callable[[], int],
        habits: Habits,
    ) -> None:
        self._caller = caller
        self._history = history
        self._source = source
        self._places = list(places)
        self._now_ms = now_ms
        self._habits = habits
        self.transactional_id = f"transformer-{source.partition}"
        self._reader = Reader(caller, rows, [source])
        self._numbers = 0
        self._under_way: list[asyncio.Future[None]] = []

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            producer = self._producer()
            try:
                await self._live(producer, is_over, pause_s)
            except _Prepared as prepared:
                await self._decide(prepared, producer)
            except (ProducerOver, Vanished) as error:
                self._history.counts[type(error).__name__] += 1
            self._under_way += producer.under_way
            await self._caller.pause(AWAY_S)
        if self._under_way:
            await asyncio.gather(*self._under_way)
        if self._habits.has_two_phases:
            await self._take_over()

    async def _take_over(self) -> None:
        """A transaction that a dead instance has left open has no timeout: the next producer ends it."""
        time = asyncio.get_running_loop().time
        ends_s = time() + INSISTS_S
        while time() < ends_s:
            producer = self._producer(is_two_phase=False)
            try:
                await producer.begin()
            except (ProducerOver, Vanished):
                await self._caller.pause(RETRY_S)
            else:
                await asyncio.gather(*producer.under_way)
                return

    async def _decide(self, prepared: _Prepared, gone: TransactionalProducer) -> None:
        """From outside, until a coordinator has confirmed it or refused it."""
        time = asyncio.get_running_loop().time
        await asyncio.sleep(self._caller.random.uniform(*DECIDES_AFTER) * gone.timeout_ms / 1000)
        ends_s = time() + INSISTS_S
        while time() < ends_s:
            heir = self._producer(version=gone.version, is_two_phase=True)
            heir.resume(gone.producer_id, gone.epoch, vanishes_chance=UNHEARD_CHANCE)
            try:
                await heir.end(prepared.attempt, is_commit=prepared.attempt.is_decided_to_commit)
            except (NotTold, Vanished):
                await self._caller.pause(RETRY_S)
            except ProducerOver as error:
                self._history.counts[type(error).__name__] += 1
                return
            else:
                return
            finally:
                self._under_way += heir.under_way

    async def finish(self, end: int) -> None:
        """Continue until a producer has started and transformed all rows below `end`, in at least one transaction."""
        while True:
            producer = self._producer()
            try:
                await producer.begin()
                position = await self._position()
                while True:
                    position = await self._transact(producer, position, MOST_AT_ONCE)
                    if position >= end:
                        return
            except (ProducerOver, Vanished) as error:
                self._history.counts[type(error).__name__] += 1
            await self._caller.pause(RETRY_S)

    async def position(self) -> int:
        """The committed offset of the source; retries until there is an answer."""
        while True:
            try:
                return await self._position()
            except ProducerOver:
                await self._caller.pause(RETRY_S)

    def _producer(self, *, version: int | None = None, is_two_phase: bool | None = None) -> TransactionalProducer:
        random = self._caller.random
        self._history.counts["instances"] += 1
        if is_two_phase is None:
            is_two_phase = self._habits.has_two_phases and random.random() < TWO_PHASE_CHANCE
        habits = self._habits
        temper = Temper(
            version=random.choice((0, 2)) if version is None else version,
            timeout_ms=random.randint(*(SLOW_TIMEOUTS_MS if habits.is_slow else TIMEOUTS_MS)),
            is_calm=habits.is_calm,
            is_two_phase=is_two_phase,
            begins_once=habits.has_two_phases,  # a late one would abort what another has prepared
        )
        number = self._history.counts["instances"]
        return TransactionalProducer(self._caller, self._history, self.transactional_id, number, temper, self._now_ms)

    async def _live(self, producer: TransactionalProducer, is_over: Callable[[], bool], pause_s: float) -> None:
        await producer.begin()
        position = await self._position()
        while not is_over() and self._caller.random.random() < STAYS_CHANCE:
            position = await self._transact(producer, position, MOST_ROWS)
            await self._caller.pause(pause_s)
            if self._caller.random.random() < RESUMES_CHANCE:
                position = await self._position()

    async def _transact(self, producer: TransactionalProducer, position: int, most: int) -> int:
        """Run one transaction. Returns the position in the source afterwards."""
        rows = await self._read(position, most)
        await producer.refresh()
        has_odd_ends = self._habits.has_odd_ends and not producer.adds_partitions
        if has_odd_ends and self._caller.random.random() < NOTHING_CHANCE:
            await producer.end_nothing(is_commit=self._caller.random.random() < COMMITS_NOTHING_CHANCE)
        attempt = self._history.begin(
            self.transactional_id, producer.instance, (producer.producer_id, producer.epoch), self._source
        )
        attempt.rows = rows
        is_commit = self._habits.is_calm or self._caller.random.random() >= ABORTS_CHANCE
        try:
            await self._fill(producer, attempt)
        except MustAbort as error:
            self._history.counts["had to abort"] += 1
            self._caller.note(error)
            is_commit = False
        else:
            if producer.is_two_phase and self._caller.random.random() < PREPARES_CHANCE:
                attempt.prepared_s, attempt.is_decided_to_commit = self._history.time(), is_commit
                raise _Prepared(attempt)
        await self._linger(producer)
        if has_odd_ends and self._caller.random.random() < OVERDUE_CHANCE:
            await asyncio.sleep(self._caller.random.uniform(*OVERDUE) * producer.timeout_ms / 1000)
            is_commit = False
        if self._habits.is_slow and self._caller.random.random() < LAST_CHANCE:
            await asyncio.sleep(self._caller.random.uniform(*LASTS) * producer.timeout_ms / 1000)
        await producer.end(attempt, is_commit=is_commit)
        return rows.stop if is_commit else position

    async def _fill(self, producer: TransactionalProducer, attempt: Attempt) -> None:
        random = self._caller.random
        batches = self._transformed(attempt)
        if producer.adds_partitions:
            await producer.add_partitions(list(batches))
        for sent in batches.values():
            await self._linger(producer)
            if not self._habits.is_calm and random.random() < CARELESS_CHANCE:
                producer.send_carelessly(sent)
                raise MustAbort("careless")
            await producer.produce(sent)
        if attempt.rows:
            await self._linger(producer)
            await producer.commit_offset(GROUP, self._source, attempt.rows.stop)

    def _transformed(self, attempt: Attempt) -> dict[Place, list[SentRecord]]:
        """The results of the rows, by partition. Without rows there are some results, too."""
        random = self._caller.random
        wanted = [(row, place) for row in attempt.rows for place in made_of(row, self._places)]
        if not wanted:
            count = random.randint(1, len(self._places))
            wanted = [(-1, place) for place in random.sample(self._places, count)]
        batches: dict[Place, list[SentRecord]] = {}
        for row, place in wanted:
            batches.setdefault(place, []).append(attempt.send(place, self._numbers, row))
            self._numbers += 1
        return batches

    async def _linger(self, producer: TransactionalProducer) -> None:
        """Sometimes die, or sleep for about as long as the transaction may take. Raises Vanished."""
        random = self._caller.random
        if self._habits.is_calm:
            return
        if random.random() < DIES_CHANCE:
            raise Vanished("between two requests")
        if self._habits.is_slow and random.random() < DOZE_CHANCE:
            await asyncio.sleep(random.uniform(*DOZES) * producer.timeout_ms / 1000)
        if random.random() < SLEEP_CHANCE:
            self._history.counts["slept"] += 1
            await asyncio.sleep(random.uniform(*SLEEPS) * producer.timeout_ms / 1000)

    # -- the source ---------------------------------------------------------------------

    async def _read(self, position: int, most: int) -> range:
        """The rows from there on; none if there is no answer."""
        reader = self._reader
        if reader.positions[self._source] <= position:
            reader.positions[self._source] = position
            try:
                await reader.read(self._source)
            except TROUBLE as error:
                self._caller.note(error)
                await self._caller.pause(RETRY_S)
                await self._caller.look_again(self._source)
        return range(position, max(position, min(reader.positions[self._source], position + most)))

    async def _position(self) -> int:
        """The committed offset of the source, without open transactions. Raises ProducerOver."""
        time = asyncio.get_running_loop().time
        ends_s = time() + READS_WITHIN_S
        while True:
            try:
                return await self._committed()
            except TROUBLE as error:
                self._caller.note(error)
            if time() > ends_s:
                raise ProducerOver("no answer about the committed offset of the source")
            await self._caller.pause(RETRY_S)

    async def _committed(self) -> int:
        begun_s = self._history.time()
        topics = [OffsetFetchRequestTopics(name=self._source.topic, partition_indexes=[self._source.partition])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)], require_stable=True
        )
        address = await self._caller.coordinator(GROUP)
        answer = await self._caller.ask(address, Api.OFFSET_FETCH, request, OffsetFetchResponse, purpose="position")
        group = answer.groups[0]
        check(group.error_code)
        found = group.topics[0].partitions[0]
        if found.error_code:
            raise ApiError(ErrorCode(found.error_code), f"the offset of {self._source}")
        offset = max(found.committed_offset, 0)
        is_excused = self._history.may_not_know(address[0], GROUP)
        self._history.source_reads.append(SourceRead(self._source, offset, begun_s, self._history.time(), is_excused))
        return offset
