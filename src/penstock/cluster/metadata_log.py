"""The metadata log: `__cluster_metadata-0`, an ordinary log of small JSON records.

Same files, checksums, recovery and flush as user data, so a torn tail is cut and a
change is answered only after it is stable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from penstock.core.metadata.records import MetadataRecord, decode, encode
from penstock.model.errors import CorruptBatch, LogOffline, StorageError
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.records.batch import CRC_START, HEADER_SIZE, iterate_headers, read_header
from penstock.records.builder import Record, build_batch, iterate_records
from penstock.storage.group_commit import IDLE, GroupCommit, flush_blocking
from penstock.storage.log import Flush, Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "__cluster_metadata-0"
READ_BYTES = 4 << 20
_MAGIC_AT = 16

log = logging.getLogger(__name__)


class MetadataLog:
    def __init__(self, disk: Disk, directory: str, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        _refuse_damage(disk, f"{directory}/{DIRECTORY}")
        # The whole log is read at start anyway, so it is verified from its first byte.
        self.log = Log.open(
            disk,
            f"{directory}/{DIRECTORY}",
            LogConfig(retention_ms=-1, retention_bytes=-1),
            recovery_point=0,
            log_start_offset=0,
            clean_shutdown=False,
            now_ms=clock.now_ms(),
            topic_id=bytes(15) + b"\1",
        )
        self.flush_state = IDLE
        self._commit: GroupCommit | None = None
        self._awaiting: deque[tuple[int, asyncio.Future[None]]] = deque()

        # What a killed process wrote and did not flush is replayed below, so it must stay.
        flush_blocking(disk, self.log)
        for message in self.log.recovery.messages:
            log.warning("%s: %s", DIRECTORY, message)

    def attach(self, commit: GroupCommit) -> None:
        self._commit = commit

    def replay(self) -> Iterator[MetadataRecord]:
        offset = self.log.log_start_offset
        end = self.log.end_position()
        while offset < self.log.log_end_offset:
            piece = self.log.read(offset, READ_BYTES, end)
            if piece is None:
                raise StorageError(f"{self.log.directory}: nothing to read at offset {offset}")
            data = memoryview(piece.read())
            for at, header in iterate_headers(data, piece.file.path, piece.position):
                for record in iterate_records(header, data[at + HEADER_SIZE : at + header.size_bytes]):
                    if record.value is not None:
                        yield decode(record.value)
                offset = header.next_offset

    def append_blocking(self, records: Sequence[MetadataRecord]) -> None:
        """Before the loop runs: append and sync in place (formatting a new data directory)."""
        self._append(records)
        flush_blocking(self._disk, self.log)

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        """Returns when the records are stable. Raises StorageError when they may not be."""
        assert self._commit is not None, "attach() comes first"
        self._append(records)
        future = asyncio.get_running_loop().create_future()
        self._awaiting.append((self.log.log_end_offset, future))
        self._commit.request(self)
        await future

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([Record(None, encode(record), timestamp_ms=now_ms) for record in records])
        [(_, header)] = iterate_headers(batch, self.log.directory)
        self.log.append(header, batch, 0, now_ms)

    def begin_flush(self) -> Flush | None:
        ticket = self.log.begin_flush() if self.log.offline is None else None
        if ticket is None and self.log.offline is not None:
            self._release(self.log.offline)
        return ticket

    def end_flush(self, ticket: Flush, error: OSError | None) -> None:
        self.log.end_flush(ticket, error)
        self._release(error)

    def _release(self, error: OSError | None) -> None:
        while self._awaiting and (error is not None or self._awaiting[0][0] <= self.log.stable_offset):
            _, future = self._awaiting.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(LogOffline(self.log.directory, error))

    def close(self) -> None:
        if self.log.offline is None:
            self.log.close(clean=True)


def _refuse_damage(disk: Disk, directory: str) -> None:
    """Tell a torn tail, which recovery cuts, from damage, which it must not.

    One record is written at a time and made stable before the next one, so a sound batch after
    a bad one means that stable bytes changed. Going on would silently forget topics.
    """
    if not disk.is_directory(directory):
        return
    for name in disk.list_directory(directory):
        if not name.endswith(".log"):
            continue
        file = disk.open(f"{directory}/{name}")
        data = memoryview(file.read(0, file.size()))
        file.close()
        end = 0
        try:
            for at, header in iterate_headers(data, file.path):
                end = at + header.size_bytes
        except CorruptBatch as damage:
            if _holds_a_sound_batch(data[end + 1 :]):
                raise StorageError(
                    f"{damage}; sound records follow it, so this is damage and no torn tail: "
                    "restore the metadata log from a copy of the data directory"
                ) from damage


def _holds_a_sound_batch(data: memoryview) -> bool:
    """Whether a whole batch with a matching checksum starts anywhere in `data`."""
    raw = bytes(data)
    magic = raw.find(b"\2", _MAGIC_AT)
    while magic >= 0:
        start = magic - _MAGIC_AT
        if len(raw) - start < HEADER_SIZE:
            return False
        header = read_header(raw, start)
        if HEADER_SIZE <= header.size_bytes <= len(raw) - start and (
            crc32c(raw[start + CRC_START : start + header.size_bytes]) == header.crc
        ):
            return True
        magic = raw.find(b"\2", magic + 1)
    return False
