"""What a produced batch must be like beyond being sound: size, codec, timestamps, keys where a topic needs them.

Checks raise ApiError. `prepare_all` looks at records and runs in a worker; it touches nothing but what it is given.
"""

from __future__ import annotations

from penstock.config.topic import TopicConfig
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header, validate_produced
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.records.compression import CODEC_BY_NAME, NAMES, ZSTD, decompress, recompress
from penstock.wire.messages.produce import BatchIndexAndErrorMessage, PartitionProduceData
from penstock.wire.primitives import Records

# Batches of a compacted topic up to here are checked in place; more go to a worker.
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


def check_size(records: Buffer, config: TopicConfig) -> None:
    if len(records) > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(records)} bytes is larger than max.message.bytes={config.max_message_bytes}",
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
    """Records without a key on a compacted topic, by their place in the batch."""

    def __init__(self, indexes: list[int]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, "One or more records have been rejected")
        self._indexes = indexes

    def record_errors(self) -> list[BatchIndexAndErrorMessage]:
        message = "Compacted topic cannot accept message without key"
        return [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message) for index in self._indexes
        ]


def is_small(records: Records) -> bool:
    """Few enough records, in plain sight, to walk them on the loop."""
    if not isinstance(records, memoryview) or len(records) < HEADER_SIZE:
        return True  # refused before anybody walks it
    header = read_header(records)
    return header.compression == 0 and header.record_count <= FEW_RECORDS


def check_keys(header: BatchHeader, records: Buffer) -> None:
    """A compacted topic cannot keep a record that has no key."""
    payload = decompress(header.compression, memoryview(records)[HEADER_SIZE:])
    try:
        missing = [index for index, record in enumerate(iterate_records(header, payload)) if record.key is None]
    except MalformedRecords as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    if missing:
        raise RecordsRefused(missing)


def prepare_all(jobs: list[tuple[PartitionProduceData, TopicConfig]], version: int) -> dict[int, ApiError | None]:
    """Runs in a worker. By the identity of the data: None when all is well, or why it is refused."""
    outcomes: dict[int, ApiError | None] = {}
    for data, config in jobs:
        if not isinstance(data.records, bytes):
            continue  # null: refused later
        outcomes[id(data)] = None
        try:
            header = validate_produced(data.records)
            check_codec(header, version)
            check_size(data.records, config)  # before as well as after, as Kafka does
            if "compact" in config.cleanup_policy:
                check_keys(header, data.records)
            if config.compression_type != "producer":
                codec = CODEC_BY_NAME[config.compression_type]
                if header.compression != codec:
                    data.records = recompress(header, data.records, codec, level(config))
        except ApiError as error:
            outcomes[id(data)] = error
    return outcomes
