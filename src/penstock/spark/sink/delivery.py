"""The delivery guarantees of a task: the interface between the sink and the ways of delivery.

Spark runs a slice (one task of one batch) until one attempt succeeds, and after a crash it repeats the whole last
batch. A `SliceWriter` is one attempt: `begin` tells whether the rows are needed, `write` takes closed batches, `finish`
returns when they are in the log, `abandon` gives up. The sink only encodes.

    at-least-once   `AtLeastOnce`. The producer id is exclusive, so a batch that is sent again after a lost answer is
                    stored once. Rows of a repeated attempt are stored again.
    exactly-once    `sink.exactly_once.ExactlyOnce`. The rows are in a transaction that the driver commits
                    (`sink.deciding`).

Must not know: Arrow, options except the delivery and the producer's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from penstock.spark.options.cluster import ClusterOptions
from penstock.spark.sink.lanes import PartitionWritten, ProducerIdentity
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.producing import DeliveryFailed, TaskProducer
from penstock.spark.worker import cluster_for
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.metadata import metadata_request
from penstock.wire_client.requests.producing_transactions import OpenTransaction

logger = logging.getLogger(__name__)

TOPIC_MAX_AGE_S = 5.0
"""How soon rows go to partitions that were added."""
CREATED_WITHIN_S = 3.0
LOOK_AGAIN_S = 0.1
MAX_SHOWN = 20
MAX_KEPT = 16


class Slice(NamedTuple):
    """A task's share of a batch. Batch writes have neither query nor batch."""

    query_id: str | None
    batch_id: int | None
    partition_id: int
    run_id: str | None = None
    """The run of the query; a restart begins another."""


class Finished(NamedTuple):
    """The records of a successful attempt in the log."""

    partitions: tuple[PartitionWritten, ...]
    transaction: OpenTransaction | None = None
    """The transaction with the rows, for the driver to end."""
    is_repeat: bool = False
    """The batch is decided: the rows were dropped, because those of an earlier attempt count."""


class SliceWriter(Protocol):
    def begin(self, slice_: Slice) -> bool:
        """False if an earlier attempt has written these rows. They must be consumed and dropped."""
        ...

    def partition_count(self, topic: str) -> int: ...

    @property
    def batch_size_bytes(self) -> int:
        """The target size of a batch, which may shrink meanwhile."""
        ...

    def write(self, topic: str, partition: int, data: bytearray, record_count: int) -> None: ...

    def finish(self) -> Finished: ...

    def abandon(self) -> None: ...


class _Identities(threading.local):
    """This thread's producer ids without unacknowledged batches, by cluster. A parent process's ids are not used."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ClusterOptions], ProducerIdentity] = {}

    def take(self, cluster: ClusterOptions) -> ProducerIdentity | None:
        return self._kept.pop((os.getpid(), cluster), None)

    def keep(self, cluster: ClusterOptions, identity: ProducerIdentity | None) -> None:
        if identity is not None:
            self._kept[os.getpid(), cluster] = identity
            if len(self._kept) > MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))


_identities = _Identities()


class AtLeastOnce:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._cluster = cluster_for(options.cluster)
        self._destinations = Destinations(self._cluster, options.cluster)
        self._producer = TaskProducer(self._cluster, options.producer, _identities.take(options.cluster))

    def begin(self, slice_: Slice) -> bool:
        return True

    @property
    def batch_size_bytes(self) -> int:
        return self._producer.batch_size_bytes

    def partition_count(self, topic: str) -> int:
        return self._destinations.partition_count(topic)

    def write(self, topic: str, partition: int, data: bytearray, record_count: int) -> None:
        self._producer.send(topic, partition, data, record_count)

    def finish(self) -> Finished:
        self._producer.flush()
        self._producer.close()
        _identities.keep(self._options.cluster, self._producer.identity)
        return Finished(tuple(self._producer.written()))

    def abandon(self) -> None:
        written = list(self._producer.written())
        self._destinations.forget()
        self._producer.close()
        if written:
            logger.warning(
                "a task attempt has failed; the records that it has written stay in the topics: %s", describe(written)
            )


class Destinations:
    """The topics that rows go to."""

    def __init__(self, cluster: BlockingCluster, reach: ClusterOptions) -> None:
        self._cluster = cluster
        self._reach = reach
        self._topics: set[str] = set()

    def forget(self) -> None:
        """Called after a failure, which may have its cause in old metadata: the next attempt asks again."""
        for topic in self._topics:
            self._cluster.forget(topic)

    def partition_count(self, topic: str) -> int:
        """Raises ApiError, WireClientError, DeliveryFailed. The broker may create a topic that does not exist."""
        self._topics.add(topic)
        # As a rule it is known from an earlier task of this worker.
        found = self._cluster.known_topic(topic, TOPIC_MAX_AGE_S) or self._cluster.topics([topic]).get(topic)
        if found is None:
            self._ask_for_creation(topic)
            deadline = time.monotonic() + CREATED_WITHIN_S
            while (found := self._cluster.topics([topic]).get(topic)) is None:
                if time.monotonic() > deadline:
                    raise DeliveryFailed(
                        f"topic '{topic}' does not exist, and the broker does not create topics automatically "
                        f"(auto.create.topics.enable): create it first, for example by `penstock topics create {topic}`"
                    )
                time.sleep(LOOK_AGAIN_S)
        return len(found.partitions)

    def _ask_for_creation(self, topic: str) -> None:
        """Requests the topic's metadata, as Kafka's producer does. The answer does not tell if it will be created."""
        reach = self._reach
        request = metadata_request([topic], create=True)
        failure = WireClientError("no broker address was given")
        for address in reach.bootstrap:
            try:
                with BlockingConnection.open(*address, reach.client_id, reach.security) as connection:
                    connection.call(Api.METADATA, request, MetadataResponse)
                    return
            except WireClientError as error:
                failure = error
        raise failure


def describe(written: Iterable[PartitionWritten]) -> str:
    """ "clicks: 300 records in 2 partitions (0 up to offset 149, 1 up to offset 149)"."""
    topics: dict[str, list[PartitionWritten]] = {}
    for entry in written:
        topics.setdefault(entry.topic, []).append(entry)
    return "; ".join(_describe_topic(topic, entries) for topic, entries in sorted(topics.items())) or "nothing"


def _describe_topic(topic: str, entries: list[PartitionWritten]) -> str:
    shown = [f"{entry.partition} up to offset {entry.last_offset}" for entry in entries[:MAX_SHOWN]]
    if len(entries) > MAX_SHOWN:
        shown.append("...")
    records = sum(entry.records for entry in entries)
    return f"{topic}: {records} records in {len(entries)} partitions ({', '.join(shown)})"
