"""Where a node is looked for: the log, the registration, the file, and what the node says of itself."""

from __future__ import annotations

import pytest

from penstock.cluster.peer_addresses import PeerAddresses
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import (
    BrokerRegistered,
    BrokerUnregistered,
    PeerAddressRemoved,
    PeerAddressSet,
    TopicDeleted,
    encode_entry,
)
from penstock.core.raft.messages import Entry, EntryKind

FILE = {1: ("file-1", 1), 2: ("file-2", 1), 3: ("file-3", 1)}
VOTERS = (1, 2, 3)


class World:
    def __init__(self) -> None:
        self.image = MetadataImage()
        self.addresses = PeerAddresses(self.image, FILE)

    def register(self, node: int, host: str, directory_id: str = "disk") -> None:
        endpoints = {"PLAINTEXT": (host, 9), "OTHER": ("elsewhere", 1)}
        epoch = self.image.next_broker_epoch
        self.image.replay(BrokerRegistered(node, epoch, "00" * 16, endpoints, directory_id=directory_id))

    def say(self, node: int, host: str) -> None:
        self.image.replay(PeerAddressSet(node, host, 5))

    def hosts(self, node: int, voters: tuple[int, ...] = VOTERS, *, is_led: bool = True) -> list[str]:
        return [host for host, _ in self.addresses.to_try(node, voters, 1 if is_led else None)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_voter_is_where_the_log_says(world: World) -> None:
    assert world.hosts(3) == ["file-3"]
    world.register(3, "registered")
    assert world.hosts(3) == ["file-3", "registered"]
    world.say(3, "said")
    assert world.hosts(3) == ["said", "registered"]
    assert world.addresses.of_voter(3) == ("said", 5)
    assert world.addresses.for_requests(3) == ("registered", 9)


def test_without_a_leader_the_file_counts_as_well(world: World) -> None:
    """The whole cluster may have moved at once, and the log cannot say so before there is a leader."""
    world.say(3, "said")
    assert world.hosts(3, is_led=False) == ["said", "file-3"]
    assert world.hosts(3, is_led=True) == ["said"]


def test_a_node_without_a_vote_is_where_it_registered_whatever_it_was_before(world: World) -> None:
    world.say(3, "said")
    world.register(3, "registered")
    assert world.hosts(3, voters=(1, 2)) == ["registered"]
    world.register(3, "moved")
    assert world.hosts(3, voters=(1, 2)) == ["moved"]
    world.image.replay(BrokerUnregistered(3))
    world.image.replay(PeerAddressRemoved(3))
    assert world.hosts(3, voters=(1, 2)) == ["file-3"]


def test_one_that_nothing_is_known_of_is_where_it_says(world: World) -> None:
    assert world.hosts(9) == []
    world.addresses.greeted_by(9, "[::1]:77", "")
    assert world.addresses.to_try(9, VOTERS, 1) == (("[::1]", 77),)
    world.addresses.greeted_by(9, "nine:78", "")
    assert world.hosts(9) == ["nine"]
    world.addresses.forget(9)
    assert world.hosts(9) == []


@pytest.mark.parametrize("address", ["", "nine", ":9092", "nine:", "nine:x", "nine:²", "nine:0", "nine:65536"])
def test_half_an_address_is_none(world: World, address: str) -> None:
    world.addresses.greeted_by(9, address, "disk")
    assert world.hosts(9) == []


def test_a_voter_that_says_that_it_has_moved_is_believed_with_its_own_disk_only(world: World) -> None:
    world.say(3, "said")
    world.addresses.greeted_by(3, "moved:1", "disk")
    assert world.hosts(3) == ["said"], "nobody knows its disk yet"
    world.register(3, "registered")
    assert world.hosts(3) == ["said", "registered", "moved"]
    world.addresses.greeted_by(3, "twin:1", "another disk")
    assert world.hosts(3) == ["said", "registered"]
    world.addresses.greeted_by(3, "twin:1", "")
    assert world.hosts(3) == ["said", "registered"]


def test_whoever_leads_is_found_where_it_says(world: World) -> None:
    """A node that has nothing but its file, which is older than the leader's address: how else could it answer?"""
    world.addresses.greeted_by(3, "moved:1", "disk")
    assert world.addresses.to_try(3, VOTERS, None) == (FILE[3],)
    assert world.addresses.to_try(3, VOTERS, 3) == (FILE[3], ("moved", 1))
    assert world.addresses.for_requests(3) == ("moved", 1)
    world.say(3, "said")
    assert world.addresses.for_requests(3) == ("said", 5)
    assert world.addresses.for_requests(2) == FILE[2]
    assert world.addresses.for_requests(9) is None


def test_nothing_is_tried_twice(world: World) -> None:
    world.image.replay(PeerAddressSet(3, "file-3", 1))
    world.addresses.greeted_by(3, "file-3:1", "disk")
    world.register(3, "registered")
    assert world.hosts(3, is_led=False) == ["file-3", "registered"]


class FakeLog:
    def __init__(self, *entries: Entry) -> None:
        self.applied_index = 0
        self.unapplied = entries
        self.terms = {entry.index: entry.term for entry in entries}

    def has_entry(self, index: int, term: int) -> bool:
        return self.terms.get(index) == term


def test_after_a_start_all_of_the_log_counts_until_it_is_applied_or_replaced(world: World) -> None:
    world.say(2, "applied")
    world.register(9, "applied")
    registered = BrokerRegistered(3, 5, "00" * 16, {"PLAINTEXT": ("registered", 9)}, directory_id="disk")
    log = FakeLog(
        Entry(1, 1, EntryKind.DATA, encode_entry([PeerAddressSet(3, "said", 5), registered])),
        Entry(2, 1, EntryKind.DATA, encode_entry([BrokerUnregistered(9), TopicDeleted("of no interest")])),
        Entry(3, 2, EntryKind.CONFIGURATION, b"voters=1,2,3 observers="),
    )
    world.addresses.look_ahead(log)
    assert (world.hosts(2), world.hosts(3), world.hosts(9)) == (["applied"], ["said", "registered"], [])
    assert (world.addresses.directory_of(3), world.addresses.ahead_to) == ("disk", 3)
    assert 9 in world.image.brokers, "that is what is applied"
    for applied_index, terms in ((3, log.terms), (2, {1: 1, 2: 1, 3: 3}), (2, {1: 1, 2: 1})):
        log.applied_index, log.terms = applied_index, terms
        assert (world.hosts(3), world.hosts(9)) == (["file-3"], ["applied"])
        assert (world.addresses.directory_of(3), world.addresses.ahead_to) == ("", 0)


def test_what_the_file_has_elsewhere(world: World) -> None:
    world.say(3, "said")
    world.image.replay(PeerAddressSet(2, *FILE[2]))
    world.say(9, "not in the file")
    (sentence,) = world.addresses.contradictions((1, 2, 3, 9))
    assert sentence.startswith("controller.quorum.voters names 3@file-3:1, but the quorum has node 3 at said:5")
    assert list(world.addresses.contradictions((1, 2))) == []
