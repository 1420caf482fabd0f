"""RemoveRaftVoter (key 81), version 0: removes a node's vote in the metadata quorum.

- The response leaves when the new configuration is committed.
- The directory id of the voter may be omitted; Kafka requires it. VOTER_NOT_FOUND if the voter has another one.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import VoterController
from penstock.api.handlers.add_raft_voter import check_cluster_id
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


class RemoveRaftVoterHandler:
    api: ClassVar = Api.REMOVE_RAFT_VOTER
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    is_for_controller: ClassVar = True
    is_repeatable: ClassVar = False  # a repetition would undo later decisions

    def __init__(self, controller: VoterController, cluster: ClusterView) -> None:
        self._controller = controller
        self._cluster = cluster

    async def handle(self, ctx: RequestContext, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        check_cluster_id(self._cluster, request.cluster_id)
        if request.voter_id < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Remove voter request didn't include a valid voter")
        await self._controller.remove_voter(request.voter_id, request.voter_directory_id)
        return RemoveRaftVoterResponse(error_message=None)

    def refuse(self, request: RemoveRaftVoterRequest, code: ErrorCode, message: str | None) -> RemoveRaftVoterResponse:
        return RemoveRaftVoterResponse(error_code=code, error_message=message)
