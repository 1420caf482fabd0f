"""The tail of a log that is about to be cut, saved in its own directory.

The segment that contains the cut is copied from the cut on, because its file will be truncated. Later segments are
linked, or copied if the file system has no links. The log itself is not changed, so a crash leaves it as it was. The
files have the names of a log, so `penstock log dump` can read them.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from penstock.ports.disk import Disk
from penstock.storage.checkpoints import write_partition_metadata
from penstock.storage.files import LOG, file_path

_COPY_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class SegmentPart(NamedTuple):
    """Bytes of a segment's file, from the batch at `base_offset` on."""

    path: str
    base_offset: int
    position: int
    end: int


class LogTail(NamedTuple):
    topic_id: bytes | None
    start_offset: int
    parts: tuple[SegmentPart, ...]

    def write(self, disk: Disk, directory: str) -> None:
        """Blocks; stable on return, except for the name of `directory`. Raises OSError."""
        disk.make_directory(directory)
        if self.topic_id is not None:
            write_partition_metadata(disk, directory, self.topic_id)
        for number, part in enumerate(self.parts):
            target = file_path(directory, part.base_offset, LOG)
            if number == 0 or not _link(disk, part.path, target):
                _copy(disk, part, target)
        disk.sync_directory(directory)


def _link(disk: Disk, path: str, target: str) -> bool:
    try:
        disk.link(path, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    file = disk.open(target)
    try:
        file.sync()
    finally:
        file.close()
    return True


def _copy(disk: Disk, part: SegmentPart, target: str) -> None:
    source = disk.open(part.path)
    try:
        copy = disk.open(target, create=True)
        try:
            for position in range(part.position, part.end, _COPY_BYTES):
                data = source.read(position, min(_COPY_BYTES, part.end - position))
                copy.write(position - part.position, (data,))
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()
