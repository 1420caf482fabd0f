"""ElectLeaders: what the controller is asked, and its answers by topic and partition."""

from __future__ import annotations

import pytest
from controller_requests import FakeController, ask

from penstock.api.handlers.elect_leaders import ElectLeadersHandler
from penstock.core.metadata.requests import ElectionKind, PartitionAnswer
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

NOT_NEEDED = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_partition_has_its_own_answer(version: int) -> None:
    controller = FakeController(
        elect_leaders=[PartitionAnswer("a", 1), PartitionAnswer("a", 0, NOT_NEEDED), PartitionAnswer("b", 7)]
    )
    asked = [TopicPartitions(topic="a", partitions=[1, 0]), TopicPartitions(topic="b", partitions=[7])]
    response = ask(ElectLeadersHandler(controller), ElectLeadersRequest(topic_partitions=asked), version)
    assert controller.asked == ("elect_leaders", ElectionKind.PREFERRED, [("a", 1), ("a", 0), ("b", 7)])
    assert response.error_code == 0
    assert [
        (topic.topic, each.partition_id, each.error_code, each.error_message)
        for topic in response.replica_election_results
        for each in topic.partition_result
    ] == [("a", 1, 0, None), ("a", 0, 84, NOT_NEEDED.message), ("b", 7, 0, None)]


def test_null_means_every_partition_and_the_type_is_passed_on() -> None:
    controller = FakeController(elect_leaders=[])
    ask(ElectLeadersHandler(controller), ElectLeadersRequest(election_type=1, topic_partitions=None))
    assert controller.asked == ("elect_leaders", ElectionKind.UNCLEAN, None)


def test_an_unknown_type_refuses_every_partition() -> None:
    controller = FakeController()
    asked = [TopicPartitions(topic="a", partitions=[1])]
    response = ask(ElectLeadersHandler(controller), ElectLeadersRequest(election_type=2, topic_partitions=asked))
    assert controller.calls == []
    assert response.error_code == ErrorCode.INVALID_REQUEST
    (topic,) = response.replica_election_results
    (refused,) = topic.partition_result
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown election type 2")
