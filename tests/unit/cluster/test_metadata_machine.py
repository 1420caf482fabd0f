"""The metadata's state machine: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from penstock.api.turns import drained
from penstock.cluster.metadata_machine import MetadataMachine
from penstock.core.metadata import records
from penstock.core.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage, PartitionState, TopicState
from penstock.core.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
    encode_entry,
)

A, B = "0a" * 16, "0b" * 16


class Listener:
    """Writes down what it is told, and what the image says at that moment."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self.heard: list[tuple[object, ...]] = []
        self.leaders: list[dict[str, list[int]]] = []
        self.removal: Exception | None = None

    def _note(self, *what: object) -> None:
        self.heard.append(what)
        topics = self._image.topics
        self.leaders.append({name: [state.leader for state in topics[name].partitions] for name in topics})

    def topic_created(self, topic: TopicState) -> None:
        self._note("created", topic.name, len(topic.partitions))

    def partitions_added(self, topic: TopicState) -> None:
        self._note("added", topic.name, len(topic.partitions))

    def partition_changed(self, topic: TopicState, state: PartitionState) -> Awaitable[None] | None:
        self._note("changed", topic.name, state.index, state.leader)
        return None

    def topic_deleted(self, name: str, topic_id: bytes) -> Awaitable[None]:
        self._note("deleted", name)
        return self._remove()

    async def _remove(self) -> None:
        await asyncio.sleep(0)
        if self.removal is not None:
            raise self.removal

    def config_changed(self, topic: str) -> None:
        self._note("config", topic)


def made_of(
    *entries: Sequence[MetadataRecord],
    on_cluster_id: Callable[[str], None] = lambda _: None,
    on_brokers: Callable[[], None] = lambda: None,
    on_settings: Callable[[], None] = lambda: None,
) -> MetadataMachine:
    machine = MetadataMachine(
        MetadataImage(), on_cluster_id=on_cluster_id, on_brokers=on_brokers, on_settings=on_settings
    )
    for index, entry in enumerate(entries, 1):
        machine.apply(index, encode_entry(list(entry)))
    return machine


def listening(machine: MetadataMachine) -> Listener:
    listener = Listener(machine.image)
    machine.listen(listener, machine.image)
    return listener


TWO_TOPICS = [TopicCreated("a", A, ((1, 2), (2, 1))), TopicCreated("b", B, ((1,),))]


def test_an_entry_is_told_of_when_the_image_holds_all_of_it() -> None:
    machine = made_of(TWO_TOPICS)
    listener = listening(machine)
    moves = [PartitionChanged(A, 0, leader=2), PartitionChanged(A, 1, leader=1)]
    machine.apply(2, encode_entry([*moves, ConfigChanged(RESOURCE_TOPIC, "b", {"x": "1"})]))
    assert listener.heard == [("changed", "a", 0, 2), ("changed", "a", 1, 1), ("config", "b")]
    assert listener.leaders == [{"a": [2, 1], "b": [1]}] * 3


def test_a_topic_is_told_of_as_the_whole_entry_leaves_it() -> None:
    machine = made_of()
    listener = listening(machine)
    machine.apply(1, encode_entry([TopicCreated("a", A, ((1,),)), PartitionsAdded(A, ((2,),))]))
    assert listener.heard == [("created", "a", 2), ("added", "a", 2)]


def test_listening_begins_with_the_difference() -> None:
    machine = made_of(TWO_TOPICS)
    opened = machine.copy()
    machine.apply(2, encode_entry([PartitionChanged(A, 1, leader=1)]))
    machine.apply(3, encode_entry([TopicCreated("c", "0c" * 16, ((1,),))]))
    machine.apply(4, encode_entry([ConfigChanged(RESOURCE_TOPIC, "b", {"retention.ms": "1"})]))
    machine.apply(5, encode_entry([ConfigChanged(RESOURCE_BROKER, "", {"num.partitions": "7"})]))
    assert [state.leader for state in opened.topics["a"].partitions] == [1, 2], "a copy stays as it is"
    listener = Listener(machine.image)
    machine.listen(listener, opened)
    assert listener.heard == [("config", "b"), ("changed", "a", 1, 1), ("created", "c", 1)]


