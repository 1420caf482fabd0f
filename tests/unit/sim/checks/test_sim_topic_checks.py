"""An operator's answers, compared with the topics at the end."""

from __future__ import annotations

import pytest

from penstock.sim.checks.topics import NO_SUCH_TOPIC, TopicFacts, check_topics
from penstock.sim.judges.history import History, Outcome, Violation

ACKNOWLEDGED, UNKNOWN, REFUSED = Outcome.ACKNOWLEDGED, Outcome.UNKNOWN, Outcome.REFUSED
Told = tuple[str, str, str, Outcome]
"""Verb, key, value, outcome."""


def history(*actions: Told) -> History:
    told = History(lambda: 0.0)
    for verb, key, value, outcome in actions:
        told.end_admin(told.begin_admin(verb, "t", key, value), outcome)
    return told


def topic(*replicas: tuple[int, ...], **configs: str) -> dict[str, TopicFacts]:
    return {"t": TopicFacts(replicas, configs)}


CREATED: Told = ("create", "", "1", ACKNOWLEDGED)


@pytest.mark.parametrize(
    ("actions", "found", "broken"),
    [
        ([CREATED], {}, "an acknowledged topic is kept"),
        ([CREATED, ("delete", "", "", UNKNOWN)], {}, ""),
        ([CREATED, ("delete", "", "", REFUSED)], {}, "an acknowledged topic is kept"),
        ([CREATED, ("delete", "", "", ACKNOWLEDGED)], topic((1,)), "a deleted topic stays deleted"),
        ([CREATED, ("delete", "", "", ACKNOWLEDGED), CREATED], topic((1,)), ""),
        ([CREATED, ("grow", "", "2", ACKNOWLEDGED)], topic((1,)), "acknowledged partitions are there"),
        ([("create", "", "1", REFUSED)], topic((1,)), ""),
        ([CREATED, ("grow", "", "2", UNKNOWN)], topic((1,)), ""),
        ([CREATED, ("grow", "", "2", UNKNOWN)], topic((1,), (2,)), ""),
        ([CREATED, ("grow", "", "2", REFUSED)], topic((1,), (2,)), ""),  # asked for twice by the broker, as it may
        ([CREATED, ("grow", "", "2", REFUSED)], topic((1,), (2,), (3,)), "acknowledged partitions are there"),
        ([("configure", "a", "1", ACKNOWLEDGED)], topic((1,), a="1"), ""),
        ([("configure", "a", "1", ACKNOWLEDGED)], topic((1,)), "acknowledged settings are kept"),
        ([("configure", "a", "2", UNKNOWN), ("configure", "a", "1", ACKNOWLEDGED)], topic((1,), a="2"), ""),
        (
            [("configure", "a", "2", ACKNOWLEDGED), ("configure", "a", "1", ACKNOWLEDGED)],
            topic((1,), a="2"),
            "acknowledged settings are kept",
        ),
        ([("reassign", "0", "2,3", ACKNOWLEDGED)], topic((2, 3)), ""),
        ([("reassign", "0", "2,3", ACKNOWLEDGED)], topic((1, 2)), "an acknowledged reassignment ends"),
        ([("reassign", "0", "2,3", UNKNOWN)], topic((1, 2)), ""),
        ([("reassign", "0", "2,3", ACKNOWLEDGED), ("reassign", "0", "", ACKNOWLEDGED)], topic((1, 2)), ""),
        ([("reassign", "0", "2,3", ACKNOWLEDGED), ("reassign", "0", "", UNKNOWN)], topic((1, 2)), ""),
        (
            [("reassign", "0", "2,3", ACKNOWLEDGED), ("reassign", "0", "", ACKNOWLEDGED)],
            topic((2, 3)),
            "a cancelled reassignment is over",
        ),
        (
            [("reassign", "0", "2,3", ACKNOWLEDGED), ("reassign", "0", "", REFUSED)],
            topic((1, 2)),
            "an acknowledged reassignment ends",
        ),
    ],
)
def test_what_was_answered_is_so(actions: list[Told], found: dict[str, TopicFacts], broken: str) -> None:
    if not broken:
        check_topics(history(*actions), found)
        return
    with pytest.raises(Violation) as violation:
        check_topics(history(*actions), found)
    assert violation.value.what == broken


def test_a_delete_of_what_is_gone_may_have_been_the_one_that_did_it() -> None:
    told = history(CREATED, ("delete", "", "", REFUSED))
    told.admin[1].refusal = NO_SUCH_TOPIC
    check_topics(told, {})
