"""Traffic of each topic since the broker started. The reader of the counters removes deleted topics."""

from __future__ import annotations


class TopicTraffic:
    __slots__ = ("batches_in", "bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.batches_in = 0
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
        self.records_out = 0
        """By offsets: on a compacted topic the gaps are counted too."""


class Traffic:
    __slots__ = ("by_topic",)

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicTraffic] = {}

    def of(self, topic: str) -> TopicTraffic:
        found = self.by_topic.get(topic)
        if found is None:
            found = self.by_topic[topic] = TopicTraffic()
        return found
