"""The topics that the records of a micro-batch come from. A name is not enough: a topic may be created again.

Two sources of information are needed. Spark logs the offsets of a batch before it is read, with the topic ids that the
source knew then. The cluster lists its topics after the batch was read. Must not know: archives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from penstock.spark.jobs.archives.manifest import Origin
from penstock.spark.jobs.errors import JobFailed
from penstock.spark.source.offsets import NO_TOPIC_ID, SourceOffset, topic_id_text
from penstock.wire_client.requests.metadata import TopicMetadata

GRACE_S = 1.0
"""A broker that has just started may not know every topic yet."""


class TopicLister(Protocol):
    """The part of `wire_client.blocking.cluster.BlockingCluster` that is used here."""

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]: ...


def planned_origin(checkpoint: Path, batch_id: int) -> Origin:
    """The origin by the offsets that Spark logged, for a query with one source of topics. Raises JobFailed."""
    path = checkpoint / "offsets" / str(batch_id)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        (end,) = (SourceOffset.from_json(line) for line in lines if "topics" in line)
    except (OSError, ValueError) as error:
        raise JobFailed(f"{path} does not have the offsets of batch {batch_id}: {error}") from None
    return Origin(_texts(end.topic_ids), end.positions)


def present_origin(cluster: TopicLister, topics: Iterable[str], sleep: Callable[[float], None] = time.sleep) -> Origin:
    """The origin by the cluster's present topics. Raises JobFailed, WireClientError."""
    wanted = sorted(topics)
    found = cluster.topics(wanted)
    if len(found) < len(wanted):
        sleep(GRACE_S)
        found = cluster.topics(wanted)
    gone = [name for name in wanted if name not in found]
    if gone:
        raise JobFailed(
            f"topic {gone[0]} is gone: its last records cannot be distinguished from records of a new topic"
        )
    return Origin(_texts({name: found[name].topic_id for name in wanted}))


def _texts(topic_ids: Mapping[str, bytes]) -> dict[str, str]:
    """The ids as text, except null ids of old brokers."""
    return {name: topic_id_text(topic_id) for name, topic_id in topic_ids.items() if topic_id != NO_TOPIC_ID}
