"""Promises of the disk port to its callers, tested on the real disk and the simulated one."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from random import Random

import pytest

from penstock.ports.disk import Disk, FileSlice
from penstock.runtime.disk import OsDisk, OsFile
from penstock.sim.machine.disk import SimDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "os" else SimDisk(Random(0))


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    disk.make_directory(str(tmp_path))
    return str(tmp_path)


def test_write_read_truncate(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/f")
    file = disk.open(f"{root}/f", create=True)
    assert file.write(0, (b"abc", memoryview(b"def"), bytearray(b"g"))) == 7
    assert file.write(10, (b"z",)) == 1
    assert file.size() == 11
    assert file.read(0, 100) == b"abcdefg\0\0\0z"
    assert file.read(2, 3) == b"cde"
    assert file.read(11, 3) == b""
    file.truncate(4)
    file.sync()
    assert disk.open(f"{root}/f").read(0, 100) == b"abcd"
    assert file.is_cached(0, 4)
    assert file.read_cached(0, 4) == file.read(0, 4)
    assert file.read_cached(1, 1 << 20) is None, "less than asked for is not the whole range"
    assert FileSlice(file, 1, 2).read() == b"bc"
    file.close()
    with pytest.raises(OSError, match=r"closed|descriptor"):
        file.read(0, 1)


def test_directories_and_names(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a/b")
    disk.make_directory(f"{root}/a/b")
    disk.open(f"{root}/a/2", create=True).close()
    disk.open(f"{root}/a/1", create=True).close()
    assert disk.list_directory(f"{root}/a") == ["1", "2", "b"]
    assert disk.is_directory(f"{root}/a/b")
    assert not disk.is_directory(f"{root}/a/1")
    disk.sync_directory(f"{root}/a")
    disk.rename(f"{root}/a/1", f"{root}/a/2")
    assert disk.list_directory(f"{root}/a") == ["2", "b"]
    disk.rename(f"{root}/a", f"{root}/c")
    assert disk.list_directory(f"{root}/c") == ["2", "b"]
    disk.remove(f"{root}/c/2")
    assert not disk.exists(f"{root}/c/2")
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{root}/c/2")
    with pytest.raises(FileNotFoundError):
        disk.list_directory(f"{root}/a")
    disk.remove_directory(f"{root}/c")
    disk.remove_directory(f"{root}/c")
    assert disk.list_directory(root) == []
    total, usable = disk.space(root)
    assert 0 < usable <= total


def test_an_unlinked_file_stays_readable(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.write(0, (b"abc",))
    disk.remove(f"{root}/f")
    assert file.read(0, 3) == b"abc"


def test_a_descriptor_goes_with_the_last_reference(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    fd = file.fileno()
    held = FileSlice(file, 0, 0)
    del file
    inode = os.fstat(fd).st_ino
    del held
    gc.collect()
    # Another thread may have been given the number meanwhile.
    assert not os.path.exists(f"/proc/self/fd/{fd}") or os.stat(f"/proc/self/fd/{fd}").st_ino != inode


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    real_pwritev, real_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real_pwritev(fd, [b"".join(parts)[:4]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:3], at))
    assert file.write(2, (b"abc", b"defghijkl")) == 12
    assert file.read(0, 99) == b"\0\0abcdefghijkl"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="No space left"):
        file.write(0, (b"abc", b"defghijkl"))


def test_a_cold_page_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk().open(str(tmp_path / "f"), create=True)
    file.write(0, (bytes(10_000),))
    probed: list[int] = []

    def preadv(fd: int, buffers: object, position: int, flags: int) -> int:
        probed.append(position)
        if position > 5000:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert isinstance(file, OsFile)
    assert file.is_cached(0, 5000)
    assert not file.is_cached(100, 9000)
    assert probed == [0, 4999, 100, 9099]
    assert file.read_cached(100, 9000) is None
    assert file.read_cached(6000, 10) is None
