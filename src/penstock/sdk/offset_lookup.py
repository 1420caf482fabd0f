"""Lookup of offsets for a consumer (committed, log ends, by time), and positions as librdkafka's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.consumer_config import ConsumerConfig
from penstock.sdk.errors import BadSetting
from penstock.sdk.records import Position, checked_partitions
from penstock.sdk.settings import ClusterConnection


class OffsetLookup:
    def __init__(self, client: LibrdkafkaConsumer, connection: ClusterConnection, config: ConsumerConfig) -> None:
        self._client = client
        self._connection = connection
        self._timeout_s = config.request_timeout_ms / 1000
        self._has_group = config.group is not None
        self._reset = OFFSET_BEGINNING if config.auto_offset_reset == "earliest" else OFFSET_END

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        asked = [LibrdkafkaPartition(*one) for one in checked_partitions(partitions)]
        with self._connection.translated("cannot read committed offsets"):
            found = self._client.committed(asked, timeout=self._timeout_s)
        return {own(one): one.offset if one.offset >= 0 else None for one in found}

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        with self._connection.translated(f"cannot read the offsets of {partition}"):
            return self._client.get_watermark_offsets(LibrdkafkaPartition(*partition), timeout=self._timeout_s)

    def at(self, times: Mapping[TopicPartition, datetime]) -> dict[TopicPartition, int | None]:
        if not times:
            return {}
        asked = [LibrdkafkaPartition(*one, int(when.timestamp() * 1000)) for one, when in times.items()]
        with self._connection.translated("cannot look up offsets by time"):
            found = self._client.offsets_for_times(asked, timeout=self._timeout_s)
        for one in found:
            if one.error is not None:
                raise self._connection.error(one.error, f"cannot look up {own(one)}")
        return {own(one): one.offset if one.offset >= 0 else None for one in found}

    def resolve(self, positions: Mapping[TopicPartition, Position], *, seeking: bool) -> dict[TopicPartition, int]:
        """librdkafka can assign the committed offset but not seek to it, so that offset is looked up."""
        offsets: dict[TopicPartition, int] = {}
        times: dict[TopicPartition, datetime] = {}
        committed: list[TopicPartition] = []
        for partition, position in zip(checked_partitions(positions), positions.values(), strict=True):
            match position:
                case datetime():
                    times[partition] = position
                case "earliest":
                    offsets[partition] = OFFSET_BEGINNING
                case "latest":
                    offsets[partition] = OFFSET_END
                case "committed":
                    committed.append(partition)
                case int():
                    offsets[partition] = position
                case _:
                    raise BadSetting(
                        f"{position!r} is not a position: give an offset, a datetime, earliest, latest or committed"
                    )
        if committed and not self._has_group:
            offsets.update(dict.fromkeys(committed, self._reset))
        elif committed and seeking:
            found = self.committed(committed)
            offsets.update({one: self._reset if (offset := found[one]) is None else offset for one in committed})
        elif committed:
            offsets.update(dict.fromkeys(committed, OFFSET_STORED))
        for partition, offset in self.at(times).items():
            offsets[partition] = OFFSET_END if offset is None else offset
        return offsets


def own(partition: LibrdkafkaPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
