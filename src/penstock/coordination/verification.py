"""Asks the coordinator, before the first write, whether a partition belongs to a producer's open transaction.

A client of transaction version 0 or 1 has added the partition itself, so the leader only asks. With version 2 the
partition leader adds it (KIP-890). While an earlier transaction of the producer is still ending, the coordinator
answers CONCURRENT_TRANSACTIONS. The request is then repeated for a while, because that is over soon.

Must not know: logs, connections of clients. Invariant: an answer is about the producer id and epoch of its request.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker_link.peer_requests import PeerRequests
from penstock.cluster.running_config import RunningConfig
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.txn.exchange import AddRequest
from penstock.core.txn.transaction import FIRST_WITH_RISING_EPOCHS
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

ASK_TIMEOUT_S: Final = 5.0
LONGEST_S: Final = 10.0
AGAIN: Final = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator does not know the partition yet
    )
)


class Verifier:
    def __init__(
        self,
        node_id: int,
        running: RunningConfig,
        transactions: TransactionCoordinator,
        peers: PeerRequests,
    ) -> None:
        self._node_id = node_id
        self._running = running
        self._transactions = transactions
        self._peers = peers

    @property
    def is_on(self) -> bool:
        """If off, partitions are still added for version 2; clients of versions 0 and 1 are trusted."""
        return self._running.current.transaction_partition_verification_enable

    async def verify(self, request: AddRequest, patience_s: float = LONGEST_S) -> dict[Place, ErrorCode]:
        """NONE: the partition is part of the open transaction. Retries temporary errors while the caller can wait."""
        loop = asyncio.get_running_loop()
        settings = self._running.current
        pause_s = settings.add_partitions_to_txn_retry_backoff_ms / 1000
        longest_s = settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        deadline = loop.time() + min(patience_s, LONGEST_S)
        while True:
            codes = await self._once(request)
            if loop.time() + pause_s >= deadline or not any(code in AGAIN for code in codes.values()):
                return codes
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _once(self, request: AddRequest) -> dict[Place, ErrorCode]:
        leader = self._transactions.leader_of(request.transactional_id)
        if leader is None:
            return dict.fromkeys(request.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            if leader == self._node_id:
                return await self._here(request)
            return await self._there(leader, request)
        except ApiError as error:
            return dict.fromkeys(request.partitions, error.code)
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut):
            return dict.fromkeys(request.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _here(self, request: AddRequest) -> dict[Place, ErrorCode]:
        if request.version >= FIRST_WITH_RISING_EPOCHS:
            return dict.fromkeys(request.partitions, (await self._transactions.add_partitions(request)).code)
        reply = await self._transactions.verify_partitions(request)
        return {
            place: ErrorCode.TRANSACTION_ABORTABLE if place in reply.missing else reply.code
            for place in request.partitions
        }

    async def _there(self, leader: int, request: AddRequest) -> dict[Place, ErrorCode]:
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(request.partitions):
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.epoch,
            verify_only=request.version < FIRST_WITH_RISING_EPOCHS,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
        )
        answer = await self._peers.ask(
            leader,
            Api.ADD_PARTITIONS_TO_TXN,
            AddPartitionsToTxnRequest(transactions=[transaction]),
            AddPartitionsToTxnResponse,
            ASK_TIMEOUT_S,
        )
        if answer.error_code:
            return dict.fromkeys(request.partitions, ErrorCode(answer.error_code))
        found = {
            (topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        codes = {place: found.get(place, ErrorCode.UNKNOWN_SERVER_ERROR) for place in request.partitions}
        # Beside a partition that is not there, as one of a deleted topic: the others are sent again without it.
        return {
            place: ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.OPERATION_NOT_ATTEMPTED else code
            for place, code in codes.items()
        }
