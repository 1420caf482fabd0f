"""UpdateRaftVoter (key 82), version 0, among brokers: a starting voter reports its address.

- Not advertised to clients, as on a Kafka broker.
- If the voter is found at its known address, that stays. Else the first of `listeners` that reaches this voter, with
  this directory id, becomes its address: every listener serves Raft here. At most four are tried.
- The response leaves when the new address is committed; Kafka's leaves at once. `current_leader` is not sent.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import VoterController
from penstock.api.handlers.add_raft_voter import check_cluster_id
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse

MAX_LISTENERS = 4
"""Each may take seconds to answer or fail."""


class UpdateRaftVoterHandler:
    api: ClassVar = Api.UPDATE_RAFT_VOTER
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    is_for_controller: ClassVar = True
    is_advertised: ClassVar = False

    def __init__(self, controller: VoterController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        check_cluster_id(self._controller.image, request.cluster_id)
        addresses = [(listener.host, listener.port) for listener in request.listeners[:MAX_LISTENERS]]
        if request.voter_id < 0 or not addresses:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Update voter request didn't include a voter and its endpoint")
        await self._controller.update_voter(request.voter_id, request.voter_directory_id, addresses)
        return UpdateRaftVoterResponse()

    def refuse(self, request: UpdateRaftVoterRequest, code: ErrorCode, message: str | None) -> UpdateRaftVoterResponse:
        return UpdateRaftVoterResponse(error_code=code)
