"""Cluster, topics, publishing and groups in Confluent's v3 shapes: resources with a kind and links.

/v3/clusters[/{cluster}]
/v3/clusters/{cluster}/brokers[/{broker}]
/v3/clusters/{cluster}/topics[/{topic}]            GET, POST, DELETE
/v3/clusters/{cluster}/topics/{topic}/partitions[/{partition}], .../configs
/v3/clusters/{cluster}/topics/{topic}/records      POST: one record, or several JSON objects in a row
/v3/clusters/{cluster}/topics/{topic}/records:batch
/v3/clusters/{cluster}/consumer-groups[/{group}[/consumers | /lags | /lag-summary]]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.admin import create_topic, delete_topic, topic_settings
from penstock.client.cluster import Broker, ClusterInfo, PartitionInfo, TopicInfo
from penstock.client.fetching import LATEST_MS, TopicPartition, list_offsets
from penstock.client.groups import GroupInfo, GroupSummary, committed, describe_group, list_groups
from penstock.client.producer import Produced
from penstock.gateway.http import shapes
from penstock.gateway.http.consumers import base_url, group_name, json_body
from penstock.gateway.http.errors import Refused
from penstock.gateway.http.formats import Format, encode_value, of_content_type
from penstock.gateway.http.operations import Door, Operation, answer, decode, no_content, read_body
from penstock.gateway.http.v2 import build_headers, deliver, existing_partition, existing_topic, topic_name
from penstock.records.builder import Record

MAX_STREAMED = 10_000


class Links:
    """Addresses of resources, as the caller reached us."""

    def __init__(self, request: Request, cluster_id: str) -> None:
        self.root = f"{base_url(request)}/v3/clusters"
        self.cluster = f"{self.root}/{cluster_id}"
        self._prefix = f"crn:///kafka={cluster_id}"

    def resource(self, kind: str, path: str, **fields: object) -> dict[str, Any]:
        name = self._prefix + "".join(
            f"/{kind_name}={value}" for kind_name, value in zip(*[iter(path.split("/"))] * 2, strict=False) if kind_name
        )
        url = f"{self.cluster}/{path}" if path else self.cluster
        return {"kind": kind, "metadata": {"self": url, "resource_name": name}, **fields}

    def related(self, path: str) -> dict[str, str]:
        return {"related": f"{self.cluster}/{path}"}

    def listing(self, kind: str, path: str, data: Iterable[dict[str, Any]]) -> Response:
        url = f"{self.cluster}/{path}" if path else self.root
        return answer({"kind": kind, "metadata": {"self": url, "next": None}, "data": list(data)})


async def open_cluster(door: Door, request: Request) -> tuple[ClusterInfo, Links]:
    """Raises Refused(404) for another cluster's id."""
    info = await door.cluster.describe()
    if request.path_params.get("cluster", info.cluster_id) != info.cluster_id:
        raise Refused(404, f"Cluster not found: this is {info.cluster_id}")
    return info, Links(request, info.cluster_id)


# -- cluster and brokers ----------------------------------------------------------------------


