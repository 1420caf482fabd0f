"""The coordinators of one broker and their writers: groups, transactions, markers."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker_link.peer_requests import PeerRequests
from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.coordination.marker_writing import MarkerWriter
from penstock.coordination.markers import MarkerSender
from penstock.coordination.shard_host import Surroundings
from penstock.coordination.transactions import ProducerIds, TransactionCoordinator
from penstock.coordination.verification import Verifier
from penstock.core.metadata.image import TopicState
from penstock.core.txn.shard import TRANSACTION_STATE_TOPIC
from penstock.ports.workers import RecordWorkers
from penstock.replica.partition import Partition
from penstock.wire.apis import Api

MARKERS = frozenset((Api.WRITE_TXN_MARKERS,))
QUESTIONS = frozenset((Api.ADD_PARTITIONS_TO_TXN,))


class Coordinators:
    def __init__(
        self,
        around: Surroundings,
        producer_ids: ProducerIds,
        record_workers: RecordWorkers,
        peers: Callable[[frozenset[Api]], PeerRequests],
    ) -> None:
        """`peers`: connections for markers alone, so that markers and other requests do not wait for each other."""
        node_id = around.running.current.node_id
        self._peers = peers(MARKERS), peers(QUESTIONS)
        to_leaders, to_coordinators = self._peers
        self.groups = GroupCoordinator(around, record_workers)
        self.markers = MarkerWriter(around.loop, around.partitions, self.groups, around.clock)
        sender = MarkerSender(around.loop, node_id, around.controller.image, self.markers, to_leaders)
        self.transactions = TransactionCoordinator(around, producer_ids, sender)
        self.verifier = Verifier(node_id, around.running, self.transactions, to_coordinators)

    def start(self) -> None:
        self.groups.start()
        self.transactions.start()

    def stop(self) -> None:
        self.groups.stop()
        self.transactions.stop()
        for peers in self._peers:
            peers.close()

    def role_changed(self, partition: Partition) -> None:
        if partition.topic == OFFSETS_TOPIC:
            self.groups.role_changed(partition)
        elif partition.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.role_changed(partition)

    def topic_created(self, topic: TopicState) -> None:
        self.groups.topic_created(topic)
        self.transactions.topic_created(topic)

    def topic_deleted(self, name: str) -> None:
        self.groups.topic_deleted(name)
        self.transactions.topic_deleted(name)
