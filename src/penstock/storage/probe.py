"""Whether a directory takes in and keeps a small file: how a disk that hung or failed is found well again."""

from __future__ import annotations

from penstock.ports.disk import Disk
from penstock.storage.files import write_whole

PROBE = ".disk-probe"


def probe(disk: Disk, directory: str) -> None:
    """Blocks. Raises OSError. The file is made anew: pages that a failed sync left behind say nothing here."""
    path = f"{directory}/{PROBE}"
    if disk.exists(path):
        disk.remove(path)
    write_whole(disk, path, b"probe", sync=True)
    disk.sync_directory(directory)
    disk.remove(path)
