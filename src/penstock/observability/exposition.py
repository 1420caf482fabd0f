"""Prometheus' text format, version 0.0.4: families of samples to text, in pieces.

A broker with thousands of partitions has a hundred thousand samples. The caller yields to the
event loop between pieces (`PIECE_LINES`), so that the loop never stalls. That, and 60 ms of
import, is why prometheus_client is not used. The tests read this format with its parser.
Must not know: the meaning of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PIECE_LINES = 250

Sample: TypeAlias = tuple[tuple[str, ...], float]
"""Label values and the number."""


class HistogramSample(NamedTuple):
    label_values: tuple[str, ...]
    bounds: Sequence[float]
    counts: Sequence[int]
    """One count per bound, and one above the last bound; not cumulative."""
    sum: float


class Family(NamedTuple):
    """A metric. `samples` are generated while the page is written, and only once."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: Iterable[Sample | HistogramSample]


def gauge(name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", help_text, labels, samples)


def counter(name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Family:
    return Family(name, "counter", help_text, labels, samples)


def histogram(name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[HistogramSample]) -> Family:
    return Family(name, "histogram", help_text, labels, samples)


def render(family: Family) -> Iterator[str]:
    lines = [f"# HELP {family.name} {_escape(family.help)}\n# TYPE {family.name} {family.kind}\n"]
    for sample in family.samples:
        if isinstance(sample, HistogramSample):
            lines += _histogram_lines(family, sample)
        else:
            lines.append(_line(family.name, family.labels, *sample))
        if len(lines) >= PIECE_LINES:
            yield "".join(lines)
            lines.clear()
    if lines:
        yield "".join(lines)


def _histogram_lines(family: Family, sample: HistogramSample) -> Iterator[str]:
    labels = (*family.labels, "le")
    count = 0
    for bound, here in zip((*sample.bounds, None), sample.counts, strict=True):
        count += here
        le = "+Inf" if bound is None else repr(float(bound))
        yield _line(f"{family.name}_bucket", labels, (*sample.label_values, le), count)
    yield _line(f"{family.name}_sum", family.labels, sample.label_values, sample.sum)
    yield _line(f"{family.name}_count", family.labels, sample.label_values, count)


def _line(name: str, labels: tuple[str, ...], values: tuple[str, ...], number: float) -> str:
    if not labels:
        return f"{name} {number}\n"
    inside = ",".join([f'{label}="{_escape_value(value)}"' for label, value in zip(labels, values, strict=True)])
    return f"{name}{{{inside}}} {number}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_value(text: str) -> str:
    """Group ids may contain any character."""
    return text if text.isalnum() else _escape(text).replace('"', '\\"')
