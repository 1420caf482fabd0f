"""Names of the files of one log, and atomic replacement of small files.

00000000000000000042.log         batches, the first at offset 42
00000000000000000042.index       offset -> position, sparse
00000000000000000042.timeindex   timestamp -> offset, sparse
00000000000000000042.txnindex    aborted transactions; only where there are any
00000000000000000042.snapshot    producer state before offset 42
leader-epoch-checkpoint          leader epoch -> first offset
partition.metadata               the topic id
offsets.contiguous, .gaps        whether offsets are missing: see gaps.py
*.cleaned, *.swap                a compacted segment being swapped in: see cleaner/swap.py
*.tmp                            a file or index being rewritten: dropped at open
*.deleted                        left over from a deletion: dropped at open
"""

from __future__ import annotations

from penstock.model.errors import NotCached
from penstock.ports.disk import Buffer, Disk, File

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
CLEANED = ".cleaned"
SWAP = ".swap"
# The order in which a swap renames: the file that counts comes last. Not every segment has a transaction index.
SEGMENT_SUFFIXES = (INDEX, TIME_INDEX, TRANSACTION_INDEX, LOG)
DELETED = ".deleted"
TEMPORARY = ".tmp"
_WRITE_BYTES = 1 << 20
LEFTOVERS = (DELETED, CLEANED, SWAP, TEMPORARY)


def file_path(directory: str, offset: int, suffix: str) -> str:
    return f"{directory}/{offset:020d}{suffix}"


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def write_whole(disk: Disk, path: str, data: Buffer, *, sync: bool) -> None:
    """Make `path` hold exactly `data`. Not atomic."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, (data,))
        if sync:
            file.sync()
    finally:
        file.close()


def write_atomic(disk: Disk, path: str, data: Buffer) -> None:
    """Replace `path`: a reader, even after a power failure, sees either the old or the new bytes."""
    temporary = path + TEMPORARY
    write_whole(disk, temporary, data, sync=True)
    disk.rename(temporary, path)
    disk.sync_directory(parent_of(path))


def write_again(file: File, position: int, end: int) -> None:
    """Write the range again after a failed sync. The kernel considers its pages clean, so the next sync alone would
    report success without writing them."""
    while position < end:
        data = file.read(position, min(_WRITE_BYTES, end - position))
        position += file.write(position, (data,))


def read_at_once(file: File, position: int, size: int) -> bytes:
    """For the event loop: the range if it is in memory, else NotCached. Shorter only at the end of the file."""
    data = file.read_cached(position, size)
    if data is None:
        if not file.is_cached(position, size):
            raise NotCached(file.path)
        data = file.read(position, size)  # end of the file, or the cache state is unknown
    return data


def read_whole(disk: Disk, path: str) -> bytes | None:
    """All bytes, or None if the file does not exist."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()
