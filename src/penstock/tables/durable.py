"""Flushing to disk. A name is durable after its directory is flushed, a content after its file is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_directories(paths: Iterable[Path]) -> None:
    for path in sorted(set(paths)):
        sync_directory(path)


def make_directory(path: Path) -> None:
    """With its parents, all of them durable."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_directory(one.parent)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
