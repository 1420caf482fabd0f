"""The cache directory for files that processes need and no package can contain.

The directory belongs to this user. Files are written atomically, since other sessions may be reading.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/penstock` (`~/.cache/penstock`), or a temporary directory if that is not writable."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        directory = (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "penstock"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a missing or read-only home directory, as in many containers
        return _temporary_directory()
    return directory if os.access(directory, os.W_OK | os.X_OK) else _temporary_directory()


def _temporary_directory() -> Path:
    directory = Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():  # owned by another user: unsafe, because programs are started from here
        directory = Path(tempfile.mkdtemp(prefix="penstock-"))
    return directory


def write_once(path: Path, text: str, mode: int) -> Path:
    """Writes the file at `path` unless it already has this content."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    return fresh.replace(path)
