"""A small file shows that a disk is well."""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock.storage.probe import probe
from support.worlds.hosted import HostedWorld


def test_a_revival_probes_while_the_disk_watch_does() -> None:
    world = HostedWorld({})
    done: list[str] = []

    def as_the_watch_syncs(call: str, path: str) -> int | None:
        if call == "sync" and not done:
            done.append(path)
            asyncio.run(world.hosted.probe())
        return None

    world.disk.fail_call = as_the_watch_syncs
    probe(world.disk, "/data")
    assert done
    assert not [name for name in world.disk.list_directory("/data") if "probe" in name]


def test_a_disk_that_fails_again_and_again_leaves_one_file() -> None:
    disk = HostedWorld({}).disk
    disk.fail_call = lambda call, path: errno.EIO if call == "sync" else None
    for _ in range(3):
        with pytest.raises(OSError, match="probe"):
            probe(disk, "/data")
    assert len([name for name in disk.list_directory("/data") if "probe" in name]) == 1
    disk.fail_call = None
    probe(disk, "/data")
    assert not [name for name in disk.list_directory("/data") if "probe" in name]
