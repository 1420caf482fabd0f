"""`python -m bench.tables` (`make bench-tables`): table formats beside each other, the figures behind ADR 12.

    python -m bench.tables [--only appends,bulk] [--formats delta-rs,pyiceberg] [--scale 0.1] [--out FILE]

The scenarios are in scenarios.py; `topics` is in topics.py. Each pair of scenario and format runs in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench import machine
from bench.tables import topics
from bench.tables.formats import FORMATS
from bench.tables.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "tables.json"
PACKAGES = ("deltalake", "pyiceberg", "pyarrow", "polars", "duckdb")
TIMEOUT_S = 3600
TOPICS = "topics"


def one(scenario: str, name: str, scale: float) -> None:
    measure, size = SCENARIOS[scenario]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-tables-", dir=os.environ.get("BENCH_TABLES_DIR")) as place:
        directory = Path(place, "data")
        found = measure(FORMATS[name](directory), directory, max(10, round(size * scale)))
    sys.stdout.write(json.dumps(found) + "\n")


def measured(scenario: str, name: str, scale: float) -> dict[str, object]:
    command = [sys.executable, "-m", "bench.tables", "--one", scenario, "--formats", name, "--scale", str(scale)]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    if run.returncode:
        return {"failed": run.returncode}
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


def show(scenario: str, name: str, found: dict[str, object]) -> None:
    sys.stdout.write(f"\n{scenario}, {name}\n")
    sys.stdout.write("".join(f"  {key:<20} {value}\n" for key, value in found.items()))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description="Table formats beside each other")
    parser.add_argument("--only", default=",".join([*SCENARIOS, TOPICS]), help="scenarios, with commas")
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the full sizes")
    parser.add_argument("--out", type=Path, default=None, help="results as JSON (default: bench/results/tables.json)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.formats.split(",")
    if options.one:
        one(options.one, names[0], options.scale)
        return
    facts = machine.facts(Path(tempfile.gettempdir()))
    facts |= {package: version(package) for package in PACKAGES}
    sys.stdout.write("".join(f"{name}: {fact}\n" for name, fact in facts.items()))
    results: dict[str, dict[str, dict[str, object]]] = {}
    for scenario in options.only.split(","):
        if scenario == TOPICS:
            results[scenario] = topics.measure(options.scale)
            for name, found in results[scenario].items():
                show(scenario, name, found)
            continue
        for name in names:
            found = results.setdefault(scenario, {})[name] = measured(scenario, name, options.scale)
            show(scenario, name, found)
    if options.scale == 1.0 or options.out is not None:
        place = options.out or RESULTS
        place.write_text(json.dumps({"machine": facts, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
