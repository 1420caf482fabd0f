"""The decisions of exactly-once queries: which transactions belong to a batch, stored where every driver finds them.

A decision is a record in a compacted topic. Its key is the query's id. A marker is the committed offset of the query's
sink group in that topic: batch + 1, with the offset of the record as metadata. One transaction writes record and
marker, so both count or neither. Group offsets may expire while a query rests for weeks. Then the topic is searched.

Must not know: Spark, what is done with a decision. Invariants: a query lists transactions for a batch once; a decision
that is written again lists the same ones and rejects more. The transactional id of the query's driver fences: whoever
has begun with it last may decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.new_topic import BROKER_DEFAULT, NewTopic
from penstock.model.sink_names import SINK_PREFIX, SINKS_TOPIC
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.builder import Record, build_batch
from penstock.records.decoding import Aborted, decode
from penstock.spark.sink.steps import Step, reach
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.messages.produce import ProduceResponse
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchStream
from penstock.wire_client.blocking.transactions import Transactions
from penstock.wire_client.requests.errors import NoSuchTopic, OffsetOutOfRange, error_code
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS
from penstock.wire_client.requests.produce import ACKS_ALL, produce_request, read_produced
from penstock.wire_client.requests.producing_transactions import OpenTransaction
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.topics import create_topic_request, read_created

TOPIC = SINKS_TOPIC
PARTITION = TopicPartition(TOPIC, 0)
PREFIX = SINK_PREFIX
REPLICAS = 3
SEGMENT_BYTES = 16 << 20
DECIDING_MS = 30_000
"""How long an undecided decision of a dead driver may hold readers of the topic back."""
CREATING_S = 30.0
PAUSE_S = 0.1
PRODUCE_MS = 20_000
FORMAT = 1
NONE_DECIDED = -1


class UnreadableDecision(PenstockError):
    """A record of the topic is not a decision that this version understands."""


class Decision(NamedTuple):
    query_id: str
    batch_id: int
    transactions: tuple[OpenTransaction, ...]
    """Those to commit."""
    decided_ms: int
    rejected: tuple[OpenTransaction, ...] = ()
    """Those to abort. No later decision lists them."""

    def encode(self) -> bytes:
        told = {
            "format": FORMAT,
            "batch": self.batch_id,
            "decided_ms": self.decided_ms,
            "transactions": self._shortened(self.transactions),
            "rejected": self._shortened(self.rejected),
        }
        return json.dumps(told, separators=(",", ":")).encode()

    def _shortened(self, transactions: Iterable[OpenTransaction]) -> list[list[object]]:
        prefix = task_prefix(self.query_id)
        return [
            [one.transactional_id.removeprefix(prefix), one.producer_id, one.epoch, one.version, one.is_two_phase]
            for one in transactions
        ]

    @classmethod
    def decode(cls, record: Record) -> Decision:
        """Raises UnreadableDecision."""
        try:
            query_id = (record.key or b"").decode()
            told = json.loads(record.value or b"")
            if told["format"] != FORMAT:
                raise UnreadableDecision(
                    f"{TOPIC} has a decision of format {told['format']} at offset {record.offset}; this version knows "
                    f"format {FORMAT}: use the version of Penstock that has written it, or a later one"
                )
            prefix = task_prefix(query_id)
            listed, rejected = (
                tuple(
                    OpenTransaction(prefix + suffix, int(producer_id), int(epoch), int(version), bool(is_two_phase))
                    for suffix, producer_id, epoch, version, is_two_phase in some
                )
                for some in (told["transactions"], told["rejected"])
            )
            return cls(query_id, int(told["batch"]), listed, int(told["decided_ms"]), rejected)
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableDecision(
                f"the record at offset {record.offset} of {TOPIC} is not a decision: only sinks may write to this topic"
            ) from error


def driver_id(query_id: str) -> str:
    """The transactional id of the query's driver."""
    return f"{PREFIX}{query_id}"


def task_prefix(query_id: str) -> str:
    """Transactional ids of the query's tasks begin like this."""
    return f"{PREFIX}{query_id}-"


def sink_group(query_id: str) -> str:
    return f"{PREFIX}{query_id}"


