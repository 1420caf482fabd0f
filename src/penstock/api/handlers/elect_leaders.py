"""ElectLeaders (key 43), versions 0-2: elects preferred leaders, or unclean ones if no replica is in sync.

- Null partitions mean all of them; the response then omits partitions that need no election.
- v0 has preferred elections only. Each partition succeeds or fails alone.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import PartitionController
from penstock.core.metadata.requests import ElectionKind, PartitionAnswer
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


class ElectLeadersHandler:
    api: ClassVar = Api.ELECT_LEADERS
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    bounds: ClassVar = WIDE
    is_for_controller: ClassVar = True

    def __init__(self, controller: PartitionController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        if request.election_type not in ElectionKind.__members__.values():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        answers = await self._controller.elect_leaders(ElectionKind(request.election_type), _partitions(request))
        results: dict[str, ReplicaElectionResult] = {}
        for answer in answers:
            results.setdefault(answer.topic, ReplicaElectionResult(topic=answer.topic)).partition_result.append(
                _result(answer)
            )
        return ElectLeadersResponse(replica_election_results=list(results.values()))

    def refuse(self, request: ElectLeadersRequest, code: ErrorCode, message: str | None) -> ElectLeadersResponse:
        results = [
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ]
        return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _partitions(request: ElectLeadersRequest) -> list[tuple[str, int]] | None:
    if request.topic_partitions is None:
        return None
    return [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]


def _result(answer: PartitionAnswer) -> PartitionResult:
    if answer.error is None:
        return PartitionResult(partition_id=answer.index, error_message=None)
    return PartitionResult(partition_id=answer.index, error_code=answer.error.code, error_message=answer.error.message)