async def list_clusters(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    return links.listing("KafkaClusterList", "", [show_cluster(info, links)])


async def get_cluster(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    return answer(show_cluster(info, links))


def show_cluster(info: ClusterInfo, links: Links) -> dict[str, Any]:
    return links.resource(
        "KafkaCluster",
        "",
        cluster_id=info.cluster_id,
        controller=links.related(f"brokers/{info.controller_id}"),
        acls=links.related("acls"),
        brokers=links.related("brokers"),
        broker_configs=links.related("broker-configs"),
        consumer_groups=links.related("consumer-groups"),
        topics=links.related("topics"),
        partition_reassignments=links.related("topics/-/partitions/-/reassignment"),
    )


async def list_brokers(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    return links.listing("KafkaBrokerList", "brokers", (show_broker(info, broker, links) for broker in info.brokers))


async def get_broker(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    for broker in info.brokers:
        if str(broker.node_id) == request.path_params["broker"]:
            return answer(show_broker(info, broker, links))
    raise Refused(404, "Broker not found.")


def show_broker(info: ClusterInfo, broker: Broker, links: Links) -> dict[str, Any]:
    path = f"brokers/{broker.node_id}"
    return links.resource(
        "KafkaBroker",
        path,
        cluster_id=info.cluster_id,
        broker_id=broker.node_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        configs=links.related(f"{path}/configs"),
        partition_replicas=links.related(f"{path}/partition-replicas"),
    )


# -- topics -----------------------------------------------------------------------------------


async def list_topics(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    return links.listing("KafkaTopicList", "topics", (show_topic(info, topic, links) for topic in info.topics))


async def get_topic(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    return answer(show_topic(info, await existing_topic(door, request), links))


def show_topic(info: ClusterInfo, topic: TopicInfo, links: Links) -> dict[str, Any]:
    path = f"topics/{topic.name}"
    return links.resource(
        "KafkaTopic",
        path,
        cluster_id=info.cluster_id,
        topic_name=topic.name,
        is_internal=topic.is_internal,
        replication_factor=max((len(partition.replicas) for partition in topic.partitions), default=0),
        partitions_count=len(topic.partitions),
        partitions=links.related(f"{path}/partitions"),
        configs=links.related(f"{path}/configs"),
        partition_reassignments=links.related(f"{path}/partitions/-/reassignment"),
    )


async def create(door: Door, request: Request) -> Response:
    given = decode(await json_body(request), shapes.CreateTopic)
    info, links = await open_cluster(door, request)
    await create_topic(
        door.cluster,
        given.topic_name,
        -1 if given.partitions_count is None else given.partitions_count,
        -1 if given.replication_factor is None else given.replication_factor,
        {entry.name: entry.value for entry in given.configs},
        validate_only=given.validate_only,
    )
    if given.validate_only:
        topic = TopicInfo(given.topic_name, b"", False, ())
    else:
        topic = await door.cluster.topic(given.topic_name)
    return answer(show_topic(info, topic, links), 201)


async def delete(door: Door, request: Request) -> Response:
    await open_cluster(door, request)
    await delete_topic(door.cluster, topic_name(request))
    return no_content()


async def list_partitions(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    topic = await existing_topic(door, request)
    shown = (show_partition(info, topic, partition, links) for partition in topic.partitions)
    return links.listing("KafkaPartitionList", f"topics/{topic.name}/partitions", shown)


async def get_partition(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    topic, partition = await existing_partition(door, request)
    return answer(show_partition(info, topic, partition, links))


def show_partition(info: ClusterInfo, topic: TopicInfo, partition: PartitionInfo, links: Links) -> dict[str, Any]:
    path = f"topics/{topic.name}/partitions/{partition.partition}"
    return links.resource(
        "KafkaPartition",
        path,
        cluster_id=info.cluster_id,
        topic_name=topic.name,
        partition_id=partition.partition,
        leader=links.related(f"{path}/replicas/{partition.leader_id}"),
        replicas=links.related(f"{path}/replicas"),
        reassignment=links.related(f"{path}/reassignment"),
    )


async def list_configs(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    topic = await existing_topic(door, request)
    path = f"topics/{topic.name}/configs"
    shown = (
        links.resource(
            "KafkaTopicConfig",
            f"{path}/{entry.name}",
            cluster_id=info.cluster_id,
            topic_name=topic.name,
            name=entry.name,
            value=entry.value,
            is_default=entry.is_default,
            is_read_only=entry.is_read_only,
            is_sensitive=entry.is_sensitive,
        )
        for entry in await topic_settings(door.cluster, topic.name)
    )
    return links.listing("KafkaTopicConfigList", path, shown)


# -- publish ----------------------------------------------------------------------------------


async def publish(door: Door, request: Request) -> Response:
    """Several JSON objects in a row are several records, and as many answers in a row."""
    of_content_type(request.headers.get("content-type", ""))
    given = [decode(text, shapes.V3Record) for text in split_objects(await read_body(request))]
    info, _ = await open_cluster(door, request)
    made = [(build_record(door, entry), entry.partition_id) for entry in given]
    topic = await door.cluster.topic(topic_name(request), create=True)
    results = await deliver(door, topic, made)
    if len(results) == 1 and isinstance(results[0], Refused):
        raise results[0]
    lines = [
        msgspec.json.encode(
            shapes.V3ProduceResponse(200, **acknowledgement(info, topic, entry, record, result))
            if isinstance(result, Produced)
            else shapes.Error(result.code, result.message)
        )
        for entry, (record, _), result in zip(given, made, results, strict=True)
    ]
    return Response(b"\r\n".join(lines), media_type="application/json")


async def publish_batch(door: Door, request: Request) -> Response:
    given = decode(await json_body(request), shapes.V3BatchRequest)
    info, _ = await open_cluster(door, request)
    made = [(build_record(door, entry), entry.partition_id) for entry in given.entries]
    topic = await door.cluster.topic(topic_name(request), create=True)
    successes, failures = [], []
    for entry, (record, _), result in zip(given.entries, made, await deliver(door, topic, made), strict=True):
        if isinstance(result, Produced):
            fields = acknowledgement(info, topic, entry, record, result)
            successes.append(shapes.V3BatchSuccess(entry.id, **fields))
        else:
            failures.append(shapes.V3BatchFailure(entry.id, result.code, result.message))
    return answer(shapes.V3BatchResponse(successes, failures), 207)


def split_objects(body: bytes) -> list[bytes]:
    """Raises Refused: 400 for what is not JSON objects, 413 for too many."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(400, "not JSON: not UTF-8") from error
    decoder = json.JSONDecoder()
    pieces: list[bytes] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            break
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"not JSON: {error}") from error
        pieces.append(text[at:end].encode("utf-8"))
        at = end
        if len(pieces) > MAX_STREAMED:
            raise Refused(413, f"at most {MAX_STREAMED} records in one request")
    if not pieces:
        raise Refused(400, "not JSON: the body is empty")
    return pieces


def build_record(door: Door, given: shapes.V3Record | shapes.V3BatchEntry) -> Record:
    return Record(
        encode_data(given.key),
        encode_data(given.value),
        build_headers(given.headers),
        door.clock.now_ms() if given.timestamp is None else parse_time(given.timestamp),
    )


def encode_data(data: shapes.Data | None) -> bytes | None:
    if data is None:
        return None
    if data.type == "STRING":
        text = encode_value(data.data, Format.JSON)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=str).encode()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(422, "data of type STRING is a string") from error
    return encode_value(data.data, Format.BINARY if data.type == "BINARY" else Format.JSON)


def parse_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        timestamp_ms = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise Refused(422, f"timestamp: {error}") from error
    if timestamp_ms < 0:
        raise Refused(422, "timestamp: before 1970")
    return timestamp_ms


def show_time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)  # after the year 9999
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def acknowledgement(
    info: ClusterInfo,
    topic: TopicInfo,
    given: shapes.V3Record | shapes.V3BatchEntry,
    record: Record,
    produced: Produced,
) -> dict[str, Any]:
    def size(data: shapes.Data | None, encoded: bytes | None) -> shapes.DataSize | None:
        return None if data is None else shapes.DataSize(data.type, len(encoded or b""))

    return {
        "cluster_id": info.cluster_id,
        "topic_name": topic.name,
        "partition_id": produced.partition,
        "offset": produced.offset,
        "timestamp": show_time(produced.timestamp_ms),
        "key": size(given.key, record.key),
        "value": size(given.value, record.value),
    }


# -- groups -----------------------------------------------------------------------------------


async def list_consumer_groups(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    shown = (show_group_summary(info, group, links) for group in await list_groups(door.cluster))
    return links.listing("KafkaConsumerGroupList", "consumer-groups", shown)


def show_group_summary(info: ClusterInfo, group: GroupSummary, links: Links) -> dict[str, Any]:
    return show_group_fields(info, group.group_id, group.state, "", group.coordinator_id, links) | {
        "type": group.group_type.upper()
    }


async def get_group(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    group = await describe_group(door.cluster, group_name(request))
    return answer(show_group_fields(info, group.group_id, group.state, group.assignor, group.coordinator_id, links))


def show_group_fields(
    info: ClusterInfo, group_id: str, state: str, assignor: str, coordinator_id: int, links: Links
) -> dict[str, Any]:
    path = f"consumer-groups/{group_id}"
    return links.resource(
        "KafkaConsumerGroup",
        path,
        cluster_id=info.cluster_id,
        consumer_group_id=group_id,
        is_simple=state == "Empty",
        partition_assignor=assignor,
        state="".join("_" + c if c.isupper() and n else c for n, c in enumerate(state)).upper(),
        coordinator=links.related(f"brokers/{coordinator_id}"),
        consumers=links.related(f"{path}/consumers"),
        lag_summary=links.related(f"{path}/lag-summary"),
    )


async def list_members(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    group = await describe_group(door.cluster, group_name(request))
    path = f"consumer-groups/{group.group_id}/consumers"
    shown = (
        links.resource(
            "KafkaConsumer",
            f"{path}/{member.member_id}",
            cluster_id=info.cluster_id,
            consumer_group_id=group.group_id,
            consumer_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            assignments=links.related(f"{path}/{member.member_id}/assignments"),
        )
        for member in group.members
    )
    return links.listing("KafkaConsumerList", path, shown)


async def list_lags(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    group = await describe_group(door.cluster, group_name(request))
    path = f"consumer-groups/{group.group_id}/lags"
    shown = (
        links.resource("KafkaConsumerLag", f"{path}/{entry['topic_name']}/partitions/{entry['partition_id']}", **entry)
        for entry in await lags(door, info, group)
    )
    return links.listing("KafkaConsumerLagList", path, shown)


async def lag_summary(door: Door, request: Request) -> Response:
    info, links = await open_cluster(door, request)
    group = await describe_group(door.cluster, group_name(request))
    entries = await lags(door, info, group)
    worst: Mapping[str, Any] = max(entries, key=lambda entry: int(entry["lag"]), default={})
    path = f"consumer-groups/{group.group_id}/lag-summary"
    return answer(
        links.resource(
            "KafkaConsumerGroupLagSummary",
            path,
            cluster_id=info.cluster_id,
            consumer_group_id=group.group_id,
            max_lag_consumer_id=worst.get("consumer_id", ""),
            max_lag_instance_id=worst.get("instance_id"),
            max_lag_client_id=worst.get("client_id", ""),
            max_lag_topic_name=worst.get("topic_name", ""),
            max_lag_partition_id=worst.get("partition_id", 0),
            max_lag=worst.get("lag", 0),
            total_lag=sum(int(entry["lag"]) for entry in entries),
        )
    )


async def lags(door: Door, info: ClusterInfo, group: GroupInfo) -> Sequence[Mapping[str, Any]]:
    """Partitions with a committed offset, of topics that still exist."""
    offsets = await committed(door.cluster, group.group_id)
    sizes = {topic.name: len(topic.partitions) for topic in info.topics}
    known = {key: entry for key, entry in sorted(offsets.items()) if key.partition < sizes.get(key.topic, 0)}
    ends = await list_offsets(door.cluster, dict.fromkeys(known, LATEST_MS))
    owners = {partition: member for member in group.members for partition in member.assignment}
    entries = []
    for key, entry in known.items():
        member = owners.get(TopicPartition(*key))
        entries.append(
            {
                "cluster_id": info.cluster_id,
                "consumer_group_id": group.group_id,
                "topic_name": key.topic,
                "partition_id": key.partition,
                "current_offset": entry.offset,
                "log_end_offset": ends[key].offset,
                "lag": max(0, ends[key].offset - entry.offset),
                "consumer_id": member.member_id if member else "",
                "instance_id": member.instance_id if member else None,
                "client_id": member.client_id if member else "",
            }
        )
    return entries


CLUSTER = "/v3/clusters/{cluster}"
TOPIC = f"{CLUSTER}/topics/{{topic}}"
GROUP = f"{CLUSTER}/consumer-groups/{{group}}"
_RECORD_REFUSALS = (400, 404, 408, 413, 415, 422)


def _get(path: str, name: str, summary: str, tag: str, endpoint: Any, shape: type) -> Operation:
    refusals = (404, 422) if "{group}" in path else (404,) if "{" in path else ()
    return Operation("GET", path, name, summary, tag, endpoint, {200: shape}, refusals=refusals)


_ONE, _MANY = shapes.Resource, shapes.ResourceList
OPERATIONS = (
    _get("/v3/clusters", "listClusters", "This cluster, as a list.", "Cluster", list_clusters, _MANY),
    _get(CLUSTER, "getCluster", "The cluster.", "Cluster", get_cluster, _ONE),
    _get(f"{CLUSTER}/brokers", "listClusterBrokers", "Brokers.", "Cluster", list_brokers, _MANY),
    _get(f"{CLUSTER}/brokers/{{broker}}", "getBroker", "One broker.", "Cluster", get_broker, _ONE),
    _get(f"{CLUSTER}/topics", "listClusterTopics", "Topics.", "Topics", list_topics, _MANY),
    Operation(
        "POST",
        f"{CLUSTER}/topics",
        "createTopic",
        "Create a topic.",
        "Topics",
        create,
        {201: _ONE},
        body=shapes.CreateTopic,
        refusals=_RECORD_REFUSALS,
    ),
    _get(TOPIC, "getClusterTopic", "One topic.", "Topics", get_topic, _ONE),
    Operation(
        "DELETE", TOPIC, "deleteTopic", "Delete a topic.", "Topics", delete, {204: None}, refusals=(400, 403, 404)
    ),
    _get(f"{TOPIC}/partitions", "listClusterPartitions", "Partitions.", "Topics", list_partitions, _MANY),
    _get(f"{TOPIC}/partitions/{{partition}}", "getClusterPartition", "One partition.", "Topics", get_partition, _ONE),
    _get(f"{TOPIC}/configs", "listTopicConfigs", "Settings of a topic.", "Topics", list_configs, _MANY),
    Operation(
        "POST",
        f"{TOPIC}/records",
        "publishRecord",
        "Publish a record, or several JSON objects in a row.",
        "Records",
        publish,
        {200: shapes.V3ProduceResponse},
        body=shapes.V3Record,
        refusals=_RECORD_REFUSALS,
    ),
    Operation(
        "POST",
        f"{TOPIC}/records:batch",
        "publishBatch",
        "Publish a batch, each entry with its own outcome.",
        "Records",
        publish_batch,
        {207: shapes.V3BatchResponse},
        body=shapes.V3BatchRequest,
        refusals=_RECORD_REFUSALS,
    ),
    _get(f"{CLUSTER}/consumer-groups", "listGroups", "Groups.", "Groups", list_consumer_groups, _MANY),
    _get(GROUP, "getGroup", "One group.", "Groups", get_group, _ONE),
    _get(f"{GROUP}/consumers", "listMembers", "Members of a group.", "Groups", list_members, _MANY),
    _get(f"{GROUP}/lags", "listLags", "Committed offset, end and lag by partition.", "Groups", list_lags, _MANY),
    _get(f"{GROUP}/lag-summary", "getLagSummary", "Largest and total lag.", "Groups", lag_summary, _ONE),
)
