"""Draws docs/pictures/: the benchmark plot from bench/results/, and the architecture; `--check` only compares.

The files are SVG and follow the reader's colour scheme. Every figure of the plot is the median of the rounds, as on
docs/benchmarks.md and docs/benchmarks-cluster.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.report import number  # noqa: E402
from bench.results import KAFKA, PENSTOCK, Results, load, summarize  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"

STYLE = """\
  <style>
    text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2933; }
    .title { font-weight: 600; }
    .faint { fill: #5f6b7a; font-size: 12px; }
    .ours { fill: #0f9d8a; }
    .theirs { fill: #9aa5b1; }
    .box { fill: #eef3f6; stroke: #9aa5b1; }
    .ours-box { fill: #d7f0ec; stroke: #0f9d8a; }
    .arrow { stroke: #5f6b7a; fill: none; stroke-width: 1.4; }
    .head { fill: #5f6b7a; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e9ee; }
      .faint { fill: #a3afbc; }
      .ours { fill: #2bb8a4; }
      .theirs { fill: #6b7785; }
      .box { fill: #1f272f; stroke: #6b7785; }
      .ours-box { fill: #123a36; stroke: #2bb8a4; }
      .arrow { stroke: #a3afbc; }
      .head { fill: #a3afbc; }
    }
  </style>
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison of the plot: two bars, scaled to the longer one."""

    results: str
    scenario: str
    metric: str
    title: str
    unit: str
    is_more_better: bool


ROWS = (
    Row("bench", "produce-1k-128k-1p-flush", "mb_s", "Produce, 1 partition, flushed before the ack", "MB/s", True),
    Row("bench", "produce-1k-128k-10p-noflush", "mb_s", "Produce, 10 partitions, flush off", "MB/s", True),
    Row("bench", "fetch-1k-128k-1p", "mb_s", "Fetch, 1 partition", "MB/s", True),
    Row("cluster", "throughput-128k-default", "mb_s", "Produce, 3 brokers, stock settings", "MB/s", True),
    Row("cluster", "leader-killed", "pause_median_s", "Producer pause after kill -9 of a leader", "s", False),
    Row("bench", "start", "idle_rss_mb", "Memory of an idle broker", "MB", False),
)

WIDTH = 760
BARS_AT = 345
BARS_WIDTH = 315
ROW_HEIGHT = 52
TOP = 40


def median(results: Results, row: Row, side: str) -> float:
    found = summarize(results.outcomes[row.scenario].values(side, row.metric))
    if found is None:
        raise SystemExit(f"bench/results/{row.results}.json has no {row.metric} of {row.scenario} for {side}")
    return found.median


def document(width: int, height: int, description: str, body: list[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(description)}">\n'
    return head + STYLE + "\n".join(f"  {line}" for line in body) + "\n</svg>\n"


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, style: str, radius: int = 2) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="{radius}" class="{style}"/>'


def benchmark_plot() -> str:
    results: dict[str, Results] = {}
    for name in {row.results for row in ROWS}:
        found = load(ROOT / "bench" / "results" / f"{name}.json")
        if found is None:
            raise SystemExit(f"bench/results/{name}.json is missing: run make bench and make bench-cluster")
        results[name] = found
    body = [
        rectangle(BARS_AT, 8, 12, 12, "ours"),
        text(BARS_AT + 18, 18, "Penstock"),
        rectangle(BARS_AT + 96, 8, 12, 12, "theirs"),
        text(BARS_AT + 114, 18, "Apache Kafka"),
    ]
    for position, row in enumerate(ROWS):
        y = TOP + position * ROW_HEIGHT
        values = {side: median(results[row.results], row, side) for side in (PENSTOCK, KAFKA)}
        longest = max(values.values())
        body.append(text(0, y + 14, row.title, "title"))
        body.append(text(0, y + 31, f"{row.unit}, {'more' if row.is_more_better else 'less'} is better", "faint"))
        for index, (side, style) in enumerate(((PENSTOCK, "ours"), (KAFKA, "theirs"))):
            length = max(2.0, BARS_WIDTH * values[side] / longest)
            body.append(rectangle(BARS_AT, y + 2 + index * 18, length, 15, style))
            body.append(text(BARS_AT + length + 6, y + 14 + index * 18, f"{number(values[side])} {row.unit}"))
    environment = results["bench"].environment
    kafka = environment["Apache Kafka"].partition(",")[0]
    y = TOP + len(ROWS) * ROW_HEIGHT + 12
    words = (
        f"{environment['cores']} cores, {environment['memory']}, {environment['filesystem']}; Penstock "
        f"{environment['Penstock']}, Apache Kafka {kafka}; acks=all, 1 KB records, 128 KB batches."
    )
    body.append(text(0, y, words, "faint"))
    return document(WIDTH, y + 12, "Penstock beside Apache Kafka: throughput, failover and memory", body)


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    title: str
    note: str
    style: str = "box"

    def drawn(self) -> list[str]:
        middle = self.x + self.width / 2
        return [
            rectangle(self.x, self.y, self.width, 46, self.style, 6),
            text(middle, self.y + 20, self.title, "title", "middle"),
            text(middle, self.y + 37, self.note, "faint", "middle"),
        ]


BOXES = (
    Box(0, 0, 230, "Kafka clients", "librdkafka, aiokafka, kafka-python"),
    Box(265, 0, 230, "Spark", "source, sink, pipelines"),
    Box(530, 0, 230, "REST proxy, line protocol", "a process of their own"),
    Box(120, 96, 520, "Connections", "one event loop: frames, order, bounds", "ours-box"),
    Box(120, 172, 520, "Request handlers", "every API and version; produce, fetch, groups, admin", "ours-box"),
    Box(120, 248, 250, "Partitions", "leader, followers, high watermark", "ours-box"),
    Box(390, 248, 250, "Controller", "cluster metadata, agreed on by Raft", "ours-box"),
    Box(120, 324, 520, "Log", "segments, indexes; group commit: one flush for all", "ours-box"),
    Box(120, 400, 520, "Disk", "Kafka's files: the bytes on disk are the bytes on the wire"),
    Box(660, 248, 100, "Brokers", "fetch, Raft"),
)
ARROWS = (
    ((115, 46), (210, 94)),
    ((380, 46), (380, 94)),
    ((645, 46), (550, 94)),
    ((380, 142), (380, 170)),
    ((245, 218), (245, 246)),
    ((515, 218), (515, 246)),
    ((245, 294), (245, 322)),
    ((515, 294), (515, 322)),
    ((380, 370), (380, 398)),
    ((708, 248), (644, 128)),
)


def architecture() -> str:
    body = [
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" class="head"/></marker></defs>'
    ]
    for (x1, y1), (x2, y2) in ARROWS:
        body.append(f'<path d="M{x1} {y1} L{x2} {y2}" class="arrow" marker-end="url(#head)"/>')
    for box in BOXES:
        body.extend(box.drawn())
    return document(
        WIDTH, 450, "Clients, the event loop, request handlers, partitions and controller, the log, the disk", body
    )


def main(arguments: list[str]) -> int:
    pictures = {"benchmarks.svg": benchmark_plot(), "architecture.svg": architecture()}
    if arguments not in ([], ["--check"]):
        print("usage: draw_pictures.py [--check]", file=sys.stderr)
        return 2
    for name, picture in pictures.items():
        path = PICTURES / name
        if not arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(picture, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != picture:
            print(f"docs/pictures/{name} is not current: run make pictures", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
