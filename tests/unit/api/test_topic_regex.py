"""Expressions of clients are bounded, and run in a worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from group_client import GroupClient
from wire_client import WireClient

from penstock.core.group import topic_regex
from penstock.core.group.topic_regex import MAX_PER_GROUP, MAX_PROGRAM, is_prepared, matching_topics, prepare
from penstock.model.errors import ApiError, ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

NAMES = [f"topic-{at}" for at in range(120)]


@pytest.mark.parametrize("regex", ["([a-q][^u-z]{13}x|.*){30}", "((a?){100}){10}x"])
def test_one_that_is_too_complex_is_refused(regex: str) -> None:
    with pytest.raises(ApiError, match=f"{MAX_PROGRAM} are allowed") as refused:
        matching_topics(regex, NAMES)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("regex", [".*", "orders-.*|payments-[0-9]{1,3}", r"\p{L}+-.*", "(a|b|c).*(x|y|z)"])
def test_usual_ones_are_not(regex: str) -> None:
    assert isinstance(matching_topics(regex, NAMES), tuple)


def test_what_is_prepared_is_known_for_these_topics_alone() -> None:
    names, regex = dict.fromkeys(NAMES), r"topic-.*5"
    assert not is_prepared(regex, names, 1)
    ordered = sorted(names)
    assert [prepare(regex, ordered, 50) for _ in range(3)] == [False, False, True]
    topic_regex.settle(regex, names, 1, ordered)
    assert is_prepared(regex, names, 1)
    assert matching_topics(regex, names, 1) == matching_topics(regex, NAMES)
    names["topic-more-5"] = None
    assert not is_prepared(regex, names, 2)
    assert "topic-more-5" in matching_topics(regex, names, 2)
    assert not is_prepared(regex, dict(names), 2), "of another broker"


def test_topics_that_are_gone_are_forgotten() -> None:
    regex = r"gone-.*9"
    expression = topic_regex._compiled(regex)
    assert isinstance(expression, topic_regex._Expression)
    for round_ in range(60):
        names = dict.fromkeys(f"gone-{round_}-{at}" for at in range(100))
        ordered = sorted(names)
        while not prepare(regex, ordered, 500):
            pass
        topic_regex.settle(regex, names, round_, ordered)
    assert len(expression._known) < 1500


def test_names_that_are_known_are_not_matched_again() -> None:
    """Nor is the loop left with walking over them."""
    names, regex = dict.fromkeys(NAMES), r"topic-.*7"
    expression = topic_regex._compiled(regex)
    assert isinstance(expression, topic_regex._Expression)
    recorder = expression._compiled = Recorder(expression._compiled)
    before = sorted(names)
    while not prepare(regex, before, 50):
        pass
    names["topic-more-7"] = None
    after = sorted(names)
    while not prepare(regex, after, 50):
        pass
    topic_regex.settle(regex, names, 2, after)
    assert recorder.calls == len(names)
    assert matching_topics(regex, names, 2) == tuple(name for name in after if name.endswith("7"))


class Recorder:
    """A compiled expression that notes which thread matches."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.threads: set[str] = set()
        self.calls = 0

    def fullmatch(self, name: str) -> Any:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        return self.compiled.fullmatch(name)


def beat(wire: WireClient, group: str, member: str, regex: str) -> Any:
    return wire.call(
        Api.CONSUMER_GROUP_HEARTBEAT,
        1,
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            rebalance_timeout_ms=10_000,
            subscribed_topic_regex=regex,
            topic_partitions=[],
        ),
    )


def test_the_loop_matches_nothing(wire: WireClient, wire_broker: Broker) -> None:
    GroupClient(wire, "loop-matches-nothing").find()
    first = wire.create_topic()
    for _ in range(60):
        wire.create_topic()
    regex = f"{first}|loop-matches-nothing"
    expression = topic_regex._compiled(regex)
    assert isinstance(expression, topic_regex._Expression)
    recorder = expression._compiled = Recorder(expression._compiled)
    jobs = wire_broker._running.groups.regexes.jobs
    reply = beat(wire, "loop-matches-nothing", "m" * 22, regex)
    assert (reply.error_code, reply.error_message) == (0, None)
    assert wire_broker._running.groups.regexes.jobs - jobs >= 2
    assert recorder.threads
    assert all(name.startswith("penstock-worker") for name in recorder.threads), recorder.threads
    recorder.threads.clear()
    another = wire.create_topic()
    beat(wire, "loop-matches-nothing", "n" * 22, regex)
    assert expression._known[another] is False
    assert all(name.startswith("penstock-worker") for name in recorder.threads), recorder.threads


def test_a_group_has_a_bounded_number(wire: WireClient) -> None:
    GroupClient(wire, "many-expressions").find()
    codes = [beat(wire, "many-expressions", f"{at:022}", f"none-{at}").error_code for at in range(MAX_PER_GROUP + 1)]
    assert codes == [0] * MAX_PER_GROUP + [ErrorCode.INVALID_REGULAR_EXPRESSION]


def test_groups_that_match_nothing_fill_no_log(
    wire: WireClient, wire_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    GroupClient(wire, "quiet-0").find()
    caplog.set_level("INFO")
    for at in range(20):
        assert beat(wire, f"quiet-{at}", f"{at:022}", f"matches-nothing-{at}").error_code == 0
    said = [line for line in caplog.messages if "has a target" in line]
    assert len(said) <= 2  # an interval may have ended meanwhile
    assert wire_broker._running.groups._notices._idle._unsaid >= 10
