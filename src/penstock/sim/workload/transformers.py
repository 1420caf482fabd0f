"""Instances that read a partition, transform its rows, write the results, and commit their position.

Each transactional id has its own source partition: a new instance with the id takes over that source. An instance looks
up the committed offset of its source, and continues from there in transactions, each with some rows, records in several
partitions, and the offset. Some transactions have no rows. Instances abort, die in the middle, sleep for longer than
their transactions may take, and come back. If two supervisors start instances with one id, they fence each other. Must
not know: faults, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import History, Place
from penstock.sim.judges.transactions import Attempt, Sent, SourceRead, TransactionHistory
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.readers import Reader
from penstock.sim.workload.transactional import MustAbort, ProducerOver, TransactionalProducer, Vanished
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
        *,
        is_slow: bool = False,
        is_calm: bool = False,
    ) -> None:
        self._caller = caller
        self._history = history
        self._source = source
        self._places = list(places)
        self._now_ms = now_ms
        self._is_slow = is_slow
        self._is_calm = is_calm
        self.transactional_id = f"transformer-{source.partition}"
        self._reader = Reader(caller, rows, [source])
        self._numbers = 0
        self._under_way: list[asyncio.Future[None]] = []

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            producer = self._producer()
            try:
                await self._live(producer, is_over, pause_s)
            except (ProducerOver, Vanished) as error:
                self._history.counts[type(error).__name__] += 1
            self._under_way += producer.under_way
            await self._caller.pause(AWAY_S)
        if self._under_way:
            await asyncio.gather(*self._under_way)

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

    def _producer(self) -> TransactionalProducer:
        random = self._caller.random
        self._history.counts["instances"] += 1
        return TransactionalProducer(
            self._caller,
            self._history,
            self.transactional_id,
            self._history.counts["instances"],
            version=random.choice((0, 2)),
            timeout_ms=random.randint(*(SLOW_TIMEOUTS_MS if self._is_slow else TIMEOUTS_MS)),
            now_ms=self._now_ms,
            is_calm=self._is_calm,
        )

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
        attempt = self._history.begin(
            self.transactional_id, producer.instance, (producer.producer_id, producer.epoch), self._source
        )
        attempt.rows = rows
        is_commit = self._is_calm or self._caller.random.random() >= ABORTS_CHANCE
        try:
            await self._fill(producer, attempt)
        except MustAbort as error:
            self._history.counts["had to abort"] += 1
            self._caller.note(error)
            is_commit = False
        await self._linger(producer)
        if self._is_slow and self._caller.random.random() < LAST_CHANCE:
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
            if not self._is_calm and random.random() < CARELESS_CHANCE:
                producer.send_carelessly(sent)
                raise MustAbort("careless")
            await producer.produce(sent)
        if attempt.rows:
            await self._linger(producer)
            await producer.commit_offset(GROUP, self._source, attempt.rows.stop)

    def _transformed(self, attempt: Attempt) -> dict[Place, list[Sent]]:
        """The results of the rows, by partition. Without rows there are some results, too."""
        random = self._caller.random
        wanted = [(row, place) for row in attempt.rows for place in made_of(row, self._places)]
        if not wanted:
            count = random.randint(1, len(self._places))
            wanted = [(-1, place) for place in random.sample(self._places, count)]
        batches: dict[Place, list[Sent]] = {}
        for row, place in wanted:
            batches.setdefault(place, []).append(attempt.send(place, self._numbers, row))
            self._numbers += 1
        return batches

    async def _linger(self, producer: TransactionalProducer) -> None:
        """Sometimes die, or sleep for about as long as the transaction may take. Raises Vanished."""
        random = self._caller.random
        if self._is_calm:
            return
        if random.random() < DIES_CHANCE:
            raise Vanished("between two requests")
        if self._is_slow and random.random() < DOZE_CHANCE:
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
        self._history.source_reads.append(SourceRead(self._source, offset, begun_s, self._history.time()))
        return offset
