"""`BlockingConsumer`: a consumer for one thread. `Consumer` calls it from a dedicated thread.

Invariants: one thread at a time calls librdkafka. When a partition is revoked, the offsets of finished records are
stored, buffered records are dropped, and no later commit includes the partition. A start position given in `on_assign`
is part of the assignment, because librdkafka cannot seek in a partition that it does not fetch yet. If no broker was
ever reached, reading raises `Unreachable` after request_timeout_ms; if contact was lost later, the consumer waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeAlias, Unpack

from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException, Message
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.consumer_config import ConsumerConfig, ConsumerOptions
from penstock.sdk.errors import BadSetting, ClientClosed, ClientError, CommitFailed, Unreachable
from penstock.sdk.handout import Handout
from penstock.sdk.metrics import ConsumerMetrics, Counts, Statistics, consumer_metrics
from penstock.sdk.offset_lookup import OffsetLookup, own
from penstock.sdk.records import Position, Record, checked_partitions, record_of
from penstock.sdk.settings import ClusterConnection, log

SLICE_S = 0.1
SEEK_PAUSE_S = 0.02
LAST_TRY_S = 1.0
_NO_SUCH_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

Partitions: TypeAlias = Iterable[TopicPartition]
OnRebalance: TypeAlias = Callable[[list[TopicPartition]], None]
Commitable: TypeAlias = Record | Iterable[Record] | Mapping[TopicPartition, int]


class BlockingConsumer:
    """
    with BlockingConsumer("localhost:9092", group="billing") as consumer:
        consumer.subscribe("events")
        for record in consumer:
            print(record.text())
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[ConsumerOptions]) -> None:
        config = self._config = ConsumerConfig(**options)
        self._connection = ClusterConnection(bootstrap_servers, config.client_id, config.settings, config.begin_with)
        self._timeout_s = config.request_timeout_ms / 1000
        self.handout = Handout()
        self._statistics = Statistics()
        self._error: ClientError | None = None
        self._ended: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] | None = None
        self._taken_away: set[TopicPartition] = set()
        self._is_subscribed = False
        self._alone_since: float | None = None
        self._commits = self._commits_failed = self._rebalances = 0
        self._stored_at = time.monotonic()
        self._is_closed = False
        own = {"stats_cb": self._on_statistics, "on_commit": self._on_commit}
        try:
            self._client = LibrdkafkaConsumer(self._connection.configuration({**config.librdkafka(), **own}))
        except (KafkaException, TypeError, ValueError) as error:
            raise self._connection.refused_setting(error, "cannot make a consumer") from error
        self._lookup = OffsetLookup(self._client, self._connection, config)

    # -- subscription and assignment -------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Subscribes as a member of the group. A topic that begins with ^ is a regular expression.

        `on_assign` may seek and `on_revoke` may commit. `on_lost` gets partitions that may already have other owners.
        """
        if self._config.group is None:
            raise BadSetting("subscribe needs a group: give group=..., or use assign")
        self._open()

        def assigned(_: LibrdkafkaConsumer, partitions: list[LibrdkafkaPartition]) -> None:
            self._assigned(partitions, on_assign)

        def revoked(_: LibrdkafkaConsumer, partitions: list[LibrdkafkaPartition]) -> None:
            self._revoked(partitions, on_revoke)

        def lost(_: LibrdkafkaConsumer, partitions: list[LibrdkafkaPartition]) -> None:
            self._revoked(partitions, on_lost, is_lost=True)

        with self._connection.translated("cannot subscribe"):
            self._client.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)
        self._is_subscribed = True

    def unsubscribe(self) -> None:
        self._open()
        self._store()
        with self._connection.translated("cannot unsubscribe"):
            self._client.unsubscribe()
        self._is_subscribed = False
        self.handout.forget_all()

    def assign(
        self, *what: str | TopicPartition, at: Position | Mapping[TopicPartition, Position] = "committed"
    ) -> None:
        """Assigns partitions, or all partitions of topics, without the group. Replaces the earlier assignment."""
        self._open()
        partitions = [
            one
            for item in what
            for one in (self.partitions(item) if isinstance(item, str) else checked_partitions([item]))
        ]
        starts = at if isinstance(at, Mapping) else dict.fromkeys(partitions, at)
        partitions = partitions or list(starts)
        offsets = self._lookup.resolve(starts, seeking=False)
        with self._connection.translated("cannot assign partitions"):
            self._client.assign([LibrdkafkaPartition(*one, offsets.get(one, OFFSET_STORED)) for one in partitions])
        self._is_subscribed = False
        self.handout.forget_all()
        self._ended.clear()

    def assignment(self) -> list[TopicPartition]:
        self._open()
        with self._connection.translated("cannot read the assignment"):
            return sorted(own(one) for one in self._client.assignment())

    def partitions(self, topic: str) -> list[TopicPartition]:
        self._open()
        self._connection.check()
        with self._connection.translated(f"cannot read the partitions of {topic}"):
            entry = self._client.list_topics(topic, timeout=self._timeout_s).topics[topic]
        if entry.error is not None:
            raise self._connection.error(entry.error, f"topic {topic}")
        self._connection.answered()
        return [TopicPartition(topic, number) for number in sorted(entry.partitions)]

    # -- reading ---------------------------------------------------------------------------------------------

    def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[Record]:
        """Returns the available records. Waits for the first one, and returns an empty list if none arrives in time."""
        self.handout.finish()
        deadline = time.monotonic() + timeout_s
        while not self.handout:
            self.fill(max(0.0, min(SLICE_S, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                break
        return self.handout.take(max_records or self._config.max_poll_records)

    def __iter__(self) -> Iterator[Record]:
        """Iterates over records without end."""
        while True:
            record = self.next_buffered()
            if record is not None:
                if self.wants_store():
                    self._store()
                yield record
            else:
                self.fill(SLICE_S)

    def next_buffered(self) -> Record | None:
        self.handout.finish()
        taken = self.handout.take(1)
        return taken[0] if taken else None

    def fill(self, timeout_s: float) -> None:
        """Waits for one message, then takes all other messages that have arrived."""
        self._open()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._store()
        with self._connection.translated("cannot read"):
            first = self._client.poll(timeout_s)
            if first is None:
                self._check_contact()
                return
            # A rebalance may run inside consume(). librdkafka then drops its messages; the first one is already ours.
            self._taken_away.clear()
            rest = self._client.consume(self._config.max_poll_records - 1, 0)
        messages = [first, *rest] if _partition_of(first) not in self._taken_away else rest
        if self._taken_away:
            held = {own(one) for one in self._client.assignment()}
            messages = [one for one in messages if _partition_of(one) not in self._taken_away - held]
        if any(one.error() is None for one in messages):
            self._connection.answered()
        self.handout.add(record_of(message) for message in messages if self._is_record(message))
        if self._error is not None and not self.handout:
            error, self._error = self._error, None
            raise error

    def _check_contact(self) -> None:
        """Raises Unreachable if no broker has ever answered. Later librdkafka reconnects by itself."""
        if self._connection.has_answered:
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since < self._timeout_s:
            return
        try:
            self._client.list_topics(timeout=min(LAST_TRY_S, self._timeout_s))
        except KafkaException as error:
            self._alone_since = None
            raise Unreachable(self._connection.servers) from error
        self._connection.answered()

    @property
    def is_down(self) -> bool:
        """The connection to the cluster was lost, and nothing has arrived since."""
        return self._connection.is_down

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            self._ended.discard(_partition_of(message))
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended.add(_partition_of(message))
        elif error.code() in _NO_SUCH_TOPIC:
            log.warning("%s", error.str())  # the topic may still be created
        elif self._error is None:
            self._error = self._connection.error(error, "cannot read")
        return False

    def at_end(self) -> bool:
        """Whether nothing is buffered and every assigned partition has been read to its end."""
        assigned = self.assignment()
        return not self.handout and bool(assigned) and self._ended.issuperset(assigned)

    # -- moving ----------------------------------------------------------------------------------------------

    def seek(self, to: Position, partitions: Partitions | None = None) -> None:
        """Moves the positions of the given partitions, or of all assigned ones."""
        self._open()
        if partitions is None:
            partitions = self._starts if self._starts is not None else self.assignment()
        offsets = self._lookup.resolve(dict.fromkeys(partitions, to), seeking=True)
        for partition, offset in offsets.items():
            self._seek(partition, offset)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that the application gets, if known."""
        buffered = self.handout.first_buffered(partition)
        return self.handout.positions().get(partition) if buffered is None else buffered

    def pause(self, partitions: Partitions) -> None:
        self._open()
        paused = list(partitions)
        with self._connection.translated("cannot pause"):
            self._client.pause([LibrdkafkaPartition(*one) for one in paused])
        for one in paused:
            first = self.handout.first_buffered(one)
            if first is not None:
                self._client.seek(LibrdkafkaPartition(*one, first))  # fetched again after resume
        self.handout.forget(paused, buffered_only=True)

    def resume(self, partitions: Partitions) -> None:
        self._open()
        with self._connection.translated("cannot resume"):
            self._client.resume([LibrdkafkaPartition(*one) for one in partitions])

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self.handout.forget([partition])
        self._ended.discard(partition)
        if self._starts is not None:
            self._starts[partition] = offset
            return
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._client.seek(LibrdkafkaPartition(*partition, offset))
                return
            except KafkaException as error:
                # librdkafka needs a moment to start fetching a new assignment.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise self._connection.error(error, f"cannot seek in {partition}") from error
            time.sleep(SEEK_PAUSE_S)

    # -- offsets ---------------------------------------------------------------------------------------------

    def commit(self, what: Commitable | None = None) -> None:
        """Commits, and waits for the coordinator. Without an argument: everything that the application got so far."""
        offsets = self.offsets_to_commit(what)
        if offsets:
            self.commit_offsets(offsets, is_everything=what is None)

    def offsets_to_commit(self, what: Commitable | None) -> dict[TopicPartition, int]:
        if what is None:
            return self.handout.positions()
        if isinstance(what, Mapping):
            return dict(zip(checked_partitions(what), what.values(), strict=True))
        records = (what,) if isinstance(what, Record) else what
        offsets: dict[TopicPartition, int] = {}
        for record in records:
            key = record.topic_partition
            offsets[key] = max(offsets.get(key, 0), record.offset + 1)
        return offsets

    def transactional_offsets(self, what: Commitable | None) -> tuple[dict[TopicPartition, int], Any]:
        """Offsets for a producer's transaction, and this consumer's group metadata."""
        self._open()
        if self._config.group is None:
            raise BadSetting("send_offsets needs a consumer with a group: give group=...")
        if self._config.auto_commit:
            raise BadSetting(
                "send_offsets needs a consumer with auto_commit=False: offsets are committed by the transaction alone"
            )
        with self._connection.translated("cannot send offsets"):
            return self.offsets_to_commit(what), self._client.consumer_group_metadata()

    def commit_offsets(self, offsets: Mapping[TopicPartition, int], *, is_everything: bool = False) -> None:
        """Commits offsets, except of revoked partitions: that would move back the offsets of their new owners."""
        self._open()
        if self._config.group is None:
            raise BadSetting("commit needs a group: give group=...")
        doing = "cannot commit"
        gone: list[TopicPartition] = []
        if self._is_subscribed:
            held = {*(own(one) for one in self._client.assignment()), *(self._starts or ())}
            gone = [one for one in offsets if one not in held]
            offsets = {one: offset for one, offset in offsets.items() if one in held}
        if offsets:
            self._commit(offsets, doing)
        if gone and not is_everything:
            raise CommitFailed(
                f"{doing} {', '.join(map(str, gone))}: these partitions now belong to other members, which will read "
                "the records again",
                "ASSIGNMENT_LOST",
            )

    def _commit(self, offsets: Mapping[TopicPartition, int], doing: str) -> None:
        with self._connection.translated(doing):
            answers = self._client.commit(
                offsets=[LibrdkafkaPartition(*partition, offset) for partition, offset in offsets.items()],
                asynchronous=False,
            )
        for answer in answers:
            if answer.error is not None:
                self._commits_failed += 1
                raise self._connection.error(answer.error, f"{doing} {own(answer)}")
        self._commits += 1

    def committed(self, partitions: Partitions | None = None) -> dict[TopicPartition, int | None]:
        self._open()
        return self._lookup.committed(self.assignment() if partitions is None else partitions)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset and the end offset of the log."""
        self._open()
        return self._lookup.bounds(partition)

    def offsets_at(self, times: Mapping[TopicPartition, datetime]) -> dict[TopicPartition, int | None]:
        """The offset of the first record at or after the time; None if there is none."""
        self._open()
        return self._lookup.at(times)

    def wants_store(self) -> bool:
        """Whether finished records have waited for a second to be stored for the automatic commit."""
        return self.handout.has_done() and time.monotonic() - self._stored_at > 1.0

    def store(self) -> None:
        self._store()

    def _store(self) -> None:
        """Stores the offsets of finished records in librdkafka, which commits them every auto_commit_interval_ms."""
        self._stored_at = time.monotonic()
        if not self._config.auto_commit or self._config.group is None:
            return
        done = self.handout.take_done()
        if not done:
            return
        try:
            self._client.store_offsets(offsets=[LibrdkafkaPartition(*one, offset) for one, offset in done.items()])
        except KafkaException as error:
            # The partition was revoked: its new owner starts from the last commit.
            log.debug("offsets not stored: %s", error)

    # -- rebalances and reports ------------------------------------------------------------------------------

    def _assigned(self, partitions: list[LibrdkafkaPartition], told: OnRebalance | None) -> None:
        self._rebalances += 1
        self._connection.answered()
        self._starts = {}
        try:
            if told is not None and partitions:
                self._starts = dict.fromkeys(map(own, partitions), OFFSET_STORED)
                told([own(one) for one in partitions])
        finally:
            starts, self._starts = self._starts, None
            with_starts = [LibrdkafkaPartition(*own(one), starts.get(own(one), OFFSET_STORED)) for one in partitions]
            if self._config.is_cooperative:
                self._client.incremental_assign(with_starts)
            else:
                self._client.assign(with_starts)

    def _revoked(
        self, partitions: list[LibrdkafkaPartition], told: OnRebalance | None, *, is_lost: bool = False
    ) -> None:
        self._rebalances += 1
        gone = [own(one) for one in partitions]
        self._taken_away.update(gone)
        if not is_lost:
            self._store()
        try:
            if told is not None and gone:
                told(gone)
        finally:
            self.handout.forget(gone)
            self._ended.difference_update(gone)

    def _on_statistics(self, document: str) -> None:
        self._statistics.received(document, self._counts())

    def _on_commit(self, error: KafkaError | None, partitions: list[LibrdkafkaPartition]) -> None:
        """Called after automatic commits. Other commits return their result directly."""
        if error is None:
            self._commits += 1
        elif error.code() != KafkaError._NO_OFFSET:
            self._commits_failed += 1
            log.warning("commit failed: %s", error.str())

    def _counts(self) -> Counts:
        return Counts(self.handout.records, self.handout.size_bytes, self._commits_failed, self._commits)

    def metrics(self) -> ConsumerMetrics:
        return consumer_metrics(self._statistics, self._counts(), self.handout.positions(), self._rebalances)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, *, is_done: bool = True) -> None:
        """Commits finished records, if commits are automatic, and leaves the group.

        `is_done=False`: the last records were not handled and are to be read again.
        """
        if self._is_closed:
            return
        if is_done:
            self.handout.finish()
        self._store()
        try:
            self._client.close()  # on_revoke may still commit
        finally:
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_done=error is None)

    def _open(self) -> None:
        if self._is_closed:
            raise ClientClosed("consumer")


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)
