"""Whether a directory takes in and keeps a small file: how a disk that hung or failed is found well again."""

from __future__ import annotations

from penstock.ports.disk import Disk
from penstock.storage.files import write_whole

PROBE = ".disk-probe"
REVIVAL_PROBE = ".disk-probe-revival"


def probe(disk: Disk, directory: str, name: str = PROBE) -> None:
    """Blocks. Raises OSError. The file is made anew: pages that a failed sync left behind say nothing here.

    One at a time by the same `name`: whoever may probe while others do has a file of its own.
    """
    path = f"{directory}/{name}"
    if disk.exists(path):
        disk.remove(path)
    write_whole(disk, path, b"probe", sync=True)
    disk.sync_directory(directory)
    disk.remove(path)
