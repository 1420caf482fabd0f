"""The story of a group as a setting: its shape and its bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from group_client import GroupClient
from wire_client import WireClient

from penstock.api.admin.group_story import MAX_BYTES_BEFORE_V4, STORY, story_entry
from penstock.core.group.story import Stories, StoryEvent, What
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)

ASSIGNED = StoryEvent(1, 2, What.ASSIGNED, "a", "range", (("a", 2), ("b", 0)), ((("t", (0, 1)),), ()))


def test_what_is_told() -> None:
    entry = story_entry([StoryEvent(1, 0, What.JOINED, "ä"), ASSIGNED, StoryEvent(2, 2, What.EMPTY)], 4)
    assert (entry.name, entry.read_only, entry.sensitive) == (STORY, True, False)
    assert entry.value is not None
    assert json.loads(entry.value) == [
        {"at_ms": 1, "generation": 0, "event": "joined", "text": "joined", "member": "ä"},
        {
            "at_ms": 1,
            "generation": 2,
            "event": "assigned",
            "text": "assigned",
            "member": "a",
            "why": "range",
            "assigned": [{"member": "a", "partitions": {"t": [0, 1]}}, {"member": "b", "partitions": {}}],
        },
        {"at_ms": 2, "generation": 2, "event": "empty", "text": "empty"},
    ]


@pytest.mark.parametrize(("version", "told"), [(3, 7), (4, 256)])
def test_the_newest_events_are_told_where_there_is_no_room_for_all(version: int, told: int) -> None:
    events = [StoryEvent(number, 0, What.LEFT, "m", "x" * 4_500) for number in range(256)]
    value = story_entry(events, version).value
    assert value is not None
    assert version >= 4 or len(value.encode()) <= MAX_BYTES_BEFORE_V4
    assert [event["at_ms"] for event in json.loads(value)] == list(range(256 - told, 256))


def test_stories_are_bounded_by_events_and_by_what_was_assigned() -> None:
    stories = Stories(events_kept=10, shares_kept=9)  # two members and two partitions in each assignment
    for _ in range(20):
        stories.tell("g", StoryEvent(0, 0, What.LEFT))
    assert len(stories.of("g")) == 10
    for _ in range(3):
        stories.tell("g", ASSIGNED)
    assert [event.what for event in stories.of("g")] == [What.ASSIGNED] * 2
    stories.forget("g")
    assert stories.of("g") == ()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[WireClient]:
    with Broker({"offsets.topic.num.partitions": "3"}) as broker, WireClient(broker.port) as wire:
        yield wire


def describe(wire: WireClient, version: int, names: list[str] | None) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=32, resource_name="g", configuration_keys=names)
    result: DescribeConfigsResult = wire.call(
        Api.DESCRIBE_CONFIGS, version, DescribeConfigsRequest(resources=[resource])
    ).results[0]
    return result


def test_over_the_wire(wire: WireClient) -> None:
    assert describe(wire, 4, [STORY]).error_code == 16, "nobody has looked for a coordinator yet"
    client = GroupClient(wire, "g")
    client.find()
    member = client.enter().member_id
    for version in range(1, 5):
        (entry,) = describe(wire, version, [STORY]).configs
        assert entry.read_only
        (event,) = json.loads(entry.value or "")
        assert (event["event"], event["member"]) == ("joined", member)
    listed = [entry.name for entry in describe(wire, 4, None).configs]
    assert listed
    assert STORY not in listed
