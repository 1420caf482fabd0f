"""The small text files beside the logs, in Kafka's formats.

    recovery-point-offset-checkpoint   per partition: everything below is stable
    log-start-offset-checkpoint        per partition: everything below is deleted
    cleaner-offset-checkpoint          per partition: everything below was compacted
    replication-offset-checkpoint      per partition: everything below was known to be committed
    .kafka_cleanshutdown               present: every log was closed cleanly, no scan needed
    <partition>/partition.metadata     the topic id

A missing checkpoint counts as empty; a damaged one raises. Losing a recovery point would only cost a scan, but
losing a log start offset would bring deleted records back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TypeAlias

from penstock.model.errors import StorageError
from penstock.ports.disk import Disk
from penstock.storage.files import parent_of, read_whole, write_atomic, write_whole

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"

Offsets: TypeAlias = Mapping[tuple[str, int], int]


def recovery_point_path(log_dir: str) -> str:
    return f"{log_dir}/{RECOVERY_POINTS}"


def log_start_path(log_dir: str) -> str:
    return f"{log_dir}/{LOG_START_OFFSETS}"


def write_offsets(disk: Disk, path: str, offsets: Offsets) -> None:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    write_atomic(disk, path, f"0\n{len(lines)}\n{''.join(lines)}".encode())


def read_offsets(disk: Disk, path: str) -> dict[tuple[str, int], int]:
    data = read_whole(disk, path)
    if data is None:
        return {}
    result: dict[tuple[str, int], int] = {}
    try:
        version, count, *lines = data.decode().splitlines()
        if int(version) != 0 or int(count) != len(lines):
            raise ValueError("wrong version or number of lines")
        for line in lines:
            topic, partition, offset = line.split()
            result[topic, int(partition)] = int(offset)
    except ValueError as error:
        reason = "the file is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise StorageError(f"{path} is damaged: {reason}; {_ADVICE[path.rpartition('/')[2]]}") from error
    return result


_ADVICE = {
    RECOVERY_POINTS: "restore it from a copy, or delete it: all logs are then scanned from their start",
    LOG_START_OFFSETS: "restore it from a copy; without it deleted records would come back",
    CLEANED_OFFSETS: "restore it from a copy, or delete it: all compacted logs are then compacted from their start",
    HIGH_WATERMARKS: "restore it from a copy, or delete it: high watermarks are then learned from the leaders",
}


def write_partition_metadata(disk: Disk, directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    path = f"{directory}/{PARTITION_METADATA}"
    if sync:
        write_atomic(disk, path, _partition_metadata(topic_id))
    else:
        write_whole(disk, path, _partition_metadata(topic_id), sync=False)


def write_partition_metadata_again(disk: Disk, directory: str, topic_id: bytes) -> None:
    """Write the same bytes again, which no crash can damage: after a failed sync, the next one would report success."""
    file = disk.open(f"{directory}/{PARTITION_METADATA}")
    try:
        file.write(0, (_partition_metadata(topic_id),))
    finally:
        file.close()


def _partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}".encode()


def read_partition_metadata(disk: Disk, directory: str) -> bytes | None:
    """The topic id, or None if the file is missing or was never made stable."""
    data = read_whole(disk, f"{directory}/{PARTITION_METADATA}")
    fields = dict(line.partition(": ")[::2] for line in (data or b"").decode("utf-8", "replace").splitlines())
    text = fields.get("topic_id", "")
    if fields.get("version") != "0" or len(text) != 22:
        return None
    try:
        return base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError:  # part of the file never reached the disk
        return None


def encode_topic_id(topic_id: bytes) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def write_clean_shutdown_marker(disk: Disk, log_dir: str, broker_epoch: int = -1) -> None:
    """Only after every log of `log_dir` is closed and its recovery point is written."""
    content = {"version": 0, "brokerEpoch": broker_epoch}
    write_atomic(disk, f"{log_dir}/{CLEAN_SHUTDOWN}", json.dumps(content, separators=(",", ":")).encode())


def read_clean_epoch(disk: Disk, log_dir: str) -> int:
    """The broker epoch of a run that shut down cleanly, while its marker exists; -1: none or unknown."""
    path = f"{log_dir}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return -1
    file = disk.open(path)
    try:
        found = json.loads(file.read(0, file.size()) or b"{}")
    except ValueError:
        return -1
    finally:
        file.close()
    epoch = found.get("brokerEpoch", -1) if isinstance(found, dict) else -1
    return epoch if isinstance(epoch, int) else -1


def take_clean_shutdown_marker(disk: Disk, log_dir: str) -> bool:
    """Whether the last shutdown was clean. The marker is permanently removed before this returns."""
    path = f"{log_dir}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return False
    disk.remove(path)
    disk.sync_directory(parent_of(path))
    return True
