"""The whole test suite, in two lanes side by side: `make test`. Arguments go to pytest.

Tests with Spark compute, tests with killed brokers and real clients wait; the simulation computes alone. Two lanes of
about the same length share two cores well. The first lane prints as it runs, the second one when both have ended.

The last lines say which tests did not run here, and why, and how each lane ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

BESIDE = ["tests/spark", "tests/chaos", "tests/sim"]
NOTHING_COLLECTED = 5  # pytest's exit code; fine where arguments such as `-k` pick from the other lane alone


def pytest(arguments: list[str], not_run: Path, output: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]
    environment = {**os.environ, "PENSTOCK_NOT_RUN": str(not_run)}
    return subprocess.Popen(
        command, stdout=output, stderr=None if output is None else subprocess.STDOUT, env=environment
    )


def run(scratch: Path) -> int:
    not_run, beside_log = scratch / "not-run", scratch / "beside.log"
    not_run.touch()
    with beside_log.open("wb") as log:
        beside = pytest(["-p", "no:cacheprovider", *BESIDE], not_run, log.fileno())
        first = pytest([f"--ignore={directory}" for directory in BESIDE], not_run)
        codes = {"the first lane": first.wait(), " ".join(BESIDE): beside.wait()}
    print(flush=True)
    sys.stdout.buffer.write(beside_log.read_bytes())
    print()
    for reason, count in sorted(Counter(not_run.read_text(encoding="utf-8").splitlines()).items()):
        print(f"Not run: {count} {'test' if count == 1 else 'tests'}: {reason}")
    for lane, code in codes.items():
        print(f"Exit code {code}: {lane}")
    return 0 if set(codes.values()) <= {0, NOTHING_COLLECTED} and 0 in codes.values() else 1


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-tests-") as directory:
            sys.exit(run(Path(directory)))
    except KeyboardInterrupt:  # the terminal has signalled both lanes, too
        sys.exit(130)
