"""The consumer groups that show the progress of flows: `<prefix>-<flow>`, with the pipeline's name as the prefix.

A source cannot know the flow that reads it: a view with a source may be a part of several flows. So the sources of a
pipeline commit nothing (`GROUPS_BY_FLOW` in `source.group_progress`), and the runner commits for them, from the
progress of their queries and at the end of each run. A source with an option `groupId`, or with the checkpoint of an
earlier version, has a group of its own and commits to that.

A reset deletes the groups of what it resets, unless others use them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.cluster import cluster_options
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.source.group_progress import MARK, GroupProgress
from penstock.spark.source.offsets import NO_GROUP, SourceOffset
from penstock.wire.apis import Api
from penstock.wire.messages.delete_groups import DeleteGroupsResponse
from penstock.wire.messages.offset_fetch import OffsetFetchResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import error_code
from penstock.wire_client.requests.groups import (
    GROUP_KEY,
    CoordinatorKey,
    OffsetAndMetadata,
    committed_request,
    delete_group_request,
    read_committed,
)
from penstock.wire_client.requests.sentences import group_refused

PREFIX_KEY = "penstock.groupIdPrefix"
DELETE_TIMEOUT_S = 3.0

logger = logging.getLogger(__name__)


def flow_group(project: PipelineProject, flow: str) -> str:
    return f"{project.configuration.get(PREFIX_KEY) or project.name}-{flow}"


class ClusterFinder(Protocol):
    def cluster_of(self, offset: SourceOffset) -> BlockingCluster | None: ...


class FlowGroups:
    def __init__(self, project: PipelineProject, clusters: ClusterFinder) -> None:
        self._project = project
        self._clusters = clusters
        self._progress: dict[tuple[BlockingCluster, str], GroupProgress] = {}

    def report(self, flow: str, offsets: Iterable[SourceOffset]) -> None:
        """Commits the offsets of the flow's sources, at most once an hour if they do not change."""
        merged: dict[BlockingCluster, dict[TopicPartition, int]] = {}
        for offset in offsets:
            cluster = self._cluster_of(offset) if offset.group == NO_GROUP else None
            if cluster is not None:
                positions = merged.setdefault(cluster, {})
                for tp, position in offset.positions.items():  # of two sources the one further behind counts
                    positions[tp] = min(position, positions.get(tp, position))
        group = flow_group(self._project, flow)
        for cluster, positions in merged.items():
            key = cluster, group
            if key not in self._progress:
                self._progress[key] = GroupProgress(cluster)
            self._progress[key].report(group, positions)

    def _cluster_of(self, offset: SourceOffset) -> BlockingCluster | None:
        try:
            return self._clusters.cluster_of(offset)
        except PenstockError as error:  # the next report tries again
            logger.debug("the progress of flows is not committed: %s", error)
            return None


def delete_groups(client_options: Mapping[str, str], groups: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Deletes groups of flows. Returns those deleted, and the reason for each one that stays.

    A group that does not exist is neither. Raises WireClientError if no broker answers.
    """
    if not groups:
        return [], {}
    options = cluster_options(client_options)
    cluster = BlockingCluster(options.bootstrap, options.client_id, options.security, DELETE_TIMEOUT_S)
    deleted: list[str] = []
    kept: dict[str, str] = {}
    try:
        for group in dict.fromkeys(groups):
            try:
                if _is_deleted(cluster, group):
                    deleted.append(group)
            except ApiError as error:
                kept[group] = str(error)
            except _Foreign:
                kept[group] = "it has offsets of another consumer"
    finally:
        cluster.close()
    return deleted, kept


class _Foreign(Exception):
    pass


def _is_deleted(cluster: BlockingCluster, group: str) -> bool:
    def committed(connection: BlockingConnection, timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        answer = connection.call(Api.OFFSET_FETCH, committed_request(group, None), OffsetFetchResponse, timeout_s)
        return read_committed(group, answer)

    def delete(connection: BlockingConnection, timeout_s: float) -> bool:
        request = delete_group_request(group)
        answer = connection.call(Api.DELETE_GROUPS, request, DeleteGroupsResponse, timeout_s)
        code = error_code(answer.results[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise group_refused(code, group)
        return code is ErrorCode.NONE

    key = CoordinatorKey(GROUP_KEY, group)
    found = cluster.at_coordinator(key, committed)
    if not found:
        return False
    if any(one.metadata != MARK for one in found.values()):
        raise _Foreign
    return cluster.at_coordinator(key, delete)
