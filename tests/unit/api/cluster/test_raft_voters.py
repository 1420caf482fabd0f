"""AddRaftVoter, UpdateRaftVoter and RemoveRaftVoter: who, where, and of which cluster."""

from __future__ import annotations

from typing import Any

import pytest
from controller_requests import FakeController, ask

from penstock.api.cluster_view import ClusterView
from penstock.api.handlers.add_raft_voter import AddRaftVoterHandler
from penstock.api.handlers.remove_raft_voter import RemoveRaftVoterHandler
from penstock.api.handlers.update_raft_voter import UpdateRaftVoterHandler
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import ClusterCreated
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from penstock.wire.messages.update_raft_voter import KRaftVersionFeature, UpdateRaftVoterRequest
from penstock.wire.messages.update_raft_voter import Listener as UpdatedListener

DIRECTORY = b"d" * 16


@pytest.fixture
def cluster() -> ClusterView:
    image = MetadataImage()
    image.replay(ClusterCreated("ours"))
    return ClusterView(1, None, image, {})


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("cluster_id", ["ours", None])
def test_a_voter_is_added_where_its_first_listener_is(
    cluster: ClusterView, version: int, cluster_id: str | None
) -> None:
    controller = FakeController()
    listeners = [Listener(name="CONTROLLER", host="h4", port=9093), Listener(name="OTHER", host="x", port=1)]
    request = AddRaftVoterRequest(cluster_id=cluster_id, voter_id=4, voter_directory_id=DIRECTORY, listeners=listeners)
    response = ask(AddRaftVoterHandler(controller, cluster), request, version)
    assert controller.asked == ("add_voter", 4, DIRECTORY, "h4", 9093)
    assert (response.error_code, response.error_message) == (0, None)


def test_a_voter_is_removed(cluster: ClusterView) -> None:
    controller = FakeController()
    request = RemoveRaftVoterRequest(cluster_id="ours", voter_id=4, voter_directory_id=DIRECTORY)
    response = ask(RemoveRaftVoterHandler(controller, cluster), request)
    assert controller.asked == ("remove_voter", 4, DIRECTORY)
    assert (response.error_code, response.error_message) == (0, None)


def update(**more: Any) -> UpdateRaftVoterRequest:
    listeners = [UpdatedListener(name="A", host="h4", port=9093), UpdatedListener(name="B", host="x", port=1)]
    feature = KRaftVersionFeature()
    given = {"cluster_id": "ours", "voter_id": 4, "listeners": listeners, "k_raft_version_feature": feature}
    return UpdateRaftVoterRequest(voter_directory_id=DIRECTORY, **{**given, **more})


def test_a_voter_says_where_it_is(cluster: ClusterView) -> None:
    controller = FakeController(cluster.image)
    handler = UpdateRaftVoterHandler(controller)
    assert ask(handler, update()).error_code == 0
    assert controller.asked == ("update_voter", 4, DIRECTORY, [("h4", 9093), ("x", 1)])
    assert ask(handler, update(listeners=[UpdatedListener(host=f"h{n}", port=1) for n in range(9)])).error_code == 0
    assert controller.calls[-1] == ("update_voter", 4, DIRECTORY, [(f"h{n}", 1) for n in range(4)])
    controller.answers["update_voter"] = ApiError(ErrorCode.VOTER_NOT_FOUND)
    assert ask(handler, update()).error_code == ErrorCode.VOTER_NOT_FOUND


def test_another_cluster_is_refused(cluster: ClusterView) -> None:
    controller = FakeController(cluster.image)
    for handler, request in (
        (AddRaftVoterHandler(controller, cluster), AddRaftVoterRequest(cluster_id="theirs")),
        (RemoveRaftVoterHandler(controller, cluster), RemoveRaftVoterRequest(cluster_id="theirs")),
        (UpdateRaftVoterHandler(controller), update(cluster_id="theirs")),
    ):
        response = ask(handler, request)
        assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        if isinstance(request, UpdateRaftVoterRequest):  # which has no room for words
            continue
        assert response.error_message == 'The given id "theirs" doesn\'t match the cluster id "ours"'
    assert controller.calls == []


def test_half_a_voter_is_refused(cluster: ClusterView) -> None:
    controller = FakeController(cluster.image)
    listeners = [Listener(name="CONTROLLER", host="h4", port=9093)]
    adding, removing = AddRaftVoterHandler(controller, cluster), RemoveRaftVoterHandler(controller, cluster)
    updating = UpdateRaftVoterHandler(controller)
    for response in (
        ask(adding, AddRaftVoterRequest(cluster_id=None, voter_id=-1, listeners=listeners)),
        ask(adding, AddRaftVoterRequest(cluster_id=None, voter_id=4)),
        ask(adding, AddRaftVoterRequest(cluster_id=None, voter_id=4, listeners=[Listener(host="h4", port=0)])),
        ask(adding, AddRaftVoterRequest(cluster_id=None, voter_id=4, listeners=[Listener(host="", port=9093)])),
        ask(updating, update(listeners=[])),
        ask(updating, update(voter_id=-1)),
        ask(removing, RemoveRaftVoterRequest(cluster_id=None, voter_id=-1)),
    ):
        assert response.error_code == ErrorCode.INVALID_REQUEST
    assert controller.calls == []


def test_what_the_quorum_says_is_answered(cluster: ClusterView) -> None:
    twice = ApiError(ErrorCode.DUPLICATE_VOTER, "The voter id for 4 is already part of the set of voters [1, 4].")
    controller = FakeController(add_voter=twice, remove_voter=ApiError(ErrorCode.VOTER_NOT_FOUND, "no"))
    listeners = [Listener(name="CONTROLLER", host="h4", port=9093)]
    request = AddRaftVoterRequest(cluster_id="ours", voter_id=4, listeners=listeners)
    added = ask(AddRaftVoterHandler(controller, cluster), request)
    assert (added.error_code, added.error_message) == (126, twice.message)
    removed = ask(RemoveRaftVoterHandler(controller, cluster), RemoveRaftVoterRequest(cluster_id=None, voter_id=5))
    assert (removed.error_code, removed.error_message) == (127, "no")
