"""AlterPartitionReassignments and ListPartitionReassignments on a controller that says what it was asked."""

from __future__ import annotations

import pytest
from controller_requests import FakeController, ask

from penstock.api.handlers.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from penstock.api.handlers.list_partition_reassignments import ListPartitionReassignmentsHandler
from penstock.core.metadata.requests import OngoingReassignment, PartitionAnswer, Reassignment
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

MOVES = [
    ReassignableTopic(
        name="a",
        partitions=[
            ReassignablePartition(partition_index=0, replicas=[3, 1]),
            ReassignablePartition(partition_index=1, replicas=None),
        ],
    )
]


@pytest.mark.parametrize(("version", "allowed"), [(0, True), (1, False), (1, True)])
def test_moves_and_cancellations_reach_the_controller(version: int, allowed: bool) -> None:
    none_under_way = ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    controller = FakeController(alter_reassignments=[PartitionAnswer("a", 0), PartitionAnswer("a", 1, none_under_way)])
    request = AlterPartitionReassignmentsRequest(topics=MOVES, allow_replication_factor_change=allowed)
    response = ask(AlterPartitionReassignmentsHandler(controller), request, version)
    moves = [Reassignment("a", 0, (3, 1)), Reassignment("a", 1, None)]
    assert controller.asked == ("alter_reassignments", moves, allowed)
    assert (response.error_code, response.error_message) == (0, None)
    assert response.allow_replication_factor_change is allowed
    (topic,) = response.responses
    assert [(each.partition_index, each.error_code, each.error_message) for each in topic.partitions] == [
        (0, 0, None),
        (1, 85, none_under_way.message),
    ]


def test_a_refusal_is_said_at_the_top_and_for_each_partition() -> None:
    controller = FakeController(alter_reassignments=ApiError(ErrorCode.NOT_CONTROLLER, "none"))
    response = ask(AlterPartitionReassignmentsHandler(controller), AlterPartitionReassignmentsRequest(topics=MOVES))
    assert (response.error_code, response.error_message) == (41, "none")
    assert [each.error_code for each in response.responses[0].partitions] == [41, 41]


def test_what_is_under_way_is_listed_by_topic() -> None:
    controller = FakeController(
        list_reassignments=[
            OngoingReassignment("a", 0, (3, 1, 2), (3,), (2,)),
            OngoingReassignment("a", 2, (1, 2), (), (2,)),
            OngoingReassignment("b", 0, (1, 2), (2,), ()),
        ]
    )
    response = ask(ListPartitionReassignmentsHandler(controller), ListPartitionReassignmentsRequest(topics=None))
    assert controller.asked == ("list_reassignments", None)
    assert [
        (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    ] == [("a", 0, [3, 1, 2], [3], [2]), ("a", 2, [1, 2], [], [2]), ("b", 0, [1, 2], [2], [])]


def test_only_named_partitions_are_asked_for() -> None:
    controller = FakeController(list_reassignments=[])
    asked = [
        ListPartitionReassignmentsTopics(name="a", partition_indexes=[2, 0]),
        ListPartitionReassignmentsTopics(name="b"),
    ]
    response = ask(ListPartitionReassignmentsHandler(controller), ListPartitionReassignmentsRequest(topics=asked))
    assert controller.asked == ("list_reassignments", [("a", 2), ("a", 0)])
    assert (response.error_code, response.error_message, response.topics) == (0, None, [])
