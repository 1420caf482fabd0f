"""`penstock groups explain` against a real broker and real members of both protocols."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from penstock.cli.groups.story import story_lines
from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.testing import Broker
from support.processes.command_line import CommandLine

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def penstock_broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


class Member:
    def __init__(self, broker: Broker, group: str, topic: str, protocol: str, name: str) -> None:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": name}
        self.consumer = Consumer(settings | {"group.protocol": protocol})
        self.consumer.subscribe([topic])

    @property
    def held(self) -> list[int]:
        return sorted(one.partition for one in self.consumer.assignment())


def until(members: list[Member], sizes: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while [len(member.held) for member in members] != sizes:
        assert time.monotonic() < deadline, [member.held for member in members]
        for member in members:
            member.consumer.poll(0.05)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_story_of_two_members(cli: CommandLine, penstock_broker: Broker, topic: str, protocol: str) -> None:
    group = f"told-{protocol}"
    cli("topics", "create", "--name", topic, "--partitions", "3")
    first = Member(penstock_broker, group, topic, protocol, "first")
    until([first], [3])
    second = Member(penstock_broker, group, topic, protocol, "second")
    until([first, second], [2, 1])
    second.consumer.close()
    until([first], [3])

    ran = cli("groups", "explain", "--group", group, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["group"], found["protocol"], found["state"]) == (group, protocol, "Stable")
    story = found["story"]
    assert [event["at_ms"] for event in story] == sorted(event["at_ms"] for event in story)
    assert abs(story[-1]["at_ms"] / 1000 - time.time()) < TIMEOUT_S

    joined = [event["member"] for event in story if event["event"] == "joined"]
    assert len(joined) == 2
    assert [event["member"] for event in story if event["event"] == "left"] == joined[1:]
    given = [event for event in story if event["event"] == "assigned"]
    assert [event["generation"] for event in given] == sorted(event["generation"] for event in given)
    shares = [{one["member"]: one["partitions"] for one in event["assigned"]} for event in given]
    assert shares[0] == {joined[0]: {topic: [0, 1, 2]}}
    assert shares[-1] == {joined[0]: {topic: [0, 1, 2]}}
    both = next(share for share in shares if len(share) == 2)
    assert sorted(partition for held in both.values() for partition in held.get(topic, [])) == [0, 1, 2]

    lines = cli("groups", "explain", "--group", group).lines
    for pattern in (
        rf"[-\d]+ [:.\d]+  {re.escape(joined[1])} joined.*",
        r"[-\d]+ [:.\d]+  generation \d+: 3 partitions to 2 members, 1 to 2 each \(\w+\)",
        rf" +{re.escape(joined[0])}: {topic} 0-2",
        rf"[-\d]+ [:.\d]+  {re.escape(joined[1])} left.*",
    ):
        assert any(re.fullmatch(pattern, line) for line in lines), (pattern, lines)
    first.consumer.close()


def test_a_group_without_a_story(cli: CommandLine, penstock_broker: Broker, topic: str) -> None:
    missing = cli("groups", "explain", "--group", "nobody")
    assert (missing.code, missing.out) == (1, "")
    assert "group nobody does not exist" in missing.err
    cli("topics", "create", "--name", topic)
    with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
        producer.submit(topic, "1")
    with BlockingAdmin(penstock_broker.bootstrap_servers) as admin:
        admin.set_group_offsets("quiet", {admin.topic(topic).topic_partitions[0]: 1})
    ran = cli("groups", "explain", "--group", "quiet")
    assert ran.lines == []
    assert "Nothing has happened" in ran.err


def test_the_story_is_no_setting_that_one_meets(cli: CommandLine, penstock_broker: Broker, topic: str) -> None:
    ran = cli("configs", "describe", "--group", "told-classic", "--all")
    assert "penstock.story" not in ran.out
    refused = cli("configs", "set", "--group", "told-classic", "penstock.story=[]")
    assert refused.code == 1


def test_large_assignments_are_cut_for_people() -> None:
    shares = [{"member": f"m{number}", "partitions": {"t": [number, number + 100]}} for number in range(30)]
    event = {"at_ms": 0, "generation": 7, "event": "assigned", "text": "assigned", "why": "range", "assigned": shares}
    short = list(story_lines([event], show_all=False))
    assert short[0] == "1970-01-01 00:00:00.000  generation 7: 60 partitions to 30 members, 2 each (range)"
    assert short[1].strip() == "m0: t 0, 100"
    assert short[-1].strip() == "and 19 more (--all)"
    assert len(short) == 13
    assert len(list(story_lines([event], show_all=True))) == 31
