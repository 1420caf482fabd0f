"""A node and its neighbours: it looks for them, insists on their disks, and tells its own address."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from penstock.cluster.peer_addresses import PeerAddresses
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.quorum import Quorum
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import BrokerRegistered, PeerAddressSet, encode_entry
from penstock.core.raft.messages import Entry, EntryKind
from penstock.model.errors import ApiError, ErrorCode
from penstock.node.neighbours import LONGEST_TELL_PAUSE_S, SETTLED_S, Neighbours
from penstock.sim.machine.world import SimWorld

NODE = 1
OWN = ("node-1", 9092)
FILE = {1: OWN, 2: ("node-2", 9092), 3: ("node-3", 9092)}


class FakeQuorum:
    def __init__(self) -> None:
        self.leader_id: int | None = 2
        self.voters: tuple[int, ...] = (1, 2, 3)
        self.members: list[int] = [1, 2, 3]
        self.applied_index = self.configuration_index = 7
        self.unapplied: list[Entry] = []

    def has_entry(self, index: int, term: int) -> bool:
        return any((entry.index, entry.term) == (index, term) for entry in self.unapplied)


class FakeLinks:
    def __init__(self) -> None:
        self.to: dict[int, tuple[Any, ...]] = dict.fromkeys(FILE, ())

    @property
    def peers(self) -> list[int]:
        return list(self.to)

    def set_addresses(self, peer: int, addresses: Sequence[Any]) -> None:
        if addresses:
            self.to[peer] = tuple(addresses)

    def forget(self, peer: int) -> None:
        self.to.pop(peer, None)


class Here:
    def __init__(self) -> None:
        self.image = MetadataImage()
        self.quorum = FakeQuorum()
        self.links = FakeLinks()
        self.addresses = PeerAddresses(self.image, FILE)
        self.neighbours = Neighbours(NODE, self.addresses, cast(PeerLinks, self.links), cast(Quorum, self.quorum))

    def register(self, node: int, directory_id: str = "disk") -> None:
        endpoints = {"PLAINTEXT": (f"node-{node}", 9092)}
        self.image.replay(BrokerRegistered(node, node, "00" * 16, endpoints, directory_id=directory_id))


@pytest.fixture
def here() -> Here:
    return Here()


def test_who_has_left_is_not_looked_for(here: Here) -> None:
    here.quorum.voters, here.quorum.members = (1, 2), [1, 2]
    here.image.replay(PeerAddressSet(3, "left-behind", 1))
    here.neighbours.learn()
    assert 3 not in here.links.to
    here.neighbours.greeted_by(4, "node-4:9092", "")
    assert here.links.to[4] == (("node-4", 9092),)
    here.neighbours.learn()
    assert 4 not in here.links.to
    here.quorum.members = [1, 2, 4]
    here.neighbours.learn()
    assert here.links.to[4] == (("node-4", 9092),), "it says only once where it is"
    here.quorum.members = [1, 2]
    here.neighbours.left_by(4)
    here.neighbours.learn()
    assert 4 not in here.links.to
    here.quorum.leader_id = 4
    here.neighbours.learn()
    assert 4 not in here.links.to, "nobody knows where it is"
    here.neighbours.greeted_by(4, "node-4:9092", "")
    assert here.links.to[4] == (("node-4", 9092),)
    here.quorum.leader_id = 2
    here.register(4)
    here.neighbours.learn()
    assert here.links.to[4] == (("node-4", 9092),), "about to be added"


def test_nobody_is_dropped_by_a_node_that_may_know_too_little(here: Here) -> None:
    here.quorum.voters, here.quorum.members, here.quorum.leader_id = (1, 2), [1, 2], None
    here.neighbours.learn()
    assert 3 in here.links.to, "its own log may be old"
    here.quorum.leader_id = 3
    here.neighbours.learn()
    assert 3 in here.links.to, "whoever leads is answered"
    here.quorum.leader_id, here.quorum.members = 2, [2]
    here.neighbours.learn()
    assert 3 in here.links.to, "this node does not belong to them any more"


def test_which_disk_a_voter_must_have(here: Here) -> None:
    told, heard = here.neighbours.directory_of_voter, here.neighbours.directory_of_sender
    assert (told(3), heard(3)) == ("", ""), "not registered"
    here.register(3)
    here.register(2)
    assert (told(3), heard(3)) == ("disk", "disk")
    assert (told(2), heard(2)) == ("", ""), "it leads"
    here.quorum.leader_id = None
    assert (told(3), heard(3)) == ("disk", ""), "it may be about to lead; but it is not asked for a vote"
    here.quorum.voters = (1, 2)
    assert (told(3), heard(3)) == ("", ""), "no voter"


def test_the_disk_of_a_voter_counts_like_the_voters_before_it_is_applied(here: Here) -> None:
    here.register(3, "lost disk")
    registered = BrokerRegistered(3, 3, "00" * 16, {}, directory_id="disk")
    quorum, told = here.quorum, here.neighbours.directory_of_voter
    quorum.unapplied = [
        Entry(8, 1, EntryKind.DATA, encode_entry([registered])),
        Entry(9, 2, EntryKind.CONFIGURATION, b"voters=1,2,3 observers="),
    ]
    assert told(3) == "lost disk"
    quorum.configuration_index = 9
    assert told(3) == "disk"
    quorum.unapplied = []
    assert told(3) == "", "they come with a snapshot that is not applied yet"
    quorum.configuration_index = 7
    assert told(3) == "lost disk", "the log had to be cut"


def tell(here: Here, own: Sequence[tuple[str, int]], *answers: ErrorCode) -> list[tuple[float, Sequence[Any]]]:
    """When it asked, and for what; after `answers` the address is taken over."""
    asked: list[tuple[float, Sequence[Any]]] = []
    left = list(answers)
    with SimWorld(1) as world:

        async def update(directory_id: str, addresses: Sequence[tuple[str, int]]) -> None:
            assert directory_id == "disk"
            asked.append((round(asyncio.get_running_loop().time(), 1), list(addresses)))
            if left:
                raise ApiError(left.pop(0))
            here.image.replay(PeerAddressSet(NODE, *addresses[-1]))

        world.run(here.neighbours.tell(update, "disk", own), timeout_s=600)
    return asked


def test_a_voter_that_the_log_has_elsewhere_says_where_it_is(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    here.image.replay(PeerAddressSet(NODE, "old", 1))
    assert tell(here, [OWN, OWN]) == [(0.0, [OWN])]
    assert tell(here, [OWN, OWN]) == [], "it is known now"
    assert caplog.text == ""
    here.quorum.voters = (2, 3)
    assert tell(here, [OWN, ("elsewhere", 1)]) == [], "no voter"


def test_it_is_said_until_there_is_a_controller_to_hear_it(here: Here) -> None:
    nobody = [ErrorCode.NOT_CONTROLLER] * 8
    asked = tell(here, [("written", 1), OWN], *nobody)
    assert [at_s for at_s, _ in asked] == [0, 1, 3, 7, 15, 31, 63, 123, 123 + LONGEST_TELL_PAUSE_S]
    assert {tuple(addresses) for _, addresses in asked} == {(("written", 1), OWN)}


def test_one_that_is_not_found_says_so_and_warns_of_its_file(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    here.image.replay(PeerAddressSet(NODE, "old", 1))
    here.image.replay(PeerAddressSet(3, "moved", 1))
    asked = tell(here, [OWN, OWN], *[ErrorCode.INVALID_REQUEST] * 7)
    pauses = [later - before for (before, _), (later, _) in pairwise(asked)]
    assert pauses == [SETTLED_S + 1, 2, 4, 8, 16, 32, LONGEST_TELL_PAUSE_S], "somebody may be mending the network"
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (
        "the controller does not find this voter at node-1:9092 (INVALID_REQUEST): see the controller's log"
    )
    assert [sentence.split(",")[0] for sentence in said[1:]] == [
        "controller.quorum.voters names 1@node-1:9092",
        "controller.quorum.voters names 3@node-3:9092",
    ]


def test_one_that_is_another_voter_than_it_thinks_says_it_once(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    here.image.replay(PeerAddressSet(NODE, "old", 1))
    assert len(tell(here, [OWN, OWN], ErrorCode.VOTER_NOT_FOUND)) == 1
    assert caplog.text.count("does not find this voter at") == 1
