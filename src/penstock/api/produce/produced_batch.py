"""Further requirements for a valid produced batch: size, codec, timestamps, keys if the topic needs them.

Checks raise ApiError. `prepare` reads records, and runs in the process for records: it imports little.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header, validate_produced
from penstock.records.compression import CODEC_BY_NAME, NAMES, ZSTD, recompress
from penstock.records.examine import keyless
from penstock.wire.messages.produce import BatchIndexAndErrorMessage
from penstock.wire.primitives import Records

# Batches of a compacted topic up to this size are checked in place; larger ones go to a worker.
FEW_RECORDS = 200


def level(config: TopicConfig) -> int | None:
    match config.compression_type:
        case "gzip":
            # -1 is zlib's own default, which is what Kafka passes on.
            return config.compression_gzip_level
        case "lz4":
            return config.compression_lz4_level
        case "zstd":
            return config.compression_zstd_level
    return None


def check_codec(header: BatchHeader, version: int) -> None:
    codec = header.compression
    if codec >= len(NAMES):
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    if codec == ZSTD and version < 7:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs produce requests of version 7 or later")


def check_size(records: Buffer, max_message_bytes: int) -> None:
    if len(records) > max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(records)} bytes is larger than max.message.bytes={max_message_bytes}",
        )


def check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    newest = header.max_timestamp
    if newest - now_ms > config.message_timestamp_after_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {newest} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} ahead of the broker's clock",
        )
    if header.base_timestamp >= 0 and now_ms - header.base_timestamp > config.message_timestamp_before_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is more than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} behind the broker's clock",
        )


class RecordsRefused(ApiError):
    """Records without a key on a compacted topic, by their index in the batch."""

    def __init__(self, indexes: list[int]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "One or more records have been rejected")
        self._indexes = indexes

    def __reduce__(self) -> tuple[type[RecordsRefused], tuple[list[int]]]:
        return RecordsRefused, (self._indexes,)

    def record_errors(self) -> list[BatchIndexAndErrorMessage]:
        message = "Compacted topic cannot accept message without key"
        return [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message) for index in self._indexes
        ]


def is_small(records: Records) -> bool:
    """Few enough uncompressed records to read them on the loop."""
    if not isinstance(records, memoryview) or len(records) < HEADER_SIZE:
        return True  # refused before its records are read
    header = read_header(records)
    return header.compression == 0 and header.record_count <= FEW_RECORDS


def check_keys(header: BatchHeader, records: Buffer) -> None:
    """A compacted topic cannot keep a record without a key."""
    missing = keyless(header, records)
    if missing:
        raise RecordsRefused(missing)


class Preparation(NamedTuple):
    """The work on a batch before its order is fixed."""

    records: bytes
    version: int
    max_message_bytes: int
    needs_keys: bool
    codec: int | None
    """None: keep the producer's codec."""
    level: int | None


def preparation_of(records: bytes, config: TopicConfig, version: int) -> Preparation:
    is_own = config.compression_type == "producer"
    return Preparation(
        records,
        version,
        config.max_message_bytes,
        "compact" in config.cleanup_policy,
        None if is_own else CODEC_BY_NAME[config.compression_type],
        None if is_own else level(config),
    )


def prepare(todo: Preparation) -> bytes | None:
    """Runs in the process for records: returns the batch in the topic's codec, None if unchanged. Raises ApiError."""
    records = todo.records
    header = validate_produced(records)
    check_codec(header, todo.version)
    check_size(records, todo.max_message_bytes)  # before and after, as in Kafka
    if todo.needs_keys:
        check_keys(header, records)
    if todo.codec is None or todo.codec == header.compression:
        return None
    return recompress(header, records, todo.codec, todo.level)
