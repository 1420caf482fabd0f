"""The cluster, its brokers and topics, as in Confluent's v3 API.

/v3/clusters[/{cluster}]
/v3/clusters/{cluster}/brokers[/{broker}]
/v3/clusters/{cluster}/topics[/{topic}]            GET, POST, DELETE
/v3/clusters/{cluster}/topics/{topic}/partitions[/{partition}], .../configs
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.http import shapes
from penstock.gateway.http.consumers import json_body
from penstock.gateway.http.errors import Refused
from penstock.gateway.http.operations import Operation, Proxy, answer, decode, no_content
from penstock.gateway.http.v2 import existing_partition, existing_topic, topic_name
from penstock.gateway.http.v3_resources import BODY_REFUSALS, CLUSTER, MANY, ONE, TOPIC, Links, look, open_cluster
from penstock.model.new_topic import BROKER_DEFAULT, NewTopic, without_nulls
from penstock.wire_client.aio.topics import create_topic, delete_topic, topic_settings
from penstock.wire_client.requests.metadata import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

# -- cluster and brokers ----------------------------------------------------------------------


async def list_clusters(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    return links.listing("KafkaClusterList", "", [show_cluster(info, links)])


async def get_cluster(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    return answer(show_cluster(info, links))


def show_cluster(info: ClusterMetadata, links: Links) -> dict[str, Any]:
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


async def list_brokers(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    return links.listing("KafkaBrokerList", "brokers", (show_broker(info, broker, links) for broker in info.brokers))


async def get_broker(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    for broker in info.brokers:
        if str(broker.node_id) == request.path_params["broker"]:
            return answer(show_broker(info, broker, links))
    raise Refused(404, "Broker not found.")


def show_broker(info: ClusterMetadata, broker: BrokerMetadata, links: Links) -> dict[str, Any]:
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


async def list_topics(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    return links.listing("KafkaTopicList", "topics", (show_topic(info, topic, links) for topic in info.topics))


async def get_topic(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    return answer(show_topic(info, await existing_topic(proxy, request), links))


def show_topic(info: ClusterMetadata, topic: TopicMetadata, links: Links) -> dict[str, Any]:
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


async def create(proxy: Proxy, request: Request) -> Response:
    given = decode(await json_body(proxy, request), shapes.CreateTopic)
    info, links = await open_cluster(proxy, request)
    wanted = NewTopic(
        given.topic_name,
        BROKER_DEFAULT if given.partitions_count is None else given.partitions_count,
        BROKER_DEFAULT if given.replication_factor is None else given.replication_factor,
        configs=without_nulls([(entry.name, entry.value) for entry in given.configs]),
    )
    await create_topic(proxy.cluster, wanted, validate_only=given.validate_only)
    if given.validate_only:
        topic = TopicMetadata(given.topic_name, b"", False, ())
    else:
        topic = await proxy.cluster.topic(given.topic_name)
    return answer(show_topic(info, topic, links), 201)


async def delete(proxy: Proxy, request: Request) -> Response:
    await open_cluster(proxy, request)
    await delete_topic(proxy.cluster, topic_name(request))
    return no_content()


async def list_partitions(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    topic = await existing_topic(proxy, request)
    shown = (show_partition(info, topic, partition, links) for partition in topic.partitions)
    return links.listing("KafkaPartitionList", f"topics/{topic.name}/partitions", shown)


async def get_partition(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    topic, partition = await existing_partition(proxy, request)
    return answer(show_partition(info, topic, partition, links))


def show_partition(
    info: ClusterMetadata, topic: TopicMetadata, partition: PartitionMetadata, links: Links
) -> dict[str, Any]:
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


async def list_configs(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    topic = await existing_topic(proxy, request)
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
        for entry in await topic_settings(proxy.cluster, topic.name)
    )
    return links.listing("KafkaTopicConfigList", path, shown)


OPERATIONS = (
    look("/v3/clusters", "listClusters", "This cluster, as a list.", "Cluster", list_clusters, MANY),
    look(CLUSTER, "getCluster", "The cluster.", "Cluster", get_cluster, ONE),
    look(f"{CLUSTER}/brokers", "listClusterBrokers", "Brokers.", "Cluster", list_brokers, MANY),
    look(f"{CLUSTER}/brokers/{{broker}}", "getBroker", "One broker.", "Cluster", get_broker, ONE),
    look(f"{CLUSTER}/topics", "listClusterTopics", "Topics.", "Topics", list_topics, MANY),
    Operation(
        "POST",
        f"{CLUSTER}/topics",
        "createTopic",
        "Create a topic.",
        "Topics",
        create,
        {201: ONE},
        body=shapes.CreateTopic,
        refusals=BODY_REFUSALS,
    ),
    look(TOPIC, "getClusterTopic", "One topic.", "Topics", get_topic, ONE),
    Operation(
        "DELETE", TOPIC, "deleteTopic", "Delete a topic.", "Topics", delete, {204: None}, refusals=(400, 403, 404)
    ),
    look(f"{TOPIC}/partitions", "listClusterPartitions", "Partitions.", "Topics", list_partitions, MANY),
    look(f"{TOPIC}/partitions/{{partition}}", "getClusterPartition", "One partition.", "Topics", get_partition, ONE),
    look(f"{TOPIC}/configs", "listTopicConfigs", "Settings of a topic.", "Topics", list_configs, MANY),
)
