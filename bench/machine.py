"""The machine of the benchmark: its facts, and bringing it to the same state before every round.

The facts do not identify the host: no host name, no user, no path.
"""

from __future__ import annotations

import mmap
import os
import platform
import resource
import subprocess
from pathlib import Path


def facts(directory: Path) -> dict[str, str]:
    """The facts that readers need to judge the numbers."""
    memory_gb = _meminfo_bytes("MemTotal") / 2**30
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory_gb:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "filesystem": _filesystem(directory),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _filesystem(directory: Path) -> str:
    device = directory.stat().st_dev
    found = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        major, _, minor = left.split()[2].partition(":")
        if os.makedev(int(major), int(minor)) == device:
            found = right.split()[0]
    return found


def _meminfo_bytes(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise LookupError(f"no {key} in /proc/meminfo")


def unthrottled_bytes() -> int:
    """The amount that can be written before the kernel starts write-back, in the middle of a run."""
    vm = Path("/proc/sys/vm")
    background = int((vm / "dirty_background_bytes").read_text())
    if not background:
        background = _meminfo_bytes("MemAvailable") * int((vm / "dirty_background_ratio").read_text()) // 100
    return background * 8 // 10


def warm_pages(size_bytes: int) -> None:
    """Touches and frees as much memory as a run will write.

    On a virtual machine the first touch of a page costs several times the copy into it, and only the first run would
    pay for it.
    """
    size_bytes = min(max(size_bytes, mmap.PAGESIZE), _meminfo_bytes("MemAvailable") // 2)
    mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def settle() -> None:
    """Flushes everything to disk, so that no run pays for the previous one."""
    os.sync()


def busy_s() -> float:
    """CPU time of the whole machine since it started: every process, and the kernel's own workers."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def raise_file_limit() -> None:
    """Both brokers inherit it; thousands of partitions need thousands of descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_average() -> float:
    return os.getloadavg()[0]


def source_revision(directory: Path) -> str:
    """The commit the measured code comes from, '+' when files differ from it."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=directory, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "src"], cwd=directory, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")
