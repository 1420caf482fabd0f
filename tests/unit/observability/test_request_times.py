from __future__ import annotations

from penstock.api.request_times import BOUNDS_S, RequestTimes


class SteppingClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_ms(self) -> int:
        raise AssertionError("durations are not measured by the wall clock")

    def monotonic(self) -> float:
        return self.at_s


def test_times_fall_into_the_bucket_that_includes_them() -> None:
    clock = SteppingClock()
    times = RequestTimes(clock)
    started_s = times.now()
    for seconds in (0.0, 0.0625, 11.0):
        clock.at_s = started_s + seconds
        times.answered(3, started_s)
    clock.at_s = started_s + 0.25  # exactly a bound: "le" includes it
    times.answered(3, started_s, 17)
    found = times.by_api[3]
    assert found.counts[0] == 1
    assert found.counts[BOUNDS_S.index(0.1)] == 1
    assert found.counts[BOUNDS_S.index(0.25)] == 17
    assert found.counts[-1] == 1
    assert found.sum_s == 0.0625 + 11.0 + 17 * 0.25
    assert list(times.by_api) == [3]
