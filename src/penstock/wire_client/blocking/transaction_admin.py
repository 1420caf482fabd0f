"""Administration of transactions: requests to transaction coordinators and to leaders of partitions.

Must not know: how results are shown. Invariant, as in `BlockingCluster`: every request is harmless when it is sent
twice. A second abort marker finds no open transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.describe_producers import DescribeProducersResponse
from penstock.wire.messages.describe_transactions import DescribeTransactionsResponse
from penstock.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.wire.messages.list_transactions import ListTransactionsResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import NoSuchTopic
from penstock.wire_client.requests.producer_ids import fence_request, read_begun
from penstock.wire_client.requests.sentences import no_such_partition, partition_refused
from penstock.wire_client.requests.transactions import (
    PartitionProducer,
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
    abort_request,
    check_aborted,
    describe_request,
    list_request,
    producers_request,
    read_described,
    read_listed,
    read_producers,
)

ALL = TransactionFilter()


class TransactionAdmin:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    # -- coordinators -------------------------------------------------------------------

    def transactional_ids(self, which: TransactionFilter = ALL) -> list[TransactionListing]:
        """All transactional ids that pass the filter, sorted. Raises ApiError, also for an unknown state."""
        request = list_request(which)
        found: list[TransactionListing] = []
        for broker in self._cluster.brokers():

            def read(answer: ListTransactionsResponse, node_id: int = broker.node_id) -> list[TransactionListing]:
                listed, unknown = read_listed(answer, node_id)
                if unknown:
                    raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown transaction state: {', '.join(unknown)}")
                return listed

            found += self._cluster.ask_broker(
                broker.node_id, Api.LIST_TRANSACTIONS, request, ListTransactionsResponse, read
            )
        return sorted(found)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Raises ApiError(TRANSACTIONAL_ID_NOT_FOUND)."""

        return self._cluster.ask_coordinator(
            transactional_id,
            Api.DESCRIBE_TRANSACTIONS,
            describe_request(transactional_id),
            DescribeTransactionsResponse,
            read_described,
        )

    def fence(self, transactional_id: str) -> tuple[int, int]:
        """Aborts the open transaction and fences its producer. Returns the producer id and the new epoch."""
        return self._cluster.ask_coordinator(
            transactional_id,
            Api.INIT_PRODUCER_ID,
            fence_request(transactional_id),
            InitProducerIdResponse,
            lambda answer, _: read_begun(transactional_id, answer),
        )

    # -- leaders ------------------------------------------------------------------------

    def producers(self, where: TopicPartition) -> list[PartitionProducer]:
        """The producers of a partition, sorted by producer id. Raises ApiError."""

        def read(answer: DescribeProducersResponse) -> list[PartitionProducer]:
            found, refused = read_producers(answer)
            if refused:
                raise ApiError(refused[where], partition_refused(refused[where], *where))
            return sorted(found)

        request = producers_request([where])
        return self._cluster.ask_leader(where, Api.DESCRIBE_PRODUCERS, request, DescribeProducersResponse, read)

    def check_topic(self, name: str, partition: int | None = None) -> None:
        """Raises ApiError for a topic or a partition that does not exist."""
        topic = self._cluster.topic(name)
        if partition is not None and partition >= len(topic.partitions):
            raise NoSuchTopic(no_such_partition(name, partition))

    def open_transactions(self, topics: Iterable[str] | None = None) -> list[PartitionProducer]:
        """Producers with an open transaction in all topics or in `topics`, sorted by partition and first offset.

        Partitions without a leader are left out, and so are partitions whose leader has just changed.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for name, topic in self._cluster.topics(topics).items():
            for index, partition in enumerate(topic.partitions):
                if partition.leader_id >= 0:
                    by_leader.setdefault(partition.leader_id, []).append(TopicPartition(name, index))
        found: list[PartitionProducer] = []
        for leader, partitions in by_leader.items():
            found += self._cluster.ask_broker(
                leader,
                Api.DESCRIBE_PRODUCERS,
                producers_request(partitions),
                DescribeProducersResponse,
                lambda answer: read_producers(answer)[0],
            )
        is_open = (one for one in found if one.start_offset is not None)
        return sorted(is_open, key=lambda one: (one.partition, one.start_offset))

    def abort(self, where: TopicPartition, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Writes an abort marker into one partition. Raises ApiError."""
        self._cluster.ask_leader(
            where,
            Api.WRITE_TXN_MARKERS,
            abort_request(where, producer_id, epoch, coordinator_epoch),
            WriteTxnMarkersResponse,
            check_aborted,
        )
