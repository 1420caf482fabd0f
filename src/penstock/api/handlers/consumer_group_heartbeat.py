"""ConsumerGroupHeartbeat (key 68), versions 0-1.

UNSUPPORTED_VERSION if `group.coordinator.rebalance.protocols` has no `consumer` or the feature `group.version` is 0.

Differs from Kafka
- in the heartbeat interval of the reply: the configured one is the longest; members that wait for something, and those
  of small groups, get a shorter one (`consumer_protocol.pace`);
- regular expressions are resolved within the request, so the reply already includes their topics;
- an expression with more than 2,000 instructions when compiled is INVALID_REGULAR_EXPRESSION, and so is the
  hundred-and-first of a group; names are matched in a worker;
- a sole member gets a new target at once: `group.consumer.assignment.interval.ms` applies only with other members;
- racks are stored and shown, but change no assignment (nor do they in Kafka 4).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.core.group.consumer_exchange import ConsumerHeartbeatReply
from penstock.core.group.consumer_exchange import ConsumerHeartbeatRequest as Asked
from penstock.model.errors import ErrorCode
from penstock.ports.clock import Entropy
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

FIRST_WITH_MEMBER_ID_OF_THE_CLIENT = 1


class ConsumerGroupHeartbeatHandler:
    api: ClassVar = Api.CONSUMER_GROUP_HEARTBEAT
    min_version: ClassVar = 0
    max_version: ClassVar = 1
    bounds: ClassVar = WIDE

    def __init__(self, groups: GroupCoordinator, entropy: Entropy) -> None:
        self._groups = groups
        self._entropy = entropy

    async def handle(
        self, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        if not self._groups.speaks_consumer_protocol:
            return self.refuse(request, ErrorCode.UNSUPPORTED_VERSION, None)
        brings_member_id = ctx.version >= FIRST_WITH_MEMBER_ID_OF_THE_CLIENT
        member_id = request.member_id
        if not brings_member_id and not member_id and request.member_epoch == 0:
            member_id = urlsafe_b64encode(self._entropy.random_bytes(16)).decode().rstrip("=")
        names = request.subscribed_topic_names
        asked = Asked(
            request.group_id,
            member_id,
            request.member_epoch,
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout_ms,
            None if names is None else tuple(names),
            request.subscribed_topic_regex,
            request.server_assignor,
            _owned(request.topic_partitions),
            ctx.client_id or "",
            f"/{ctx.peer_host}",
        )
        regexes = self._groups.regexes_of(asked.group_id, asked.topic_regex)
        if regexes and not self._groups.regexes.is_ready(regexes):
            await self._groups.regexes.prepare(regexes)
        reply = await self._groups.call(
            asked.group_id,
            ConsumerHeartbeatReply,
            lambda shard, token, now_ms: shard.consumer_heartbeat(
                asked, token, now_ms, brings_member_id=brings_member_id
            ),
        )
        return ConsumerGroupHeartbeatResponse(
            error_code=reply.error,
            error_message=reply.message,
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
            assignment=None
            if reply.assignment is None
            else Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in reply.assignment.items()
                ]
            ),
        )

    def refuse(
        self, request: ConsumerGroupHeartbeatRequest, code: ErrorCode, message: str | None
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


def _owned(given: list[TopicPartitions] | None) -> dict[bytes, frozenset[int]] | None:
    """A topic named twice counts once, with all its partitions; a topic without partitions is ignored."""
    if given is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in given:
        if topic.partitions:
            owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return owned
