"""FindCoordinator (key 10), versions 0-6.

This broker has no group and transaction coordinators yet, and says so in Kafka's word for it:
COORDINATOR_NOT_AVAILABLE. It is served all the same because librdkafka (kcat, confluent-kafka)
compresses with LZ4 only for brokers that list this API.

Clients take that answer for a passing state and ask again for ever, in silence. So the broker says it, once a
client and key.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger(__name__)

GROUP = 0
WHAT = {
    GROUP: (
        "group",
        "consumer groups are not there yet; assign() with an explicit offset works, "
        "subscribe() and commit() wait for ever",
    ),
    1: ("transactional id", "transactions are not there yet; a producer without one works"),
    2: ("share group", "share groups are not there yet; a consumer with assign() and an explicit offset works"),
}
MAX_WARNINGS = 200  # bounds memory and log both: keys come from outside
SHOWN_CHARACTERS = 100


class FindCoordinatorHandler:
    api: ClassVar = Api.FIND_COORDINATOR
    min_version: ClassVar = 0
    max_version: ClassVar = 6

    def __init__(self) -> None:
        self._warned: dict[tuple[str, int, str], None] = {}

    def handle(self, ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        for key in request.coordinator_keys if ctx.version >= 4 else [request.key]:
            self._warn_once(ctx.client_id, request.key_type, key)
        return self.refuse(
            request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no group or transaction coordinator"
        )

    def _warn_once(self, client_id: str | None, key_type: int, key: str) -> None:
        asked = (_short(client_id or ""), key_type, _short(key))
        if asked in self._warned or len(self._warned) >= MAX_WARNINGS:
            return
        self._warned[asked] = None
        kind, advice = WHAT.get(key_type, WHAT[GROUP])
        log.warning("client %r looks for the coordinator of %s %r: %s", asked[0], kind, asked[2], advice)
        if len(self._warned) == MAX_WARNINGS:
            log.warning("no more lines about coordinators until the next start: there were %d", MAX_WARNINGS)

    def refuse(self, request: FindCoordinatorRequest, code: ErrorCode, message: str | None) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            error_code=code,
            error_message=message,
            node_id=-1,
            port=-1,
            coordinators=[
                Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
                for key in request.coordinator_keys
            ],
        )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
