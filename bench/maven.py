"""Fetches the jars of a pom with Maven, once, into the benchmark's own directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class JarsUnavailable(RuntimeError):
    """Maven is missing or could not fetch the jars."""


def fetch_jars(pom: Path, directory: Path, what: str) -> Path:
    """The directory with the jars that `pom` names. Raises JarsUnavailable."""
    complete = directory / ".complete"
    if complete.exists():
        return directory
    if shutil.which("mvn") is None:
        raise JarsUnavailable(f"no Maven (mvn) on the path to fetch {what}'s jars")
    print(f"fetching {what} with Maven ...", flush=True)
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
        raise JarsUnavailable(f"Maven could not fetch {what}'s jars: {lines[0] if lines else done.stderr.strip()}")
    complete.touch()
    return directory
