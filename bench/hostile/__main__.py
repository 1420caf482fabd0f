"""Runs the scenarios and prints the table."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.brokers import ROOT, BrokerFailed
from bench.hostile.peer import Peer, produce_request, small_batch
from bench.hostile.placement import Placement
from bench.hostile.scenarios import SCENARIOS, Scenario, Stage
from bench.hostile.victim import Victim
from penstock.wire.apis import Api

PAUSE_S = 0.002
SETTLE_S = 2.0
END_S = 60.0
PLACEMENT = Placement()
RESULTS = ROOT / "bench" / "results" / "hostile.json"


@dataclass(slots=True)
class Row:
    name: str
    title: str
    alone_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    control_ms: list[float] = field(default_factory=list)
    """Beside a process that takes as much of a processor as the peer and sends nothing."""
    peer_share: float = 0.0
    waited_share: float = 0.0
    """Of the time beside the peer: the broker's loop had work and no processor."""
    memory_mb: tuple[float, float, float] = (0.0, 0.0, 0.0)
    lines: int = 0
    broken: str = ""

    def ratio(self, measured: list[float]) -> float:
        return percentile(measured, 0.99) / percentile(self.alone_ms, 0.99)

    def cells(self) -> list[str]:
        before, peak, after = self.memory_mb
        return [
            self.title,
            f"{percentile(self.alone_ms, 0.5):.2f} / {percentile(self.alone_ms, 0.99):.2f}",
            f"{percentile(self.beside_ms, 0.5):.2f} / {percentile(self.beside_ms, 0.99):.2f}",
            f"{max(self.beside_ms):.0f}",
            f"{self.ratio(self.beside_ms):.1f}",
            f"{self.ratio(self.control_ms):.1f}",
            f"{self.peer_share:.0%} / {self.waited_share:.1%}",
            f"{before:.0f} / {peak:.0f} / {after:.0f}",
            str(self.lines),
            self.broken or "yes",
        ]


HEADER = [
    "Peer",
    "alone p50 / p99 ms",
    "beside p50 / p99 ms",
    "worst ms",
    "p99 ratio",
    "of a busy loop alike",
    "peer's CPU / loop waits for CPU",
    "MB before / peak / after",
    "log lines",
    "promises kept",
]


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def probe(healthy: Peer, seconds: float) -> list[float]:
    """A healthy producer: one record at a time, acks=1. Milliseconds to each acknowledgement."""
    took: list[float] = []
    batch = small_batch()
    gc.collect()
    gc.disable()
    try:
        healthy.produce("probe", batch)
        frame = healthy.frame(Api.PRODUCE, 9, produce_request("probe", batch))
        end = time.monotonic() + seconds
        with PLACEMENT.measuring():
            while time.monotonic() < end:
                begin = time.perf_counter()
                healthy.socket.sendall(frame)
                healthy.receive()
                took.append((time.perf_counter() - begin) * 1000)
                time.sleep(PAUSE_S)
    finally:
        gc.enable()
    return took


def beside(healthy: Peer, scenario: Scenario, stage: Stage, seconds: float, row: Row) -> None:
    """The same while the peer is at work."""
    arguments = [scenario.name, str(stage.port), str(stage.http_port), str(stage.line_port), str(stage.scale)]
    before, begun = cpu_of_children_s(), time.monotonic()
    took, code, said = probe_beside("bench.hostile.attack", [*arguments, str(seconds + 1)], healthy, seconds)
    row.peer_share = (cpu_of_children_s() - before) / (time.monotonic() - begun)
    row.beside_ms += took
    if code:
        row.broken = said or f"the peer ended with code {code}"


def control(healthy: Peer, seconds: float, row: Row) -> None:
    """The same beside somebody who has nothing to do with the broker."""
    row.control_ms += probe_beside("bench.hostile.burn", [f"{row.peer_share:.3f}", str(seconds + 1)], healthy, seconds)[
        0
    ]


def cpu_of_children_s() -> float:
    """Of those that have ended: the broker is none of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def probe_beside(module: str, arguments: list[str], healthy: Peer, seconds: float) -> tuple[list[float], int, str]:
    peer = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert peer.stdout is not None
    took: list[float] = []
    try:
        if peer.stdout.readline() != "begun\n":
            raise BrokerFailed(f"the peer of {module} {' '.join(arguments)} did not begin")
        took = probe(healthy, seconds)
    finally:
        try:
            peer.wait(END_S)
        except subprocess.TimeoutExpired:
            peer.kill()
            peer.wait()
        said = peer.stdout.read().strip()
        peer.stdout.close()
    return took, peer.returncode, said


def measure(scenario: Scenario, home: Path, seconds: float, rounds: int, scale: float) -> Row:
    victim = Victim(home, scenario.settings, scenario.descriptors)
    victim.prepare()
    with PLACEMENT.of_broker():
        victim.start()
    try:
        row = Row(scenario.name, scenario.title)
        stage = Stage(victim.port, victim.http_port, victim.line_port, scale)
        with Peer(victim.port) as peer:
            peer.create("probe")
        scenario.prepare(stage)
        with Peer(victim.port) as healthy:
            probe(healthy, 0.5)
            lines, waited_s = victim.lines(), 0.0
            with victim.peak_of_memory() as memory:
                for _ in range(rounds):
                    row.alone_ms += probe(healthy, seconds)
                    waited_s -= victim.waited_for_cpu_s()
                    begun = time.monotonic()
                    beside(healthy, scenario, stage, seconds, row)
                    waited_s += victim.waited_for_cpu_s()
                    row.waited_share = waited_s / rounds / (time.monotonic() - begun)
                    control(healthy, seconds, row)
                row.lines = victim.lines() - lines
                time.sleep(SETTLE_S)
        row.memory_mb = memory[0], memory[1], memory[2]
        victim.check_alive()
        try:
            row.broken = row.broken or scenario.check(stage)
        except OSError as error:
            row.broken = f"{error!r}"
        return row
    finally:
        victim.discard()


def table(rows: list[Row]) -> str:
    body = [HEADER, ["---"] * len(HEADER), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in body)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.hostile", description="Hostile peers beside a healthy producer.")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in SCENARIOS], help="these scenarios alone")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="alone and beside, so many times in turn (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="of topics, partitions and connections (default 1)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-hostile-") as home:
        for scenario in SCENARIOS:
            if asked.only and scenario.name not in asked.only:
                continue
            print(f"{scenario.name} ...", file=sys.stderr, flush=True)
            row = measure(scenario, Path(home) / scenario.name, asked.seconds, asked.rounds, asked.scale)
            rows.append(row)
            print("  " + " | ".join(row.cells()), file=sys.stderr, flush=True)
    print(f"{table(rows)}\n\n{PLACEMENT}")
    if asked.save:
        kept = [
            asdict(row)
            | {
                "alone_ms": summary(row.alone_ms),
                "beside_ms": summary(row.beside_ms),
                "control_ms": summary(row.control_ms),
            }
            for row in rows
        ]
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if any(row.broken for row in rows) else 0


def summary(values: list[float]) -> dict[str, float]:
    named = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, part), 3) for name, part in named.items()} | {"requests": len(values)}


if __name__ == "__main__":
    sys.exit(main())
