"""Errors of fetched bytes. They name topic, partition and offset."""

from __future__ import annotations

from penstock.model.errors import CorruptBatch


class CorruptRecordBatch(CorruptBatch):
    """A batch of a fetch answer that cannot be decoded: truncated, damaged, or inconsistent with its header."""

    def __init__(self, topic: str, partition: int, base_offset: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition}", base_offset, reason)
        self.topic = topic
        self.partition = partition
        self.base_offset = base_offset
        self.args = (
            f"corrupt record batch in topic {topic!r} partition {partition} at base offset {base_offset}: {reason}",
        )

    def __reduce__(self) -> tuple[type[CorruptRecordBatch], tuple[str, int, int, str]]:
        return CorruptRecordBatch, (self.topic, self.partition, self.base_offset, self.reason)


OLD_MAGIC = "message format v{magic} (magic {magic}): only v2 batches are read, which Kafka has written since 0.11"


def wrong_magic(magic: int) -> str:
    return OLD_MAGIC.format(magic=magic) if magic in (0, 1) else f"magic {magic} where a v2 record batch has 2"
