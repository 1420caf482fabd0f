from __future__ import annotations

import pytest

from penstock.gateway.crowd import Crowd


@pytest.fixture
def crowd() -> Crowd[str]:
    return Crowd("http", 3)


def test_a_full_listener_closes_the_connection_that_has_waited_longest(crowd: Crowd[str]) -> None:
    for at, name in enumerate("abc"):
        assert crowd.arrived(name, at) is None
    crowd.is_busy("a")
    assert crowd.arrived("d", 4) == "b"
    assert len(crowd) == 3
    assert crowd.made_room == 1


def test_one_that_sends_half_a_request_goes_before_one_between_two_requests(crowd: Crowd[str]) -> None:
    for at, name in enumerate("abc"):
        crowd.arrived(name, at)
    crowd.is_busy("a")
    crowd.is_idle("a", 3)
    assert crowd.arrived("d", 4) == "b"
    assert crowd.arrived("e", 5) == "c"
    crowd.is_busy("d")
    crowd.is_busy("e")
    assert crowd.arrived("f", 6) == "a"


def test_only_if_all_are_busy_the_new_one_is_turned_away(crowd: Crowd[str]) -> None:
    for name in "abc":
        crowd.arrived(name, 0)
        crowd.is_busy(name)
    assert crowd.arrived("d", 1) == "d"
    assert (len(crowd), crowd.turned_away) == (3, 1)
    crowd.left("a")
    assert crowd.arrived("d", 2) is None


def test_a_request_has_its_time_from_its_first_byte(crowd: Crowd[str]) -> None:
    crowd.arrived("a", 0)
    crowd.is_busy("a")
    crowd.is_idle("a", 1)
    crowd.begins("a", 10)
    crowd.begins("a", 14)  # one byte more, as slow callers send them
    assert crowd.overdue(14.9, 5, 100) == []
    assert crowd.overdue(15, 5, 100) == ["a"]
    assert (len(crowd), crowd.timed_out) == (0, 1)


def test_the_busy_are_never_overdue_and_the_idle_have_longer(crowd: Crowd[str]) -> None:
    for name in "ab":
        crowd.arrived(name, 0)
        crowd.is_busy(name)
    crowd.is_idle("b", 0)
    assert crowd.overdue(99, 5, 100) == []
    assert crowd.overdue(100, 5, 100) == ["b"]
