"""Probes whether a directory accepts and keeps a small file, to find out whether a disk has recovered."""

from __future__ import annotations

from penstock.ports.disk import Disk
from penstock.storage.files import write_whole

PROBE = ".disk-probe"
REVIVAL_PROBE = ".disk-probe-revival"


def probe(disk: Disk, directory: str, name: str = PROBE) -> None:
    """Blocks. Raises OSError. The file is created again, so pages of a failed sync do not matter.

    Only one probe at a time may use a `name`; concurrent probes need different names.
    """
    path = f"{directory}/{name}"
    if disk.exists(path):
        disk.remove(path)
    write_whole(disk, path, b"probe", sync=True)
    disk.sync_directory(directory)
    disk.remove(path)
