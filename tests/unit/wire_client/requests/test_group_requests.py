"""Requests to a group's coordinator and what its answers say, of brokers old and new."""

from __future__ import annotations

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages import find_coordinator, offset_commit, offset_fetch
from penstock.wire_client.requests.errors import NoSuchTopic
from penstock.wire_client.requests.groups import (
    OffsetAndMetadata,
    check_commit,
    commit_request,
    committed_request,
    read_committed,
    read_coordinator,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_committed_offsets_are_asked_for_in_the_form_of_every_version() -> None:
    request = committed_request("g", [T0, T1])
    assert (request.group_id, request.groups[0].group_id) == ("g", "g")
    assert request.topics is not None
    assert request.groups[0].topics is not None
    assert request.topics[0].partition_indexes == request.groups[0].topics[0].partition_indexes == [0, 1]


def test_no_partitions_are_not_all_partitions() -> None:
    everything, nothing = committed_request("g", None), committed_request("g", [])
    assert (everything.topics, everything.groups[0].topics) == (None, None)
    assert (nothing.topics, nothing.groups[0].topics) == ([], [])


def test_answers_before_version_8_have_no_list_of_groups() -> None:
    partitions = [
        offset_fetch.OffsetFetchResponsePartition(partition_index=0, committed_offset=7, metadata="m"),
        offset_fetch.OffsetFetchResponsePartition(partition_index=1, committed_offset=-1),
    ]
    topic = offset_fetch.OffsetFetchResponseTopic(name="t", partitions=partitions)
    answer = offset_fetch.OffsetFetchResponse(topics=[topic])
    assert read_committed("g", answer) == {T0: OffsetAndMetadata(7, "m")}


def test_a_group_that_is_refused_is_named() -> None:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    answer = offset_fetch.OffsetFetchResponse(
        groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", error_code=code)]
    )
    with pytest.raises(ApiError, match="group 'g': GROUP_AUTHORIZATION_FAILED"):
        read_committed("g", answer)


def test_a_commit_is_a_members_only_if_it_says_so() -> None:
    offsets = {T0: OffsetAndMetadata(3, "m")}
    simple, own = commit_request("g", offsets), commit_request("g", offsets, member_id="m-1", generation=4)
    assert (simple.member_id, simple.generation_id_or_member_epoch) == ("", -1)
    assert (own.member_id, own.generation_id_or_member_epoch) == ("m-1", 4)
    assert own.topics[0].partitions[0].committed_metadata == "m"


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ApiError, "group 'g' has members, and only they may commit"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NoSuchTopic, "topic 't' has no partition 1"),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ApiError, "group 'g', t-1: INVALID_COMMIT_OFFSET_SIZE"),
    ],
)
def test_a_refused_commit(code: ErrorCode, kind: type[ApiError], sentence: str) -> None:
    partition = offset_commit.OffsetCommitResponsePartition(partition_index=1, error_code=code)
    topic = offset_commit.OffsetCommitResponseTopic(name="t", partitions=[partition])
    with pytest.raises(kind, match=sentence):
        check_commit("g", offset_commit.OffsetCommitResponse(topics=[topic]))


def test_the_coordinator_of_every_version() -> None:
    old = find_coordinator.FindCoordinatorResponse(node_id=3)
    new = find_coordinator.FindCoordinatorResponse(coordinators=[find_coordinator.Coordinator(key="g", node_id=4)])
    assert (read_coordinator(old), read_coordinator(new)) == (3, 4)
