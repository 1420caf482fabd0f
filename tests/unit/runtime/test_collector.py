"""The cycle collector in a broker: small passes, hardly ever a large one, and none twice over the same objects."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.runtime.collector import LONG_S, Collector


class Process:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.freezes = 0
        self.collector = Collector(lambda: self.now_s, self.freeze)

    def freeze(self) -> None:
        self.freezes += 1

    def collect(self, generation: int, seconds: float) -> None:
        self.collector.collected("start", {"generation": generation})
        self.now_s += seconds
        self.collector.collected("stop", {"generation": generation})


@pytest.fixture
def collector() -> Iterator[Collector]:
    found, thresholds = Collector(), gc.get_threshold()
    yield found
    if found.collected in gc.callbacks:
        found.stop()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_survived_a_long_full_collection_is_frozen() -> None:
    process = Process()
    process.collect(2, LONG_S / 2)
    process.collect(1, LONG_S * 2)
    process.collect(0, LONG_S * 2)
    assert process.freezes == 0
    process.collect(2, LONG_S * 2)
    assert process.freezes == 1


def test_the_next_full_collection_does_not_walk_over_it_again(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.collector.LONG_S", -1.0)
    collector.start()
    held = [[number] for number in range(1000)]
    gc.collect()
    walked = {id(each) for each in gc.get_objects()}
    assert not any(id(each) in walked for each in held)


def test_young_garbage_is_collected_before_it_would_be_frozen(collector: Collector) -> None:
    class Knot:
        freed = 0

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Knot.freed += 1

    gc.collect()
    Knot()
    collector.settle()
    assert Knot.freed == 1


def test_it_listens_until_it_is_stopped(collector: Collector) -> None:
    collector.start()
    assert collector.collected in gc.callbacks
    collector.stop()
    assert collector.collected not in gc.callbacks


def test_a_wide_request_starts_no_pass_over_everything(collector: Collector) -> None:
    collector.settle()
    passes: Counter[int] = Counter()

    def note(phase: str, info: dict[str, int]) -> None:
        passes[info["generation"]] += phase == "start"

    gc.callbacks.append(note)
    try:
        kept = [[at] for at in range(200_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 200_000
    assert passes[0] > 100
    assert passes[2] == 0
