"""BrokerRegistration, BrokerHeartbeat, AlterPartition and AllocateProducerIds: what brokers say to the controller."""

from __future__ import annotations

import pytest
from controller_requests import FakeController, ask

from penstock.api.handler import is_advertised, is_for_controller
from penstock.api.handlers.allocate_producer_ids import AllocateProducerIdsHandler
from penstock.api.handlers.alter_partition import AlterPartitionHandler
from penstock.api.handlers.broker_heartbeat import BrokerHeartbeatHandler
from penstock.api.handlers.broker_registration import BrokerRegistrationHandler
from penstock.core.metadata.requests import (
    HeartbeatAnswer,
    IsrAnswer,
    IsrChange,
    ProducerIdBlock,
    Registration,
    ReplicaEpoch,
    uuid_bytes,
    uuid_text,
)
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from penstock.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener

DIRECTORY = bytes(range(16))
TOPIC = b"t" * 16


# -- BrokerRegistration ---------------------------------------------------------------------------


def registration() -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=2,
        cluster_id="ours",
        incarnation_id=b"i" * 16,
        listeners=[Listener(name="INSIDE", host="h2", port=9092), Listener(name="OUTSIDE", host="e2", port=19092)],
        features=[Feature(name="group.version", min_supported_version=0, max_supported_version=1)],
        rack=None,
        log_dirs=[DIRECTORY],
        previous_broker_epoch=17,
    )


def test_a_registration_is_passed_on_whole() -> None:
    controller = FakeController(register_broker=23)
    assert ask(BrokerRegistrationHandler(controller), registration()).broker_epoch == 23
    _, asked = controller.asked
    assert asked == Registration(
        2,
        "ours",
        b"i" * 16,
        {"INSIDE": ("h2", 9092), "OUTSIDE": ("e2", 19092)},
        None,
        17,
        {"group.version": (0, 1)},
        uuid_text(DIRECTORY),
    )
    assert list(asked.endpoints) == ["INSIDE", "OUTSIDE"]


def test_the_oldest_version_knows_neither_directory_nor_epoch() -> None:
    controller = FakeController(register_broker=1)
    ask(BrokerRegistrationHandler(controller), registration(), 0)
    _, asked = controller.asked
    assert (asked.directory_id, asked.previous_epoch) == ("", -1)


def test_a_broker_that_nobody_could_reach_is_refused() -> None:
    controller = FakeController(register_broker=1)
    request = registration()
    request.listeners = []
    assert ask(BrokerRegistrationHandler(controller), request).error_code == ErrorCode.INVALID_REGISTRATION
    assert controller.calls == []


def test_a_refused_registration_has_no_epoch() -> None:
    controller = FakeController(register_broker=ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    response = ask(BrokerRegistrationHandler(controller), registration())
    assert (response.error_code, response.broker_epoch) == (101, -1)


@pytest.mark.parametrize("uuid", [DIRECTORY, b"\xff" * 16, b"\x00" * 15 + b"\x01"])
def test_a_directory_id_survives_its_text(uuid: bytes) -> None:
    text = uuid_text(uuid)
    assert len(text) == 22
    assert uuid_bytes(text) == uuid


def test_what_is_no_directory_id_is_none() -> None:
    assert uuid_text(bytes(16)) == ""
    assert uuid_bytes("") == uuid_bytes("x") == uuid_bytes("short-one") == bytes(16)


# -- BrokerHeartbeat ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_heartbeat_tells_a_broker_how_it_stands(version: int) -> None:
    controller = FakeController(heartbeat=HeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=True))
    request = BrokerHeartbeatRequest(broker_id=2, broker_epoch=23, current_metadata_offset=99, want_shut_down=True)
    response = ask(BrokerHeartbeatHandler(controller), request, version)
    assert controller.asked == ("heartbeat", 2, 23, 99, False, True)
    assert response.error_code == 0
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (True, False, True)


def test_a_refused_broker_takes_itself_for_fenced() -> None:
    controller = FakeController(heartbeat=ApiError(ErrorCode.STALE_BROKER_EPOCH))
    response = ask(BrokerHeartbeatHandler(controller), BrokerHeartbeatRequest(broker_id=2, broker_epoch=3))
    assert (response.error_code, response.is_fenced, response.is_caught_up) == (77, True, False)


# -- AlterPartition -------------------------------------------------------------------------------


def isr_request() -> AlterPartitionRequest:
    asked = RequestPartitionData(
        partition_index=5,
        leader_epoch=7,
        partition_epoch=9,
        new_isr=[1, 2],
        new_isr_with_epochs=[
            BrokerState(broker_id=1, broker_epoch=10),
            BrokerState(broker_id=2, broker_epoch=20),
        ],
    )
    return AlterPartitionRequest(
        broker_id=1, broker_epoch=10, topics=[RequestTopicData(topic_id=TOPIC, partitions=[asked])]
    )


@pytest.mark.parametrize(("version", "epochs"), [(2, (-1, -1)), (3, (10, 20))])
def test_a_leader_asks_for_another_isr(version: int, epochs: tuple[int, int]) -> None:
    controller = FakeController(
        alter_partitions=[
            IsrAnswer(TOPIC, 5, leader=1, leader_epoch=7, isr=(1, 2), partition_epoch=10),
            IsrAnswer(TOPIC, 6, ErrorCode.FENCED_LEADER_EPOCH),
        ]
    )
    response = ask(AlterPartitionHandler(controller), isr_request(), version)
    isr = (ReplicaEpoch(1, epochs[0]), ReplicaEpoch(2, epochs[1]))
    assert controller.asked == ("alter_partitions", 1, 10, [IsrChange(TOPIC, 5, 7, 9, isr)])
    (topic,) = response.topics
    assert topic.topic_id == TOPIC
    done, refused = topic.partitions
    assert (done.partition_index, done.error_code, done.leader_id, done.leader_epoch) == (5, 0, 1, 7)
    assert (done.isr, done.partition_epoch) == ([1, 2], 10)
    assert (refused.partition_index, refused.error_code) == (6, ErrorCode.FENCED_LEADER_EPOCH)


def test_a_broker_of_another_life_may_change_nothing() -> None:
    controller = FakeController(alter_partitions=ApiError(ErrorCode.STALE_BROKER_EPOCH))
    response = ask(AlterPartitionHandler(controller), isr_request())
    assert (response.error_code, response.topics) == (77, [])


# -- AllocateProducerIds --------------------------------------------------------------------------


def test_a_block_of_producer_ids() -> None:
    controller = FakeController(allocate_producer_ids=ProducerIdBlock(4000, 1000))
    request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=23)
    response = ask(AllocateProducerIdsHandler(controller), request)
    assert controller.asked == ("allocate_producer_ids", 2, 23)
    assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, 4000, 1000)


def test_no_block_for_a_broker_of_another_life() -> None:
    controller = FakeController(allocate_producer_ids=ApiError(ErrorCode.STALE_BROKER_EPOCH))
    response = ask(AllocateProducerIdsHandler(controller), AllocateProducerIdsRequest(broker_id=2, broker_epoch=1))
    assert (response.error_code, response.producer_id_len) == (77, 0)


def test_none_of_these_is_named_to_clients() -> None:
    for kind in (BrokerRegistrationHandler, BrokerHeartbeatHandler, AlterPartitionHandler, AllocateProducerIdsHandler):
        handler = kind(FakeController())
        assert not is_advertised(handler)
        assert is_for_controller(handler)
