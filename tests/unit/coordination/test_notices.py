"""Lines about groups in the log: one for many."""

from __future__ import annotations

import pytest

from penstock.coordination.notices import INTERVAL_S, LINES, Notices


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_groups_without_work_have_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    notices = Notices(clock)
    for at in range(40):
        notices.say_of_idle([f"group g{at}"])
    assert caplog.messages == ["group g0"]
    clock.now_s += INTERVAL_S
    notices.say_of_idle(["group h"])
    assert caplog.messages[1:] == ["group h (39 more such lines were left out)"]


def test_others_have_as_many_as_anybody_reads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    notices = Notices(clock)
    notices.say_of_idle(["idle"])
    notices.say(f"group g{at}" for at in range(LINES + 7))
    assert len(caplog.messages) == 1 + LINES
    clock.now_s += INTERVAL_S
    notices.say(["group h"])
    assert caplog.messages[-1] == "group h (7 more such lines were left out)"
