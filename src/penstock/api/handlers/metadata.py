"""Metadata (key 3), versions 0-13.

- topics null means all, empty none (v0: empty means all).
- Auto-creation, as on a KRaft broker: the first response has UNKNOWN_TOPIC_OR_PARTITION, and the topic exists when the
  client retries. v0-3 always request it, later ones by a field.
- Topics may be requested by id from v12 on; an unknown id is UNKNOWN_TOPIC_ID. v10 and v11 have the field but cannot
  answer it: INVALID_REQUEST, as in Kafka.
- An id takes precedence over the name beside it, and in a request with any id only ids count, as in Kafka. A topic that
  is named twice is in the response once.
- Fenced brokers are not listed, and a partition with a fenced leader has none: LEADER_NOT_AVAILABLE. v0 omits fenced
  replicas, and returns REPLICA_NOT_AVAILABLE then.
- If a requested partition's leader lost its connections a moment ago, the response waits for the controller's decision,
  a second at most.
- A broker that is cut off from the quorum closes the connection: the client turns to another broker, which knows the
  current leaders.
- Authorized operations are not computed while there are no ACLs: on request, everything is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, ClassVar, TypeAlias, cast

from penstock.api.admin.topic_creation import TopicCreation
from penstock.api.bounds import WIDE
from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.metadata_answers import DescribedTopic, MetadataAnswers, SomeTopics, WholeCluster
from penstock.core.metadata.image import TopicState
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from penstock.wire.primitives import NULL_UUID

# Bit n is set for AclOperation n: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
# CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
ALL_TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
ALL_CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)
LOOK_AGAIN_S = 0.01
LOOKS = 100
ASKED_PER_STEP = 128
FIRST_WITH_IDS = 12
FIRST_WITH_CREATION_FLAG = 4


Described: TypeAlias = SomeTopics | WholeCluster


class MetadataHandler:
    api: ClassVar = Api.METADATA
    min_version: ClassVar = 0
    max_version: ClassVar = 13
    bounds: ClassVar = WIDE

    def __init__(self, cluster: ClusterView, creation: TopicCreation) -> None:
        self._cluster = cluster
        self._creation = creation
        self.answers = MetadataAnswers(cluster.image)

    def handle(
        self, ctx: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse] | None:
        if self._cluster.is_cut_off():
            ctx.connection.abort()
            return None
        steps = self._answer(ctx, request)
        try:
            next(steps)
        except StopIteration as done:
            response: Described = done.value
            return self._when_decided(ctx, request, response) if self._is_about_to_change(response) else response
        return self._in_turns(ctx, request, steps)

    async def _in_turns(
        self, ctx: RequestContext, request: MetadataRequest, steps: Generator[None, None, Described]
    ) -> MetadataResponse:
        response = await ctx.pace.later(steps)
        return await self._when_decided(ctx, request, response) if self._is_about_to_change(response) else response

    def _is_about_to_change(self, response: Described) -> bool:
        suspects = self._cluster.suspects()
        return bool(suspects) and not response.leaders.isdisjoint(suspects)

    async def _when_decided(
        self, ctx: RequestContext, request: MetadataRequest, response: Described
    ) -> MetadataResponse:
        """A leader's connections have just broken: soon there is a new leader, or it is back. A client that got the old
        leader now would retry only after its own pause, which is most of its waiting time.

        Many clients ask at that time: unchanged answers are not built again.
        """
        for _ in range(LOOKS):
            seen = self.answers.versions
            await asyncio.sleep(LOOK_AGAIN_S)
            if seen != self.answers.versions:
                response = await ctx.pace.later(self._answer(ctx, request))
            if not self._is_about_to_change(response):
                break
        return response

    def _answer(self, ctx: RequestContext, request: MetadataRequest) -> Generator[None, None, Described]:
        """In steps. If the metadata changes in between, the answer is built again, at most twice."""
        for is_last in (False, False, True):
            seen = self.answers.versions
            response = yield from self._answer_once(ctx, request)
            if is_last or seen == self.answers.versions:
                break
        return response

    def _answer_once(self, ctx: RequestContext, request: MetadataRequest) -> Generator[None, None, Described]:
        operations = ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        cluster_operations = ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        brokers = self._cluster.brokers(ctx)
        cluster_id, controller_id = self._cluster.cluster_id, self._cluster.controller_id
        live = frozenset(self._cluster.live_ids())
        version, answers = ctx.version, self.answers

        def respond(described: list[DescribedTopic], missing: list[MetadataResponseTopic]) -> SomeTopics:
            response = SomeTopics(
                brokers=[
                    MetadataResponseBroker(node_id=one.broker_id, host=one.host, port=one.port, rack=one.rack)
                    for one in brokers
                ],
                cluster_id=cluster_id,
                controller_id=controller_id,
                topics=[*cast("list[MetadataResponseTopic]", described), *missing],
                cluster_authorized_operations=cluster_operations,
            )
            response.leaders = frozenset().union(*(topic.leaders for topic in described))
            return response

        def describe_all() -> Generator[None, None, SomeTopics]:
            states = list(self._cluster.image.topics.values())
            return respond((yield from answers.describe(states, live, operations, version)), [])

        if request.topics is None or (version == 0 and not request.topics):
            variant = version, operations, cluster_operations, tuple(brokers), controller_id, cluster_id, live
            known = answers.whole(variant)
            return known if known is not None else (yield from answers.share(variant, describe_all, version))
        return respond(*(yield from self._asked_for(request, live, operations, version)))

    def _asked_for(
        self, request: MetadataRequest, live: frozenset[int], operations: int, version: int
    ) -> Generator[None, None, tuple[list[DescribedTopic], list[MetadataResponseTopic]]]:
        """The topics that exist, and those that do not.

        If one topic has an id, only ids count: clients leave the name beside it null or empty.
        """
        image = self._cluster.image
        ids: dict[bytes, None] = {}
        names: dict[str, None] = {}
        for at, asked in enumerate(request.topics or (), 1):
            if asked.topic_id != NULL_UUID:
                ids[asked.topic_id] = None
            else:
                names[asked.name or ""] = None
            if version < FIRST_WITH_IDS and (asked.name is None or ids):
                raise ApiError(ErrorCode.INVALID_REQUEST)
            if not at % ASKED_PER_STEP:
                yield
        allow_creation = request.allow_auto_topic_creation or version < FIRST_WITH_CREATION_FLAG
        found: list[TopicState] = []
        missing: list[MetadataResponseTopic] = []
        for at, topic_id in enumerate(ids, 1):
            by_id = image.topics_by_id.get(topic_id)
            if by_id is not None:
                found.append(by_id)
            else:
                code = ErrorCode.UNKNOWN_TOPIC_ID
                missing.append(MetadataResponseTopic(error_code=code, name=None, topic_id=topic_id))
            if not at % ASKED_PER_STEP:
                yield
        for at, name in enumerate(() if ids else names, 1):
            by_name = image.topics.get(name)
            if by_name is not None:
                found.append(by_name)
            else:
                missing.append(self._missing(name, allow_creation=allow_creation))
            if not at % ASKED_PER_STEP:
                yield
        return (yield from self.answers.describe(found, live, operations, version)), missing

    def _missing(self, name: str, *, allow_creation: bool) -> MetadataResponseTopic:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self._creation.check_name(name)
            if allow_creation:
                self._creation.create_soon(name)
        except ApiError as error:
            code = error.code
        return MetadataResponseTopic(error_code=code, name=name)

    def refuse(self, request: MetadataRequest, code: ErrorCode, message: str | None) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(error_code=code, name=asked.name or "", topic_id=asked.topic_id)
            for asked in request.topics or ()
        ]
        return MetadataResponse(error_code=code, topics=topics)
