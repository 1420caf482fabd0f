"""The cache of compiled code, and filling it before workers need it.

numba compiles decoder and encoder in seconds, and loads them from its cache in a fraction of a second. Each Spark
worker is a separate process, so without a cache every worker would compile. `WarmUp` fills the cache in a process
beside the caller, which waits for a JVM anyway. Where nobody did that (executors of a cluster, plain sessions), the
first worker of a machine compiles, and the others wait for it. An image can bring a filled cache: run this module as a
program when it is made. A marker file for each package says that its code is in the cache.

This module imports nothing of Spark, Arrow or numba: the cache directory must be set before numba is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from penstock.arrow.cache.files import cache_directory

WARM_UP_TIMEOUT_S = 120
LOOK_S = 0.05
COMPILED_PACKAGES = ("decode", "encode", "values")
_WITHOUT = {
    "decode": "record batches are decoded in plain Python, which is much slower",
    "encode": "record batches are encoded in plain Python, which is much slower",
    "values": "values are decoded one by one, which is slower",
}

logger = logging.getLogger(__name__)


def place_numba_cache() -> Path:
    """Sets NUMBA_CACHE_DIR unless it is set. Call it before numba is imported. Later processes inherit it."""
    place = numba_cache()
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        place = _writable_copy(place)
    os.environ["NUMBA_CACHE_DIR"] = str(place)
    return place


def numba_cache() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory() / "numba")


def _writable_copy(place: Path) -> Path:
    """numba does not use a cache that it cannot write to, such as that of a read-only image."""
    name = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    copy = cache_directory() / f"numba-{name}"
    if not copy.is_dir():
        fresh = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.copytree(place, fresh)
        try:
            fresh.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(fresh)
    return copy


def is_warm() -> bool:
    """Whether the cache is filled from the present code, numba and Python."""
    return find_spec("numba") is None or all(_mark(name).exists() for name in COMPILED_PACKAGES)


def compile_all() -> None:
    """Compiles the code for workers into the cache. Takes seconds if the cache is empty."""
    for name in COMPILED_PACKAGES:
        if (_package() / name).is_dir():
            import_module(f"penstock.arrow.{name}").warm_up()


@cache
def kernels_of(package: str) -> ModuleType | None:
    """The compiled loops of a package. None without numba, with a warning: plain Python does the same."""
    try:
        with compiled_once(package):
            return import_module(f"penstock.arrow.{package}.kernels")
    except ImportError as error:
        warnings.warn(
            f"numba cannot be used, so {_WITHOUT[package]}: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


@contextmanager
def compiled_once(package: str) -> Iterator[None]:
    """Around an import that compiles: one process at a time, so that the others find its result in the cache."""
    if find_spec("numba") is None or (mark := _mark(package)).exists():
        yield
        return
    lock = _locked(mark.with_name(f"{package}.lock"))
    try:
        yield
        if lock is not None:
            mark.touch()
    finally:
        if lock is not None:
            os.close(lock)


def _locked(path: Path) -> int | None:
    """The lock, which ends with the process. None if the cache cannot be written to, or it takes too long."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    deadline = time.monotonic() + WARM_UP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
        else:
            return file
    os.close(file)
    return None


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


def _mark(package: str) -> Path:
    from importlib.metadata import version

    facts = [sys.version, version("numba")]
    here = _package()
    for name in COMPILED_PACKAGES:  # the others' kernels use decode's
        for source in sorted((here / name).rglob("*.py")):
            found = source.stat()
            facts.append(f"{source} {found.st_size} {found.st_mtime_ns}")  # numba identifies files in the same way
    return numba_cache() / f"{package}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    place_numba_cache()
    compile_all()
