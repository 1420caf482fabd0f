"""Consumer groups of real clients: members come, leave and are killed while records keep coming."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from group_processes import (
    CommitWatch,
    Member,
    Trickle,
    check_history,
    create_topic,
    wait_until,
    wait_until_shared,
)

PARTITIONS = 6
LIBRARIES = ["confluent", "aiokafka", "kafka-python"]


@pytest.fixture
def start(bootstrap: str, topic: str) -> Iterator[Callable[..., Member]]:
    """Starts members of one group on one topic; what still runs at the end is killed."""
    members: list[Member] = []

    def start_member(library: str, *options: str) -> Member:
        member = Member(library, bootstrap, f"group-{topic}", topic, *options)
        members.append(member)
        return member

    yield start_member
    for member in members:
        member.end_if_running()


@pytest.mark.parametrize("library", LIBRARIES)
def test_members_come_leave_and_are_killed(
    library: str, bootstrap: str, topic: str, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    watch = CommitWatch(bootstrap, f"group-{topic}")
    try:
        first, second, third = (start(library) for _ in range(3))
        wait_until_shared([first, second, third], PARTITIONS)
        second.kill()
        wait_until_shared([first, third], PARTITIONS)
        assert third.leave() < 5
        wait_until_shared([first], PARTITIONS)
        fourth = start(library)
        wait_until_shared([first, fourth], PARTITIONS)
    finally:
        delivered = trickle.stop()
        time.sleep(0.5)
        latest = watch.stop()
    wait_until(lambda: delivered <= first.handled | second.handled | third.handled | fourth.handled, "the last records")
    first.leave()
    fourth.leave()
    check_history([first, second, third, fourth], delivered)
    assert len(latest) == PARTITIONS


def test_cooperative_members_never_stop_reading_what_they_keep(
    bootstrap: str, topic: str, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    options = ("partition.assignment.strategy=cooperative-sticky", "commit=async")
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first = start("confluent", *options)
        wait_until_shared([first], PARTITIONS)
        second = start("confluent", *options)
        wait_until_shared([first, second], PARTITIONS)
        settled = time.time()
        third = start("confluent", *options)
        wait_until_shared([first, second, third], PARTITIONS)
        end = time.time()
    finally:
        delivered = trickle.stop()
    wait_until(lambda: delivered <= first.handled | second.handled | third.handled, "the last records")
    for member in (first, second, third):
        member.leave()
    check_history([first, second, third], delivered)
    for member in (first, second):
        revoked = {
            partition
            for event in member.of("revoked")
            if settled < event["at"] < end
            for partition in event["partitions"]
        }
        assert len(revoked) == 1, "each of two gives up one of its three partitions, and nothing else"
        handled = [event for event in member.of("record") if settled < event["at"] < end]
        kept = {event["partition"] for event in handled} - revoked
        assert len(kept) == 2
        for partition in kept:
            offsets = [event["offset"] for event in handled if event["partition"] == partition]
            assert offsets == list(range(offsets[0], offsets[-1] + 1)), "kept is read on, without a second start"
            generations = {event["generation"] for event in handled if event["partition"] == partition}
            assert len(generations) > 1, "read before the third came and after it"


def test_eager_members_do_stop(bootstrap: str, topic: str, start: Callable[..., Member]) -> None:
    """The test above would fail here: eager members stop reading."""
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first = start("confluent", "partition.assignment.strategy=range")
        wait_until_shared([first], PARTITIONS)
        settled = time.time()
        second = start("confluent", "partition.assignment.strategy=range")
        wait_until_shared([first, second], PARTITIONS)
    finally:
        trickle.stop()
    revoked = {partition for event in first.of("revoked") if event["at"] > settled for partition in event["partitions"]}
    assert len(revoked) == PARTITIONS


def test_a_static_member_that_is_back_in_time_is_not_missed(
    bootstrap: str, topic: str, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first = start("confluent", "group.instance.id=a")
        second = start("confluent", "group.instance.id=b")
        wait_until_shared([first, second], PARTITIONS)
        generation = first.generation
        second.kill()
        successor = start("confluent", "group.instance.id=b")
        wait_until_shared([first, successor], PARTITIONS)
    finally:
        trickle.stop()
    assert first.generation == successor.generation == generation
    assert [event for event in first.of("revoked") if event["at"] > successor.events[0]["at"]] == []
