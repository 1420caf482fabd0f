"""Compiled once, loaded everywhere: where native code of this package is kept, and making it before workers want it.

Decoder and encoder are compiled by numba, which takes seconds; from its cache they are there in a fraction of one. Each
Spark worker is a process of its own, so without a cache every one of them would compile. `WarmUp` fills the cache in a
process beside the caller, who has a JVM to wait for anyway; a mark in the cache says that nothing is left to do.

Imports nothing of Spark, Arrow or numba: the place of the cache must be known before numba is imported.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from penstock.spark.cache import cache_directory

WARM_UP_TIMEOUT_S = 120
COMPILED_PACKAGES = ("decode", "encode")

logger = logging.getLogger(__name__)


def place_numba_cache() -> Path:
    """Set NUMBA_CACHE_DIR unless it is set. Call it before numba is imported; processes started later inherit it."""
    place = numba_cache()
    os.environ["NUMBA_CACHE_DIR"] = str(place)
    return place


def numba_cache() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory() / "numba")


def is_warm() -> bool:
    """Whether the cache has been filled from the code as it is now, by the numba and Python of now."""
    return find_spec("numba") is None or _mark().exists()  # without numba nothing is compiled


def compile_all() -> None:
    """Compile what workers use and leave it in the cache. Seconds when cold."""
    mark = _mark()  # of the code before it is read
    for name in COMPILED_PACKAGES:
        if (Path(__file__).parent / name).is_dir():
            import_module(f"penstock.spark.{name}").warm_up()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


class WarmUp:
    """`compile_all` in a process beside this one; none is started when the cache is warm."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        if is_warm():
            return
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def wait(self) -> None:
        """Until the cache is full: workers that came before would all compile at once. A failure is a warning only."""
        if self._process is None:
            return
        try:
            _, said = self._process.communicate(timeout=WARM_UP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            logger.warning("compiling took more than %d s: each Spark worker compiles for itself", WARM_UP_TIMEOUT_S)
            return
        if self._process.returncode:
            reason = said.strip().rpartition("\n")[2]
            logger.warning("could not compile ahead, each Spark worker compiles for itself: %s", reason)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _mark() -> Path:
    from importlib.metadata import version

    facts = [sys.version, version("numba")]
    here = Path(__file__).resolve().parent
    for name in COMPILED_PACKAGES:
        for source in sorted((here / name).rglob("*.py")):
            found = source.stat()
            facts.append(f"{source} {found.st_size} {found.st_mtime_ns}")  # as numba itself knows a file
    return numba_cache() / f"warm-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    place_numba_cache()
    compile_all()
