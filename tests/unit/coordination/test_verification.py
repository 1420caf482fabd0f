"""Whether a partition belongs to a transaction: asked here or of another broker, again while that passes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.broker_link.peer_requests import PeerRequests
from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.coordination.transactions import TransactionCoordinator
from penstock.coordination.verification import AGAIN, Verifier
from penstock.core.metadata.image import MetadataImage
from penstock.core.txn.exchange import AddReply, AddRequest, VerifyReply
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

HERE, THERE = 1, 2
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


class Coordinator:
    """Of all transactional ids; `answers` are given in turn, the last one for ever."""

    def __init__(self, leader: int | None, answers: list[Any]) -> None:
        self.leader = leader
        self._answers = answers
        self.asked: list[tuple[str, AddRequest]] = []
        self.sent: list[tuple[int, AddPartitionsToTxnRequest]] = []

    def _next(self) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    # -- TransactionCoordinator
    def leader_of(self, transactional_id: str) -> int | None:
        return self.leader

    async def add_partitions(self, request: AddRequest) -> AddReply:
        self.asked.append(("add", request))
        return AddReply(self._next())

    async def verify_partitions(self, request: AddRequest) -> VerifyReply:
        self.asked.append(("verify", request))
        answer = self._next()
        return answer if isinstance(answer, VerifyReply) else VerifyReply(answer)

    # -- PeerRequests
    async def ask(self, broker: int, key: Api, request: AddPartitionsToTxnRequest, kind: type, timeout_s: float) -> Any:
        assert (key, kind) == (Api.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnResponse)
        self.sent.append((broker, request))
        answer = self._next()
        if isinstance(answer, AddPartitionsToTxnResponse):
            return answer
        codes = dict.fromkeys((T0, T1, U0), answer) if isinstance(answer, ErrorCode) else answer
        (asked,) = request.transactions
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=asked.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=codes[topic.name, index]
                                )
                                for index in topic.partitions
                                if (topic.name, index) in codes
                            ],
                        )
                        for topic in asked.topics
                    ],
                )
            ]
        )


def verifier(coordinator: Coordinator, **settings: str) -> Verifier:
    given = {"log.dirs": "/data", "add.partitions.to.txn.retry.backoff.ms": "1"}
    given |= {"add.partitions.to.txn.retry.backoff.max.ms": "4"} | settings
    running = RunningConfig(BrokerConfig.load(None, given)[0], MetadataImage())
    return Verifier(HERE, running, cast(TransactionCoordinator, coordinator), cast(PeerRequests, coordinator))


def request(*places: Place, version: int = 0) -> AddRequest:
    return AddRequest("id", 7, 3, frozenset(places), version)


async def test_a_coordinator_on_this_broker_is_asked_without_a_detour() -> None:
    coordinator = Coordinator(HERE, [VerifyReply(ErrorCode.NONE, frozenset((T1,)))])
    codes = await verifier(coordinator).verify(request(T0, T1))
    assert codes == {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}
    assert coordinator.asked == [("verify", request(T0, T1))]
    coordinator = Coordinator(HERE, [ErrorCode.NONE])
    codes = await verifier(coordinator).verify(request(T0, version=2))
    assert codes == {T0: ErrorCode.NONE}
    assert coordinator.asked == [("add", request(T0, version=2))]
    assert coordinator.sent == []


@pytest.mark.parametrize(("version", "verify_only"), [(0, True), (1, True), (2, False)])
async def test_a_coordinator_on_another_broker_is_asked_as_kafka_asks_it(version: int, verify_only: bool) -> None:
    coordinator = Coordinator(
        THERE, [{T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE, U0: ErrorCode.INVALID_TXN_STATE}]
    )
    codes = await verifier(coordinator).verify(request(T0, T1, U0, version=version))
    assert codes == {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE, U0: ErrorCode.INVALID_TXN_STATE}
    [(broker, sent)] = coordinator.sent
    [asked] = sent.transactions
    assert (broker, asked.transactional_id, asked.producer_id, asked.producer_epoch) == (THERE, "id", 7, 3)
    assert asked.verify_only is verify_only
    assert {topic.name: list(topic.partitions) for topic in asked.topics} == {"t": [0, 1], "u": [0]}
    assert coordinator.asked == []


@pytest.mark.parametrize("leader", [HERE, THERE])
@pytest.mark.parametrize("code", sorted(AGAIN))
async def test_what_passes_is_asked_again(leader: int, code: ErrorCode) -> None:
    coordinator = Coordinator(leader, [code, code, code, ErrorCode.NONE])
    assert await verifier(coordinator).verify(request(T0, version=2)) == {T0: ErrorCode.NONE}
    assert len(coordinator.asked) + len(coordinator.sent) == 4


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_a_shard_that_is_not_here_or_not_loaded_is_asked_again(code: ErrorCode) -> None:
    coordinator = Coordinator(HERE, [ApiError(code), ErrorCode.NONE])
    assert await verifier(coordinator).verify(request(T0)) == {T0: ErrorCode.NONE}


@pytest.mark.parametrize("failure", [BrokerUnreachable("refused"), ConnectionLost("reset"), RequestTimedOut("slow")])
async def test_a_broker_that_cannot_be_asked_is_asked_again(failure: Exception) -> None:
    coordinator = Coordinator(THERE, [failure, failure, ErrorCode.NONE])
    assert await verifier(coordinator).verify(request(T0)) == {T0: ErrorCode.NONE}
    assert len(coordinator.sent) == 3


async def test_the_question_follows_the_coordinator() -> None:
    coordinator = Coordinator(None, [ErrorCode.NONE])
    asking = verifier(coordinator)
    once = asking._once

    async def move(given: AddRequest) -> dict[Place, ErrorCode]:
        codes = await once(given)
        coordinator.leader = HERE if coordinator.leader is None else coordinator.leader
        return codes

    asking._once = move  # type: ignore[method-assign]
    assert await asking.verify(request(T0)) == {T0: ErrorCode.NONE}
    assert len(coordinator.asked) == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
@pytest.mark.parametrize("leader", [HERE, THERE])
async def test_what_will_not_pass_is_asked_once(leader: int, code: ErrorCode) -> None:
    coordinator = Coordinator(leader, [code])
    assert await verifier(coordinator).verify(request(T0, T1)) == {T0: code, T1: code}
    assert len(coordinator.asked) + len(coordinator.sent) == 1


async def test_whoever_asks_has_no_more_patience_than_the_client() -> None:
    coordinator = Coordinator(HERE, [BUSY])
    assert await verifier(coordinator).verify(request(T0, version=2), 0.03) == {T0: BUSY}
    asked = len(coordinator.asked)
    assert 3 < asked <= 30
    assert await verifier(coordinator).verify(request(T0, version=2), 0.0) == {T0: BUSY}
    assert len(coordinator.asked) == asked + 1


async def test_a_refusal_of_the_whole_request_is_that_of_each_partition() -> None:
    refused = AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    coordinator = Coordinator(THERE, [refused])
    codes = await verifier(coordinator).verify(request(T0, T1))
    assert codes == dict.fromkeys((T0, T1), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


async def test_a_partition_that_the_answer_leaves_out_is_not_confirmed() -> None:
    coordinator = Coordinator(THERE, [{T0: ErrorCode.NONE}])
    codes = await verifier(coordinator).verify(request(T0, T1))
    assert codes == {T0: ErrorCode.NONE, T1: ErrorCode.UNKNOWN_SERVER_ERROR}


async def test_a_partition_beside_one_that_is_not_there_may_be_asked_about_again() -> None:
    """The client sends that batch again, alone. OPERATION_NOT_ATTEMPTED would end its transaction."""
    coordinator = Coordinator(
        THERE, [{T0: ErrorCode.OPERATION_NOT_ATTEMPTED, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
    )
    codes = await verifier(coordinator).verify(request(T0, U0, version=2), 0.01)
    assert codes == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_the_setting_switches_it_off() -> None:
    coordinator = Coordinator(HERE, [ErrorCode.NONE])
    assert verifier(coordinator).is_on
    assert not verifier(coordinator, **{"transaction.partition.verification.enable": "false"}).is_on
