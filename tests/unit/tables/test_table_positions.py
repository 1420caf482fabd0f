"""What a commit is in view of the positions of a table."""

from __future__ import annotations

import pytest

from penstock.tables.errors import PositionsMoved
from penstock.tables.positions import Span, Verdict, judge

KNOWN = {"a": 10, "b": 5}


@pytest.mark.parametrize(
    ("offered", "verdict"),
    [
        ({"a": Span(10, 12)}, Verdict.NEW),
        ({"a": Span(10, 12), "b": Span(5, 6)}, Verdict.NEW),
        ({"a": Span(10, 12), "c": Span(700, 800)}, Verdict.NEW),  # a new stream begins anywhere
        ({"a": Span(10, 10)}, Verdict.NEW),
        ({"a": Span(8, 10)}, Verdict.REPLAY),
        ({"a": Span(0, 4), "b": Span(4, 5)}, Verdict.REPLAY),
        ({}, Verdict.NEW),
    ],
)
def test_new_rows_and_replays(offered: dict[str, Span], verdict: Verdict) -> None:
    assert judge(KNOWN, offered) is verdict


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ({"a": Span(11, 12)}, "rows are missing in between"),
        ({"a": Span(9, 12)}, "a part of the rows is already in it"),
        ({"a": Span(8, 10), "b": Span(5, 6)}, "a part of the rows is already in it"),  # one replayed, one new
        ({"a": Span(8, 10), "c": Span(0, 6)}, "a part of the rows is already in it"),
    ],
)
def test_gaps_and_parts_are_refused(offered: dict[str, Span], reason: str) -> None:
    with pytest.raises(PositionsMoved, match=reason) as refused:
        judge(KNOWN, offered)
    assert refused.value.positions == {stream: KNOWN[stream] for stream in offered if stream in KNOWN}


@pytest.mark.parametrize("span", [Span(5, 4), Span(-1, 4), Span(0, 2**63)])
def test_a_span_is_a_range_of_offsets(span: Span) -> None:
    with pytest.raises(ValueError, match="not a range of offsets"):
        judge({}, {"a": span})
