"""Open transactions and groups of flows whose checkpoints are deleted, or replaced by a full refresh.

A flow that was killed in mid-batch has open transactions, which hold readers back. The flow's next run would end them,
but its query never comes back. Its records are sent again, so nothing is lost when they are aborted. The group of a
query that never comes back would show a lag that grows for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.spark.options.cluster import cluster_options
from penstock.spark.pipeline.checkpoints import FlowCheckpoint
from penstock.spark.pipeline.groups import flow_group
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.sink.deciding import Decider
from penstock.spark.sink.operating import sink_queries
from penstock.wire_client.blocking.cluster import BlockingCluster

TIMEOUT_S = 5.0


def all_queries(checkpoints: Iterable[FlowCheckpoint]) -> list[str]:
    """The ids of the queries that have written to topics with these checkpoints."""
    return list(_ids(path for one in checkpoints if not one.is_table for path in one.directory.iterdir()))


def replaced_queries(checkpoints: Iterable[FlowCheckpoint]) -> list[str]:
    """Those that a full refresh has replaced."""
    return list(
        _ids(path for one in checkpoints if not one.is_table for path in one.directory.iterdir() if path != one.current)
    )


def replaced_groups(project: PipelineProject, checkpoints: Iterable[FlowCheckpoint]) -> list[str]:
    """The groups of the queries that a full refresh has replaced. A group with the flow's name stays in use."""
    found: set[str] = set()
    kept: set[str] = set()
    for one in checkpoints:
        kept.add(flow_group(project, one.flow))
        for directory, groups in one.groups().items():
            (kept if directory == one.current else found).update(groups)
    return sorted(found - kept)


def _ids(directories: Iterable[Path]) -> Iterator[str]:
    for directory in directories:
        try:
            yield str(json.loads((directory / "metadata").read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no query has begun there


def end_queries(client_options: Mapping[str, str], query_ids: Sequence[str]) -> list[str]:
    """Ends what the queries have left open, and withdraws their decisions. Returns the ids that the cluster knew.

    Raises ApiError, WireClientError, UnreadableDecision.
    """
    if not query_ids:
        return []
    options = cluster_options(client_options)
    cluster = BlockingCluster(options.bootstrap, options.client_id, options.security, TIMEOUT_S)
    try:
        known = [one.query_id for one in sink_queries(cluster) if one.query_id in query_ids]
        for query_id in known:
            decider = Decider(cluster, cluster, query_id)
            decider.accept_loss()
            decider.finish_all()
            decider.forget()
        return known
    finally:
        cluster.close()
