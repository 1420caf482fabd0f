"""Groups, their members and lag, as in Confluent's v3 API.

/v3/clusters/{cluster}/consumer-groups[/{group}[/consumers | /lags | /lag-summary]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.http.consumers import group_name
from penstock.gateway.http.operations import Proxy, answer
from penstock.gateway.http.v3_resources import CLUSTER, GROUP, MANY, ONE, Links, look, open_cluster
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.aio.fetching import list_offsets
from penstock.wire_client.aio.groups import committed, describe_group, list_groups
from penstock.wire_client.requests.groups import GroupDescription, GroupSummary
from penstock.wire_client.requests.metadata import ClusterMetadata
from penstock.wire_client.requests.offsets import LATEST_MS


async def list_consumer_groups(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    shown = (show_group_summary(info, group, links) for group in await list_groups(proxy.cluster))
    return links.listing("KafkaConsumerGroupList", "consumer-groups", shown)


def show_group_summary(info: ClusterMetadata, group: GroupSummary, links: Links) -> dict[str, Any]:
    return show_group_fields(info, group.group_id, group.state, "", group.coordinator_id, links) | {
        "type": group.group_type.upper()
    }


async def get_group(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    group = await describe_group(proxy.cluster, group_name(request))
    return answer(show_group_fields(info, group.group_id, group.state, group.assignor, group.coordinator_id, links))


def show_group_fields(
    info: ClusterMetadata, group_id: str, state: str, assignor: str, coordinator_id: int, links: Links
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


async def list_members(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    group = await describe_group(proxy.cluster, group_name(request))
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


async def list_lags(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    group = await describe_group(proxy.cluster, group_name(request))
    path = f"consumer-groups/{group.group_id}/lags"
    shown = (
        links.resource("KafkaConsumerLag", f"{path}/{entry['topic_name']}/partitions/{entry['partition_id']}", **entry)
        for entry in await lags(proxy, info, group)
    )
    return links.listing("KafkaConsumerLagList", path, shown)


async def lag_summary(proxy: Proxy, request: Request) -> Response:
    info, links = await open_cluster(proxy, request)
    group = await describe_group(proxy.cluster, group_name(request))
    entries = await lags(proxy, info, group)
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


async def lags(proxy: Proxy, info: ClusterMetadata, group: GroupDescription) -> Sequence[Mapping[str, Any]]:
    """The lag of each partition with a committed offset, for topics that still exist."""
    offsets = await committed(proxy.cluster, group.group_id)
    sizes = {topic.name: len(topic.partitions) for topic in info.topics}
    known = {key: entry for key, entry in sorted(offsets.items()) if key.partition < sizes.get(key.topic, 0)}
    ends = await list_offsets(proxy.cluster, dict.fromkeys(known, LATEST_MS))
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


OPERATIONS = (
    look(f"{CLUSTER}/consumer-groups", "listGroups", "Groups.", "Groups", list_consumer_groups, MANY),
    look(GROUP, "getGroup", "One group.", "Groups", get_group, ONE),
    look(f"{GROUP}/consumers", "listMembers", "Members of a group.", "Groups", list_members, MANY),
    look(f"{GROUP}/lags", "listLags", "Committed offset, end and lag by partition.", "Groups", list_lags, MANY),
    look(f"{GROUP}/lag-summary", "getLagSummary", "Largest and total lag.", "Groups", lag_summary, ONE),
)
