"""Metadata (key 3), versions 0-13.

- topics null means all, empty none (v0: empty means all).
- Auto-creation, as on a KRaft broker: the first answer is UNKNOWN_TOPIC_OR_PARTITION and the
  topic is there when the client asks again. v0-3 always ask for it, later ones by a field.
- Topics may be asked for by id from v12 on; an unknown id is UNKNOWN_TOPIC_ID. v10 and v11 have the
  field but cannot answer it: INVALID_REQUEST, as on Kafka.
- An id goes before the name beside it, and a request with any id in it is answered by ids alone, as on Kafka. A topic
  that is named twice is answered once.
- Fenced brokers are not named, and a partition that such a one leads has no leader: LEADER_NOT_AVAILABLE.
  v0 names no replicas that are fenced, and says REPLICA_NOT_AVAILABLE then.
- Asked for a partition whose leader's connections broke a moment ago, the answer waits for what the controller makes
  of it, a second at most.
- A broker that is cut off from the quorum hangs up: the client turns to another one, that knows who leads now.
- Authorized operations are not computed before there are ACLs: asked for, everything is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.topic_creation import TopicCreation
from penstock.core.metadata.image import NO_LEADER, PartitionState, TopicState
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
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
FIRST_WITH_CREATION_FLAG = 4


class MetadataHandler:
    api: ClassVar = Api.METADATA
    min_version: ClassVar = 0
    max_version: ClassVar = 13

    def __init__(self, cluster: ClusterView, creation: TopicCreation) -> None:
        self._cluster = cluster
        self._creation = creation

    def handle(
        self, ctx: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse] | None:
        if self._cluster.is_cut_off():
            ctx.connection.abort()
            return None
        response = self._answer(ctx, request)
        return self._when_decided(ctx, request, response) if self._is_about_to_change(response) else response

    def _is_about_to_change(self, response: MetadataResponse) -> bool:
        suspects = self._cluster.suspects()
        return bool(suspects) and any(
            partition.leader_id in suspects for topic in response.topics for partition in topic.partitions
        )

    async def _when_decided(
        self, ctx: RequestContext, request: MetadataRequest, response: MetadataResponse
    ) -> MetadataResponse:
        """A leader's connections have just broken: in a moment there is another one, or it is back. A client that
        heard of the old one now would ask again only after a pause of its own, and that is most of what it waits.

        Many ask at that time: what has not changed is not put together again."""
        image = self._cluster.image
        for _ in range(LOOKS):
            seen = image.partitions_version, image.brokers_version
            await asyncio.sleep(LOOK_AGAIN_S)
            if seen != (image.partitions_version, image.brokers_version):
                response = self._answer(ctx, request)
            if not self._is_about_to_change(response):
                break
        return response

    def _answer(self, ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
        operations = ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        image = self._cluster.image
        live = frozenset(self._cluster.live_ids())
        if request.topics is None or (ctx.version == 0 and not request.topics):
            topics = [_describe(topic, live, operations, ctx.version) for topic in image.topics.values()]
        else:
            if ctx.version < 12 and any(asked.name is None or asked.topic_id != NULL_UUID for asked in request.topics):
                raise ApiError(ErrorCode.INVALID_REQUEST)
            topics = self._asked_for(request, live, operations, ctx.version)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack)
                for broker in self._cluster.brokers(ctx)
            ],
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )

    def _asked_for(
        self, request: MetadataRequest, live: Collection[int], operations: int, version: int
    ) -> list[MetadataResponseTopic]:
        """Where one topic has an id, ids alone count: clients leave the name beside it null or empty."""
        image = self._cluster.image
        ids = {asked.topic_id: None for asked in request.topics or () if asked.topic_id != NULL_UUID}
        topics: list[MetadataResponseTopic] = []
        for topic_id in ids:
            by_id = image.topics_by_id.get(topic_id)
            if by_id is not None:
                topics.append(_describe(by_id, live, operations, version))
            else:
                code = ErrorCode.UNKNOWN_TOPIC_ID
                topics.append(MetadataResponseTopic(error_code=code, name=None, topic_id=topic_id))
        if ids:
            return topics
        allow_creation = request.allow_auto_topic_creation or version < FIRST_WITH_CREATION_FLAG
        for name in {asked.name or "": None for asked in request.topics or ()}:
            by_name = image.topics.get(name)
            if by_name is not None:
                topics.append(_describe(by_name, live, operations, version))
            else:
                topics.append(self._missing(name, allow_creation=allow_creation))
        return topics

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


def _describe(topic: TopicState, live: Collection[int], operations: int, version: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            _describe_for_v0(partition, live) if version == 0 else _describe_partition(partition, live)
            for partition in topic.partitions
        ],
        topic_authorized_operations=operations,
    )


def _describe_partition(partition: PartitionState, live: Collection[int]) -> MetadataResponsePartition:
    has_leader = partition.leader in live
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.index,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[replica for replica in partition.replicas if replica not in live],
    )


def _describe_for_v0(partition: PartitionState, live: Collection[int]) -> MetadataResponsePartition:
    described = _describe_partition(partition, live)
    described.replica_nodes = [replica for replica in partition.replicas if replica in live]
    described.isr_nodes = [replica for replica in partition.isr if replica in live]
    is_whole = len(described.replica_nodes) == len(partition.replicas)
    if described.error_code == ErrorCode.NONE and not is_whole:
        described.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    return described
