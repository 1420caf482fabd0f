"""Atomic replacement of small files: after a crash they have the old or the new text, flushed to disk."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # of a killed process, perhaps with another mode
    with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flushes the directory, so that renamed and removed names survive a power failure."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
