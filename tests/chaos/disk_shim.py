"""A disk under one real broker whose syncs hang or fail when a test says so (`disk_shim.c`, preloaded into it)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.processes.cluster import NodeProcess

SOURCE = Path(__file__).with_name("disk_shim.c")
WELL, HANGING, FAILING = "well", "hang", "fail"


def compile_shim(directory: Path) -> Path:
    """Skips, which the closing lines of `make test` count, where there is no C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler (gcc) to make a disk that hangs or fails under a real broker")
    library = directory / "disk_shim.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class BadDisk:
    """Of a node that does not run yet."""

    def __init__(self, node: NodeProcess, library: Path, below: str = "") -> None:
        """`below`: only what is there in the data directory."""
        self._control = node.directory / "disk"
        self.become(WELL)
        node.environment = {
            "LD_PRELOAD": str(library),
            "PENSTOCK_SHIM_PATH": str(node.data / below),
            "PENSTOCK_SHIM_CONTROL": str(self._control),
        }

    def become(self, state: str) -> None:
        temporary = self._control.with_suffix(".new")
        temporary.write_text(state)
        temporary.rename(self._control)
