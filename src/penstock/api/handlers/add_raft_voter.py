"""AddRaftVoter (key 80), versions 0-1: gives a vote to a node that follows the metadata log.

- The response leaves when the new configuration is committed, in either version: v1's `ack_when_committed=false` has no
  effect.
- The directory id of the voter may be omitted; Kafka requires it.
- The first of the voter's listeners is used: every listener serves Raft here.
- INVALID_REQUEST if the node at that address is not this voter, or has another directory id than the given or
  registered one, or if there is no response: the message gives the reason. Kafka sends ApiVersions and does not check
  the node. INVALID_REQUEST also if the broker with that id is registered with another directory id.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import VoterController
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


class AddRaftVoterHandler:
    api: ClassVar = Api.ADD_RAFT_VOTER
    min_version: ClassVar = 0
    max_version: ClassVar = 1
    is_for_controller: ClassVar = True
    is_repeatable: ClassVar = False  # a repetition would undo later decisions

    def __init__(self, controller: VoterController, cluster: ClusterView) -> None:
        self._controller = controller
        self._cluster = cluster

    async def handle(self, ctx: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        check_cluster_id(self._cluster, request.cluster_id)
        if request.voter_id < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter")
        if not request.listeners:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Add voter request didn't include an endpoint of the voter")
        listener = request.listeners[0]
        if not listener.host or not listener.port:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Write the address of node {request.voter_id} as HOST:PORT")
        await self._controller.add_voter(request.voter_id, request.voter_directory_id, listener.host, listener.port)
        return AddRaftVoterResponse(error_message=None)

    def refuse(self, request: AddRaftVoterRequest, code: ErrorCode, message: str | None) -> AddRaftVoterResponse:
        return AddRaftVoterResponse(error_code=code, error_message=message)


def check_cluster_id(cluster: ClusterView | MetadataImage, asked: str | None) -> None:
    """Null matches every cluster."""
    if asked is not None and asked != cluster.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f'The given id "{asked}" doesn\'t match the cluster id "{cluster.cluster_id}"',
        )
