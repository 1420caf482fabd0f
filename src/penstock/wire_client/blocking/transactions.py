"""Transactions for blocking code: begin one, write offsets in it, end it, perhaps from another process.

Every process that knows an `OpenTransaction` may end it. Records are written elsewhere (`spark.sink.producing`). Must
not know: what is written, who decides. Invariant, as in `BlockingCluster`: every request is harmless when it is sent
twice. A repeated end in the same direction is confirmed, until another producer begins with the transactional id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.describe_configs import DescribeConfigsResponse
from penstock.wire.messages.describe_transactions import DescribeTransactionsResponse
from penstock.wire.messages.end_txn import EndTxnResponse
from penstock.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitResponse
from penstock.wire_client.blocking.cluster import BlockingCluster, Question
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.configs import BROKER, configs_request, read_configs
from penstock.wire_client.requests.errors import error_code
from penstock.wire_client.requests.features import features_request, read_transaction_version
from penstock.wire_client.requests.groups import GROUP_KEY, TRANSACTION_KEY, CoordinatorKey, OffsetAndMetadata
from penstock.wire_client.requests.producer_ids import (
    TWO_PHASE_VERSION,
    begin_request,
    read_begun,
    two_phase_request,
)
from penstock.wire_client.requests.producing_transactions import (
    OpenTransaction,
    add_group_request,
    add_partitions_request,
    check_group_added,
    check_offsets_added,
    check_partitions_added,
    commit_offsets_request,
    end_request,
)
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.transactions import (
    TransactionDescription,
    describe_request,
    read_described,
)

T = TypeVar("T")

MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS: Final = 900_000
NO_TWO_PHASE: Final = frozenset(
    (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TRANSACTION_TIMEOUT, ErrorCode.INVALID_REQUEST)
)


class Transactions:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    def version(self) -> int:
        """The cluster's transaction version, asked now."""
        return self._cluster.ask(Api.API_VERSIONS, features_request(), ApiVersionsResponse, read_transaction_version)

    def longest_timeout_ms(self, node_id: int) -> int:
        """The longest timeout of a transaction that this broker allows. Brokers that do not tell: Kafka's default."""

        def read(answer: DescribeConfigsResponse) -> int:
            return next((int(one.value) for one in read_configs(answer) if one.value), DEFAULT_MAX_TIMEOUT_MS)

        request = configs_request(BROKER, str(node_id), [MAX_TIMEOUT])
        try:
            return self._cluster.ask_broker(node_id, Api.DESCRIBE_CONFIGS, request, DescribeConfigsResponse, read)
        except ApiError as error:
            if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                return DEFAULT_MAX_TIMEOUT_MS
            raise

    def begin(
        self, transactional_id: str, timeout_ms: int | None = None, *, two_phase: bool = False
    ) -> OpenTransaction:
        """Fences earlier producers of this id, and aborts their open transaction. Raises ApiError.

        `timeout_ms` None: as long as the cluster allows. `two_phase`: without a timeout, if the cluster offers that.
        """
        version = self.version()
        if two_phase:
            begun = self._begin_two_phase(transactional_id)
            if begun is not None:
                return OpenTransaction(transactional_id, *begun, version, is_two_phase=True)

        def ask(connection: BlockingConnection, timeout_s: float) -> tuple[int, int]:
            answer = connection.call(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, timeout_s)
            return read_begun(transactional_id, answer)

        longest_ms = self._longest_of(transactional_id) if timeout_ms is None or two_phase else timeout_ms
        request = begin_request(transactional_id, min(longest_ms, timeout_ms or longest_ms))
        return OpenTransaction(transactional_id, *self._at(transactional_id, ask), version, is_two_phase=False)

    def _begin_two_phase(self, transactional_id: str) -> tuple[int, int] | None:
        """None if the cluster does not offer it."""

        def ask(connection: BlockingConnection, timeout_s: float) -> tuple[int, int] | None:
            if connection.newest(Api.INIT_PRODUCER_ID) < TWO_PHASE_VERSION:
                return None
            request = two_phase_request(transactional_id)
            answer = connection.call(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, timeout_s)
            if error_code(answer.error_code) in NO_TWO_PHASE:
                return None
            return read_begun(transactional_id, answer)

        return self._at(transactional_id, ask)

    def _longest_of(self, transactional_id: str) -> int:
        return self.longest_timeout_ms(self._cluster.coordinator_of(transactional_id))

    def add_partitions(self, of: OpenTransaction, partitions: Iterable[TopicPartition]) -> None:
        """Before the first write to these partitions. Does nothing where brokers add them. Raises ApiError."""
        if not of.adds_partitions:
            return
        request = add_partitions_request(of, partitions)

        def ask(connection: BlockingConnection, timeout_s: float) -> None:
            key = Api.ADD_PARTITIONS_TO_TXN
            answer = connection.call(key, request, AddPartitionsToTxnResponse, timeout_s, of.newest(key))
            check_partitions_added(answer)

        self._at(of.transactional_id, ask)

    def commit_offsets(
        self, of: OpenTransaction, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Offsets that count when the transaction is committed. The group must have no members. Raises ApiError."""
        if of.adds_partitions:
            request = add_group_request(of, group)

            def add(connection: BlockingConnection, timeout_s: float) -> None:
                answer = connection.call(Api.ADD_OFFSETS_TO_TXN, request, AddOffsetsToTxnResponse, timeout_s)
                check_group_added(of, answer)

            self._at(of.transactional_id, add)
        committing = commit_offsets_request(of, group, offsets)

        def commit(connection: BlockingConnection, timeout_s: float) -> None:
            key = Api.TXN_OFFSET_COMMIT
            answer = connection.call(key, committing, TxnOffsetCommitResponse, timeout_s, of.newest(key))
            check_offsets_added(group, answer)

        self._cluster.at_coordinator(CoordinatorKey(GROUP_KEY, group), commit)

    def end(
        self,
        transactions: Iterable[OpenTransaction],
        *,
        is_commit: bool,
        on_answer: Callable[[], None] = lambda: None,
    ) -> dict[OpenTransaction, ErrorCode]:
        """Ends transactions and returns the coordinators' answers. Errors that may pass are retried.

        NONE also confirms an end that was repeated.
        """
        answered: dict[OpenTransaction, ErrorCode] = {}
        by_newest: dict[int | None, dict[str, OpenTransaction]] = {}
        for one in transactions:
            by_newest.setdefault(one.newest(Api.END_TXN), {})[one.transactional_id] = one

        def read(_: str, answer: EndTxnResponse) -> ErrorCode:
            code = error_code(answer.error_code)
            if may(Again.ASK, code):
                raise ApiError(code)
            on_answer()
            return code

        for newest, named in by_newest.items():
            requests = {name: end_request(one, is_commit=is_commit) for name, one in named.items()}
            question = Question(Api.END_TXN, EndTxnResponse, read, newest)
            codes = self._cluster.ask_coordinators(requests, question)
            answered |= {named[name]: code for name, code in codes.items()}
        return answered

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Ids that no coordinator knows are left out."""

        def read(name: str, answer: DescribeTransactionsResponse) -> TransactionDescription | None:
            try:
                return read_described(answer, -1)
            except ApiError as error:
                if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    return None
                raise

        question = Question(Api.DESCRIBE_TRANSACTIONS, DescribeTransactionsResponse, read)
        found = self._cluster.ask_coordinators({name: describe_request(name) for name in transactional_ids}, question)
        return {name: one for name, one in found.items() if one is not None}

    def _at(self, transactional_id: str, ask: Callable[[BlockingConnection, float], T]) -> T:
        return self._cluster.at_coordinator(CoordinatorKey(TRANSACTION_KEY, transactional_id), ask)
