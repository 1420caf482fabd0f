"""The offsets of a query in Spark's checkpoint.

    {"version": 1, "group": "spark-penstock-1f0c9a3e",
     "topics": {"clicks": {"id": "5W1p...", "partitions": {"0": 12, "1": 7}, "epochs": {"0": 3, "1": 5}}}}

An offset is that of the next record to be read. The topic's id distinguishes a topic from a later one of the same name.
The epoch is the leader's when the batch was planned: the records before the offset have that epoch or an earlier one.
So a log that was truncated since then is noticed, even if it has grown past the offset again. Epochs are optional:
earlier versions neither write nor read them, and brokers may not tell them.
The group belongs to the query and is restored from the checkpoint after a restart.

`"cluster"` is the id of the cluster, and `"isolation": "read_committed"` says that the query does not read beyond the
last stable offset. They are for those who compute the lag from a checkpoint. Both are optional.

`"tasks"` is the number of tasks for which small ranges of the batch are put together, so that a repeated batch is
divided as before, even on another machine. Without it each range is a task.

Spark logs only the ends of batches, so the start of a batch is the end of the one before. Where it is not, the end also
has the start: `"begin": {"clicks": {"0": 0, "1": 0}}`. These are all partitions in a query's first batch, partitions
that the query has not read before, and partitions where retention has passed the query. If such a batch is repeated, it
is read from there, and not from where it would begin now. The initial offsets of a query have `"initial": true` and are
in no checkpoint. Versions that know `begin` only for the first batch ignore it in others.

Offsets of Spark's Kafka source, {"clicks": {"0": 12, "1": 7}}, can be read, too: they have no ids and no group.

Invariant: Spark compares offsets as text, so equal offsets have equal text, with topics and partitions in order.
Must not know: clusters, options.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition

VERSION = 1
READ_COMMITTED = "read_committed"
NO_TOPIC_ID = bytes(16)
"""The id in clusters without topic ids."""
NO_GROUP = ""
"""The group of offsets that another source wrote, and of flows of a pipeline."""


class UnreadableOffset(PenstockError):
    """A checkpoint that this version cannot resume from."""


class DataLoss(PenstockError):
    """Records were lost before they were read, and failOnDataLoss makes this an error."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    group: str
    topic_ids: Mapping[str, bytes]
    positions: Mapping[TopicPartition, int]
    is_initial: bool = False
    begin: Mapping[TopicPartition, int] | None = None
    """The start of the batch that ends here, for partitions where it is not the end of the batch before."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Known leader epochs."""
    cluster: str = ""
    read_committed: bool = False
    tasks: int | None = None

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for topic in sorted(self.topic_ids):
            topics[topic] = {"id": topic_id_text(self.topic_ids[topic]), "partitions": {}}
        for tp in sorted(self.positions):
            topics[tp.topic]["partitions"][str(tp.partition)] = self.positions[tp]
        for tp in sorted(self.epochs.keys() & self.positions.keys()):
            topics[tp.topic].setdefault("epochs", {})[str(tp.partition)] = self.epochs[tp]
        found: dict[str, Any] = {"version": VERSION, "group": self.group}
        if self.is_initial:
            found["initial"] = True
        if self.cluster:
            found["cluster"] = self.cluster
        if self.read_committed:
            found["isolation"] = READ_COMMITTED
        if self.tasks is not None:
            found["tasks"] = self.tasks
        if self.begin is not None:
            found["begin"] = {}
            for tp in sorted(self.begin):
                found["begin"].setdefault(tp.topic, {})[str(tp.partition)] = self.begin[tp]
        return found | {"topics": topics}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SourceOffset:
        if _is_kafkas(given):
            return cls(NO_GROUP, dict.fromkeys(given, NO_TOPIC_ID), dict(_by_topic(given)))
        version = given.get("version")
        if version != VERSION:
            raise UnreadableOffset(
                f"the checkpoint has offsets of version {version}, but this source reads version {VERSION}: another "
                "version of penstock, or another source, wrote it"
            )
        try:
            begin = dict(_by_topic(given["begin"])) if "begin" in given else None
            is_initial = bool(given.get("initial", False))
            positions, epochs = dict(_numbers(given, "partitions")), dict(_numbers(given, "epochs"))
            cluster, is_committed = str(given.get("cluster", "")), given.get("isolation") == READ_COMMITTED
            group, topic_ids = str(given["group"]), dict(_ids(given))
            tasks = int(given["tasks"]) if "tasks" in given else None
            return cls(group, topic_ids, positions, is_initial, begin, epochs, cluster, is_committed, tasks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableOffset(f"the checkpoint has no readable offsets ({error!r}): {given}") from None

    def is_recreated_since(self, older: SourceOffset, topic: str) -> bool:
        """Whether both have the name, but for different topics."""
        before, now = older.topic_ids.get(topic, NO_TOPIC_ID), self.topic_ids.get(topic, NO_TOPIC_ID)
        return before != now and NO_TOPIC_ID not in (before, now)


def topic_id_text(topic_id: bytes) -> str:
    """The id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _topic_id(text: str) -> bytes:
    try:
        found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        found = b""
    if len(found) != len(NO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id")
    return found


def _ids(given: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for topic, entry in given["topics"].items():
        yield topic, _topic_id(entry["id"])


def _numbers(given: Mapping[str, Any], kind: str) -> Iterator[tuple[TopicPartition, int]]:
    for topic, entry in given["topics"].items():
        for partition, number in (entry[kind] if kind == "partitions" else entry.get(kind, {})).items():
            yield TopicPartition(topic, int(partition)), int(number)


def _is_kafkas(given: Mapping[str, Any]) -> bool:
    return all(
        isinstance(entry, dict)
        and all(number.isascii() and number.isdigit() and isinstance(entry[number], int) for number in entry)
        for entry in given.values()
    )


def _by_topic(given: Mapping[str, Any]) -> Iterator[tuple[TopicPartition, int]]:
    for topic, entry in given.items():
        for partition, offset in entry.items():
            yield TopicPartition(topic, int(partition)), int(offset)
