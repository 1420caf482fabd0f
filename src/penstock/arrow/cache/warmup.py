"""The cache of compiled code, and filling it before workers need it.

numba compiles decoder and encoder in seconds, and loads them from its cache in a fraction of a second. Each Spark
worker is a separate process, so without a cache every worker would compile. `WarmUp` fills the cache in a process
beside the caller, which waits for a JVM anyway. A marker file in the cache says that it is complete.

This module imports nothing of Spark, Arrow or numba: the cache directory must be set before numba is imported.
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

from penstock.arrow.cache.files import cache_directory

WARM_UP_TIMEOUT_S = 120
COMPILED_PACKAGES = ("decode", "encode")

logger = logging.getLogger(__name__)


def place_numba_cache() -> Path:
    """Sets NUMBA_CACHE_DIR unless it is set. Call it before numba is imported. Later processes inherit it."""
    place = numba_cache()
    os.environ["NUMBA_CACHE_DIR"] = str(place)
    return place


def numba_cache() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory() / "numba")


def is_warm() -> bool:
    """Whether the cache is filled from the present code, numba and Python."""
    return find_spec("numba") is None or _mark().exists()  # without numba nothing is compiled


def compile_all() -> None:
    """Compiles the code for workers into the cache. Takes seconds if the cache is empty."""
    mark = _mark()  # taken before the code is imported
    for name in COMPILED_PACKAGES:
        if (_package() / name).is_dir():
            import_module(f"penstock.arrow.{name}").warm_up()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


class WarmUp:
    """Runs `compile_all` in another process, unless the cache is warm."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        if is_warm():
            return
        root = str(_package().parents[1])
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
        """Waits until the cache is complete: otherwise all workers would compile at once. A failure is only a
        warning.
        """
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


def _package() -> Path:
    """The directory of `penstock.arrow`."""
    return Path(__file__).resolve().parents[1]


def _mark() -> Path:
    from importlib.metadata import version

    facts = [sys.version, version("numba")]
    here = _package()
    for name in COMPILED_PACKAGES:
        for source in sorted((here / name).rglob("*.py")):
            found = source.stat()
            facts.append(f"{source} {found.st_size} {found.st_mtime_ns}")  # numba identifies files in the same way
    return numba_cache() / f"warm-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    place_numba_cache()
    compile_all()
