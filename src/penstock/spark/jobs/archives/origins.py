"""Which topics the records of a micro-batch come from. A name is not enough: a topic may be deleted and created again.

Two say so, and neither alone is enough. Spark notes the offsets of a batch before it is read, with the ids of the
topics as the source then knew them. The cluster says which topics there are after it was read. Must not know: archives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from penstock.spark.jobs.archives.manifest import Origin
from penstock.spark.jobs.errors import JobFailed
from penstock.spark.offsets import NO_TOPIC_ID, SourceOffset, topic_id_text
from penstock.wire_client.requests.metadata import TopicMetadata

GRACE_S = 1.0
"""A broker that has just started may not know every topic yet."""


class TopicLister(Protocol):
    """The part of `wire_client.blocking.cluster.BlockingCluster` that is needed."""

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]: ...


def planned_origin(checkpoint: Path, batch_id: int) -> Origin:
    """By the offsets that Spark noted for a query with one source of topics. Raises JobFailed."""
    path = checkpoint / "offsets" / str(batch_id)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        (end,) = (SourceOffset.from_json(line) for line in lines if "topics" in line)
    except (OSError, ValueError) as error:
        raise JobFailed(f"{path} does not say which offsets batch {batch_id} has: {error}") from None
    return Origin(_texts(end.topic_ids), end.positions)


def present_origin(cluster: TopicLister, topics: Iterable[str], sleep: Callable[[float], None] = time.sleep) -> Origin:
    """By the cluster, now. Raises JobFailed, WireClientError."""
    wanted = sorted(topics)
    found = cluster.topics(wanted)
    if len(found) < len(wanted):
        sleep(GRACE_S)
        found = cluster.topics(wanted)
    gone = [name for name in wanted if name not in found]
    if gone:
        raise JobFailed(f"topic {gone[0]} is gone: what was read of it last cannot be told from a new topic's records")
    return Origin(_texts({name: found[name].topic_id for name in wanted}))


def _texts(topic_ids: Mapping[str, bytes]) -> dict[str, str]:
    """Without those of brokers that are too old to have ids."""
    return {name: topic_id_text(topic_id) for name, topic_id in topic_ids.items() if topic_id != NO_TOPIC_ID}