class Decisions:
    def __init__(self, cluster: BlockingCluster, query_id: str) -> None:
        self._cluster = cluster
        self._transactions = Transactions(cluster)
        self._query_id = query_id
        self._group = sink_group(query_id)

    # -- reading ------------------------------------------------------------------------

    def last_batch(self) -> int:
        """The last batch that is decided; -1 if the group does not tell. A decision that is being made does not count.

        For tasks: they may skip rows of this batch. Only a driver that has taken over may conclude what is not decided.
        """
        marker = self._cluster.commits_of(self._group, [PARTITION]).get(PARTITION)
        return NONE_DECIDED if marker is None else marker.offset - 1

    def last(self) -> Decision | None:
        """The query's last decision. Waits for one that is being made."""
        marker = self._cluster.commits_of(self._group, [PARTITION], require_stable=True).get(PARTITION)
        if marker is not None and marker.metadata and marker.metadata.isdecimal():
            found = self._at(int(marker.metadata))
            if found is not None and found.batch_id + 1 == marker.offset:
                return found
        found = last_decisions(self._cluster).get(self._query_id)
        if marker is not None and (found is None or found.batch_id + 1 != marker.offset):
            raise UnreadableDecision(
                f"group '{self._group}' says that batch {marker.offset - 1} is decided, but topic {TOPIC} does not "
                "have the decision: was the topic deleted, or the group's offset changed? Without the decision the "
                "sink does not know which transactions to commit. Start the query with a new checkpoint"
            )
        return found

    def _at(self, offset: int) -> Decision | None:
        """The query's decision at this offset of the topic. None: the offset has another record, or none."""
        try:
            for record in _records(self._cluster, offset, offset + 1, read_committed=False):
                decision = Decision.decode(record)
                if decision.query_id == self._query_id:
                    return decision
        except (OffsetOutOfRange, NoSuchTopic):
            pass  # the topic was made again
        return None

    # -- deciding -----------------------------------------------------------------------

    def take_over(self) -> OpenTransaction:
        """Fences other drivers of this query, and ends what they were deciding."""
        self._ensure_topic()
        return self._transactions.begin(driver_id(self._query_id), DECIDING_MS)

    def decide(
        self,
        driver: OpenTransaction,
        batch_id: int,
        transactions: Sequence[OpenTransaction],
        rejected: Sequence[OpenTransaction] = (),
    ) -> Decision:
        """Writes decision and marker, and commits both. That is the commit point of the batch.

        Raises ApiError; `is_fenced` tells whether another driver has taken over. After any other error the outcome is
        known only to the next driver that takes over.
        """
        now_ms = time.time_ns() // 1_000_000
        decision = Decision(self._query_id, batch_id, tuple(transactions), now_ms, tuple(rejected))
        self._transactions.add_partitions(driver, [PARTITION])
        offset = self._append(driver, decision.encode(), now_ms)
        reach(Step.DECISION_WRITTEN)
        marker = OffsetAndMetadata(batch_id + 1, str(offset) if offset >= 0 else "")
        self._transactions.commit_offsets(driver, self._group, {PARTITION: marker})
        reach(Step.MARKER_WRITTEN)
        self._commit(driver)
        reach(Step.DECIDED)
        return decision

    def withdraw(self, driver: OpenTransaction) -> None:
        """Writes a tombstone. The marker stays until it expires. Raises ApiError."""
        self._transactions.add_partitions(driver, [PARTITION])
        self._append(driver, None, time.time_ns() // 1_000_000)
        self._commit(driver)

    def _commit(self, driver: OpenTransaction) -> None:
        (code,) = self._transactions.end([driver], is_commit=True).values()
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"the decision of query {self._query_id} could not be committed: {code.name}")

    def _append(self, driver: OpenTransaction, value: bytes | None, now_ms: int) -> int:
        """The record's offset; -1 if the broker only confirms that it has it."""
        record = Record(self._query_id.encode(), value, (), now_ms)
        # Every driver begins with a new epoch and writes one record, so the sequence number is 0.
        batch = build_batch(
            [record],
            producer_id=driver.producer_id,
            producer_epoch=driver.epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
        request = produce_request([(PARTITION, batch)], ACKS_ALL, PRODUCE_MS, driver.transactional_id)

        def read(answer: ProduceResponse) -> int:
            entry = read_produced(answer)[PARTITION]
            code = error_code(entry.error_code)
            if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return -1
            if code is ErrorCode.MESSAGE_TOO_LARGE:
                raise ApiError(
                    code,
                    f"the decision of query {self._query_id} has {len(value or b'')} bytes, which is too large for "
                    f"topic {TOPIC}: raise its max.message.bytes, or write in fewer tasks",
                )
            if code is not ErrorCode.NONE:
                # What may pass when a batch is delivered may also pass here.
                sentence = f"{TOPIC}: {entry.error_message or code.name}"
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT if may(Again.DELIVER, code) else code, sentence)
            return entry.base_offset

        return self._cluster.ask_leader(
            PARTITION, Api.PRODUCE, request, ProduceResponse, read, driver.newest(Api.PRODUCE)
        )

    def _ensure_topic(self) -> None:
        if self._cluster.topics([TOPIC]):
            return
        brokers = len(self._cluster.brokers())
        replicas = min(REPLICAS, brokers)
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.insync.replicas": str(max(1, replicas - 1)),
        }
        wanted = NewTopic(TOPIC, 1, replicas if brokers else BROKER_DEFAULT, configs=settings)
        request = create_topic_request(wanted, round(CREATING_S * 1000))

        def read(answer: CreateTopicsResponse) -> None:
            if answer.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                read_created(answer)

        self._cluster.ask(Api.CREATE_TOPICS, request, CreateTopicsResponse, read)
        deadline = time.monotonic() + CREATING_S
        while not self._cluster.topics([TOPIC]) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)


def is_fenced(error: ApiError) -> bool:
    """Whether another driver of the query has taken over."""
    return error.code in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    )


def last_decisions(cluster: BlockingCluster) -> dict[str, Decision]:
    """The last decision of each query, from the whole topic. Waits for decisions that are being made."""
    if not cluster.topics([TOPIC]):
        return {}
    try:
        begin = cluster.list_offsets({PARTITION: EARLIEST_MS})[PARTITION].offset
        # Not the last stable offset: a decision may be behind an open transaction of another query's driver.
        end = cluster.list_offsets({PARTITION: LATEST_MS})[PARTITION].offset
    except NoSuchTopic:
        return {}
    found: dict[str, Decision] = {}
    for record in _records(cluster, begin, end, read_committed=True):
        if record.value is None:
            found.pop((record.key or b"").decode(), None)
        else:
            decision = Decision.decode(record)
            found[decision.query_id] = decision
    return found


def _records(cluster: BlockingCluster, begin: int, end: int, *, read_committed: bool) -> Iterator[Record]:
    stream = FetchStream(cluster, PARTITION, begin, end, read_committed=read_committed)
    for chunk in stream:
        aborted = [Aborted(first_offset, producer_id) for producer_id, first_offset in chunk.aborted]
        for record in decode(chunk.records, begin, aborted).records:
            if begin <= record.offset < end:
                yield record
