"""Requests of administrators are built, and responses are read as values or as the first refusal."""

from __future__ import annotations

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic, without_nulls
from penstock.wire.messages import alter_partition_reassignments as moving
from penstock.wire.messages import describe_configs as describing
from penstock.wire.messages import describe_quorum as quorum
from penstock.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire_client.requests import configs, replicas, topics
from penstock.wire_client.requests.quorum import add_voter_request, read_quorum, read_voter_addresses


def test_a_new_topic_leaves_to_the_broker_what_it_does_not_say() -> None:
    [asked] = topics.create_topic_request(NewTopic("t", configs={"retention.ms": "1"}), 1000).topics
    assert (asked.name, asked.num_partitions, asked.replication_factor, asked.assignments) == ("t", -1, -1, [])
    assert [(entry.name, entry.value) for entry in asked.configs] == [("retention.ms", "1")]


def test_assignments_say_how_many_partitions_and_replicas_there_are() -> None:
    [asked] = topics.create_topic_request(NewTopic("t", 2, 2, {0: (1, 2), 1: (2, 1)}), 1000).topics
    assert (asked.num_partitions, asked.replication_factor) == (-1, -1)
    assert [(one.partition_index, one.broker_ids) for one in asked.assignments] == [(0, [1, 2]), (1, [2, 1])]


def test_a_topic_that_was_made_says_its_partitions_and_a_refusal_its_reason() -> None:
    made = CreatableTopicResult(name="t", num_partitions=3)
    assert topics.read_created(CreateTopicsResponse(topics=[made])) == 3
    refused = CreatableTopicResult(name="t", error_code=ErrorCode.INVALID_CONFIG, error_message="no")
    with pytest.raises(ApiError, match="no") as caught:
        topics.read_created(CreateTopicsResponse(topics=[refused]))
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_a_new_topic_has_no_setting_to_take_back() -> None:
    assert without_nulls([("a", "1"), ("b", "2")]) == {"a": "1", "b": "2"}
    with pytest.raises(ApiError, match="topic configs: a,b") as caught:
        without_nulls([("a", None), ("c", "1"), ("b", None)])
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_settings_are_set_and_taken_back_in_one_request() -> None:
    [resource] = configs.alter_configs_request(configs.BROKER, configs.ALL_BROKERS, {"a": "1"}, ["b"]).resources
    assert (resource.resource_type, resource.resource_name) == (configs.BROKER, "")
    changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
    assert changes == [("a", configs.SET, "1"), ("b", configs.DELETE, None)]


def test_settings_that_are_refused_are_an_error() -> None:
    refused = describing.DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=None)
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        configs.read_configs(describing.DescribeConfigsResponse(results=[refused]))


def test_verdicts_of_moved_replicas_come_by_topic_and_number() -> None:
    answer = moving.AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            moving.ReassignableTopicResponse(
                name="b", partitions=[moving.ReassignablePartitionResponse(partition_index=0, error_message=None)]
            ),
            moving.ReassignableTopicResponse(
                name="a",
                partitions=[
                    moving.ReassignablePartitionResponse(
                        partition_index=1, error_code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, error_message=None
                    )
                ],
            ),
        ],
    )
    verdicts = replicas.read_reassigned(answer)
    assert verdicts == [
        ("a", 1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "NO_REASSIGNMENT_IN_PROGRESS"),
        ("b", 0, ErrorCode.NONE, ""),
    ]
    with pytest.raises(ApiError, match="moving a-1"):
        replicas.raise_refusals(verdicts, "moving")


def test_targets_are_grouped_by_topic_and_none_takes_a_move_back() -> None:
    request = replicas.reassign_request({("t", 0): (1, 2), ("t", 1): None}, 1000)
    [topic] = request.topics
    assert [(one.partition_index, one.replicas) for one in topic.partitions] == [(0, [1, 2]), (1, None)]


def test_no_topics_at_all_elects_everywhere() -> None:
    assert replicas.elect_request(None, 1000).topic_partitions is None
    request = replicas.elect_request({"t": [0]}, 1000, is_unclean=True)
    assert request.election_type == replicas.UNCLEAN
    assert [(one.topic, one.partitions) for one in request.topic_partitions or ()] == [("t", [0])]


def test_the_quorum_tells_its_voters_and_their_addresses() -> None:
    found = quorum.ResponsePartitionData(error_message=None, leader_id=2)
    listener = quorum.Listener(name="CONTROLLER", host="h", port=9)
    answer = quorum.DescribeQuorumResponse(
        error_message=None,
        topics=[quorum.ResponseTopicData(partitions=[found])],
        nodes=[quorum.Node(node_id=2, listeners=[listener]), quorum.Node(node_id=3)],
    )
    assert read_quorum(answer).leader_id == 2
    assert read_voter_addresses(answer) == {2: ("h", 9)}
    [said] = add_voter_request(3, ("i", 8), 1000).listeners
    assert (said.host, said.port) == ("i", 8)
