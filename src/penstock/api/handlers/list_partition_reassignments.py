"""ListPartitionReassignments (key 46), version 0: the partitions that are being reassigned.

Null topics mean all. The response omits partitions without a reassignment, and unknown ones.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.controller_protocols import PartitionController
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class ListPartitionReassignmentsHandler:
    api: ClassVar = Api.LIST_PARTITION_REASSIGNMENTS
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    bounds: ClassVar = WIDE
    is_for_controller: ClassVar = True

    def __init__(self, controller: PartitionController) -> None:
        self._controller = controller

    def handle(
        self, ctx: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        asked = None
        if request.topics is not None:
            asked = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
        topics: dict[str, OngoingTopicReassignment] = {}
        for ongoing in self._controller.list_reassignments(asked):
            topics.setdefault(ongoing.topic, OngoingTopicReassignment(name=ongoing.topic)).partitions.append(
                OngoingPartitionReassignment(
                    partition_index=ongoing.index,
                    replicas=list(ongoing.replicas),
                    adding_replicas=list(ongoing.adding),
                    removing_replicas=list(ongoing.removing),
                )
            )
        return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

    def refuse(
        self, request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str | None
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=code, error_message=message)