@pytest.mark.asyncio
async def test_a_snapshot_tells_the_difference() -> None:
    other = made_of(TWO_TOPICS)
    again = "0d" * 16
    other.apply(2, encode_entry([TopicDeleted(B)]))
    other.apply(3, encode_entry([TopicCreated("b", again, ((2,), (1,)))]))
    other.apply(4, encode_entry([PartitionsAdded(A, ((1, 2),))]))
    other.apply(5, encode_entry([PartitionChanged(A, 0, isr=(1,))]))
    machine = made_of(TWO_TOPICS)
    listener = listening(machine)
    machine.restore(5, drained(other.snapshot()))
    await machine.settle()
    assert listener.heard == [
        ("deleted", "b"),
        ("added", "a", 3),
        ("changed", "a", 0, 1),
        ("created", "b", 2),
    ]
    assert machine.image.topics["b"].topic_id == bytes.fromhex(again)
    assert drained(machine.snapshot()) == drained(other.snapshot())


@pytest.mark.asyncio
async def test_a_snapshot_tells_of_settings_before_partitions_that_were_changed_under_them() -> None:
    other = made_of(TWO_TOPICS)
    other.apply(2, encode_entry([ConfigChanged(RESOURCE_TOPIC, "a", {"min.insync.replicas": "2"})]))
    other.apply(3, encode_entry([ConfigChanged(RESOURCE_BROKER, "", {"min.insync.replicas": "2"})]))
    other.apply(4, encode_entry([PartitionChanged(A, 0, isr=(1,))]))
    machine = made_of(TWO_TOPICS, on_settings=lambda: listener.heard.append(("settings",)))
    listener = listening(machine)
    machine.restore(4, drained(other.snapshot()))
    await machine.settle()
    assert listener.heard == [("settings",), ("config", "a"), ("changed", "a", 0, 1)]


def test_settings_of_brokers_are_told_before_anybody_listens() -> None:
    told: list[object] = []
    machine = made_of(TWO_TOPICS, on_settings=lambda: told.append(dict(machine.image.configs)))
    machine.apply(2, encode_entry([ConfigChanged(RESOURCE_TOPIC, "a", {"retention.ms": "1"})]))
    assert told == []
    machine.apply(3, encode_entry([ConfigChanged(RESOURCE_BROKER, "", {"min.insync.replicas": "1"})]))
    assert told == [machine.image.configs]


def test_a_snapshot_of_what_is_known_tells_nothing() -> None:
    machine = made_of(TWO_TOPICS, [ConfigChanged(RESOURCE_TOPIC, "a", {"retention.ms": "1"})])
    listener = listening(machine)
    machine.restore(9, drained(machine.snapshot()))
    assert listener.heard == []


def test_overrides_that_a_snapshot_lacks_are_told() -> None:
    bare = made_of(TWO_TOPICS)
    machine = made_of(TWO_TOPICS, [ConfigChanged(RESOURCE_TOPIC, "a", {"retention.ms": "1"})])
    listener = listening(machine)
    machine.restore(9, drained(bare.snapshot()))
    assert listener.heard == [("config", "a")]


def test_a_snapshot_is_of_the_moment_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARTITIONS_IN_ONE_GO", 1)
    machine = made_of(TWO_TOPICS)
    expected = drained(machine.snapshot())
    taking = machine.snapshot()
    next(taking)
    machine.apply(2, encode_entry([PartitionChanged(A, 1, leader=1)]))
    machine.apply(3, encode_entry([TopicDeleted(B), TopicCreated("c", "0c" * 16, ((1,),))]))
    assert drained(taking) == expected


def test_brokers_and_the_cluster_id_have_hooks_of_their_own() -> None:
    heard: list[str] = []
    machine = made_of(on_cluster_id=heard.append, on_brokers=lambda: heard.append("brokers"))
    registered = BrokerRegistered(1, 5, "00" * 16, {"PLAINTEXT": ("h", 9092)}, None)
    machine.apply(1, encode_entry([ClusterCreated("x" * 22), registered]))
    machine.apply(2, encode_entry([BrokerChanged(1, is_fenced=True)]))
    assert heard == ["x" * 22, "brokers", "brokers"]
    machine.restore(3, drained(machine.snapshot()))
    assert heard == ["x" * 22, "brokers", "brokers", "brokers"], "the id is the same: no news"


@pytest.mark.asyncio
async def test_settle_waits_for_removals_and_survives_files_that_stay() -> None:
    machine = made_of(TWO_TOPICS)
    listener = listening(machine)
    listener.removal = OSError("directory not empty")
    machine.apply(2, encode_entry([TopicDeleted(A)]))
    assert "a" not in machine.image.topics
    await machine.settle()
    listener.removal = RuntimeError("a defect")
    machine.apply(3, encode_entry([TopicDeleted(B)]))
    with pytest.raises(RuntimeError, match="a defect"):
        await machine.settle()
