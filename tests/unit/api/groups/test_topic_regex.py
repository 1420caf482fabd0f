"""Expressions of clients are bounded, and run in another process."""

from __future__ import annotations

from typing import Any

import pytest
from group_client import GroupClient
from wire_client import WireClient

from penstock.core.group import topic_regex
from penstock.core.group.topic_regex import (
    MAX_PER_GROUP,
    MAX_PROGRAM,
    expression_of,
    is_prepared,
    keep,
    match,
    matching_topics,
)
from penstock.model.errors import ApiError, ErrorCode, StorageError
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


def prepare(regex: str, names: list[str], limit: int = 50) -> int:
    """As the broker has it done; how many names were matched."""
    matched, expression = 0, expression_of(regex)
    while (some := expression.unknown(names, limit)) is not None:
        expression.learn(some, match(regex, some))
        matched += len(some)
    keep(expression)
    return matched


def test_what_is_prepared_is_known_for_these_topics_alone() -> None:
    names, regex = dict.fromkeys(NAMES), r"topic-.*5"
    assert not is_prepared(regex, names, 1)
    ordered = sorted(names)
    assert prepare(regex, ordered) == len(names)
    expression_of(regex).settle(names, 1, ordered)
    assert is_prepared(regex, names, 1)
    assert matching_topics(regex, names, 1) == matching_topics(regex, NAMES)
    names["topic-more-5"] = None
    assert not is_prepared(regex, names, 2)
    assert "topic-more-5" in matching_topics(regex, names, 2)
    assert not is_prepared(regex, dict(names), 2), "of another broker"


def test_topics_that_are_gone_are_forgotten() -> None:
    regex = r"gone-.*9"
    for round_ in range(60):
        names = dict.fromkeys(f"gone-{round_}-{at}" for at in range(100))
        ordered = sorted(names)
        prepare(regex, ordered)
        expression_of(regex).settle(names, round_, ordered)
    assert len(expression_of(regex).known) < 1500


def test_names_that_are_known_are_not_matched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the loop left with walking over them."""
    names, regex = dict.fromkeys(NAMES), r"topic-.*7"
    prepare(regex, sorted(names))
    names["topic-more-7"] = None
    after = sorted(names)
    assert prepare(regex, after) == 1
    monkeypatch.setattr(topic_regex, "_program", forbidden)
    expression_of(regex).settle(names, 2, after)
    assert matching_topics(regex, names, 2) == tuple(name for name in after if name.endswith("7"))


def test_many_names_are_looked_through_some_at_a_time() -> None:
    names, regex = [f"many-{at:05}" for at in range(3 * topic_regex.KNOWN_AT_A_TIME)], "many-.*1"
    expression = expression_of(regex)
    expression.learn(names, match(regex, names))
    assert [expression.unknown(names, 50) for _ in range(3)] == [[], [], None]


def test_asking_whether_one_is_prepared_makes_nobody_forget_another() -> None:
    names = dict.fromkeys(NAMES)
    prepare("kept-.*", sorted(names))
    for at in range(2 * topic_regex.EXPRESSIONS_KEPT):
        assert not is_prepared(f"asked-{at}", names, 1)
    assert expression_of("kept-.*").known
    for at in range(topic_regex.EXPRESSIONS_KEPT):
        matching_topics(f"used-{at}", [])
    assert not expression_of("kept-.*").known


def forbidden(regex: str) -> Any:
    raise AssertionError(f"{regex} was compiled in the broker's process")


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


def test_the_loop_matches_nothing(wire: WireClient, wire_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    GroupClient(wire, "loop-matches-nothing").find()
    first = wire.create_topic()
    for _ in range(60):
        wire.create_topic()
    regex = f"{first}|loop-matches-nothing"
    monkeypatch.setattr(topic_regex, "_program", forbidden)
    jobs = wire_broker._running.groups.regexes.jobs
    reply = beat(wire, "loop-matches-nothing", "m" * 22, regex)
    assert (reply.error_code, reply.error_message) == (0, None)
    assert wire_broker._running.groups.regexes.jobs > jobs
    another = wire.create_topic()
    beat(wire, "loop-matches-nothing", "n" * 22, regex)
    assert expression_of(regex).known[another] is False
    refused = beat(wire, "loop-matches-nothing", "o" * 22, "(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "`(` is not a valid regular expression" in refused.error_message


def test_a_process_that_is_lost_costs_a_member_another_try(
    wire: WireClient, wire_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    GroupClient(wire, "process-lost").find()
    wire.create_topic()

    async def lost(*_: object) -> None:
        raise StorageError("the process died")

    with monkeypatch.context() as broken:
        broken.setattr(wire_broker._running.groups.regexes._processes, "call_patiently", lost)
        reply = beat(wire, "process-lost", "m" * 22, "process-.*")
        assert reply.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert beat(wire, "process-lost", "m" * 22, "process-.*").error_code == 0


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
    assert wire_broker._running.groups._host._notices._idle._unsaid >= 10
