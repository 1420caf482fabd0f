"""The processes that a process started, and those they started: which of them to kill."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def descendants(pid: int, *words: str) -> list[int]:
    """Those whose command line has all the words, parents before children."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        children.setdefault(parent(int(process.name)), []).append(int(process.name))
    found, waiting = [], children.get(pid, [])
    while waiting:
        found += waiting
        waiting = [child for one in waiting for child in children.get(one, [])]
    return [pid for pid in found if all(word in command_line(pid) for word in words)]


def command_line(pid: int) -> str:
    """Empty once it is gone."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def parent(pid: int) -> int:
    """0 once it is gone."""
    with suppress(OSError):
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
