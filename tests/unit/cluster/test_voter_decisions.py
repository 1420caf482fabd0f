"""Votes and addresses of voters: the controller's part. The test says which node listens at an address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from penstock.core.metadata.records import PeerAddressSet
from penstock.core.metadata.requests import uuid_text
from penstock.model.errors import ApiError, ErrorCode
from support.worlds.controller import FIRST, GRACE_S, ControllerWorld, play

DISK, OTHER_DISK = b"d" * 16, b"o" * 16


async def refused(work: Awaitable[object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value.code


def test_a_new_cluster_writes_down_where_its_voters_are() -> None:
    async def story(there: ControllerWorld) -> None:
        assert there.image.peers == FIRST

    play(story)


class Whereabouts:
    """The listening nodes: (host, port) -> (node, disk)."""

    def __init__(self, there: ControllerWorld, **nodes: tuple[int, bytes]) -> None:
        self.nodes = nodes
        there.why_not_at = self.why_not_at

    async def why_not_at(self, address: tuple[str, int], node: int, directory_id: str) -> str:
        found, disk = self.nodes.get(address[0], (None, b""))
        if found != node:
            return f"this is node {found}"
        return "" if directory_id in ("", uuid_text(disk)) else "this is another disk"


def test_a_vote_is_given_only_to_the_node_that_is_at_the_address() -> None:
    async def story(there: ControllerWorld) -> None:
        Whereabouts(there, h1=(1, DISK), h4=(4, DISK))
        await there.join(4)
        await asyncio.sleep(1)
        there.quorum.changes.clear()
        for directory, host in ((b"", "h1"), (bytes(16), "nowhere"), (OTHER_DISK, "h4")):
            with pytest.raises(ApiError) as caught:
                await there.controller.voters.add_voter(4, directory, host, 9092)
            assert caught.value.code is ErrorCode.INVALID_REQUEST
            assert str(caught.value).startswith("give the address where the others reach node 4: this is ")
        assert (there.quorum.changes, there.image.peers) == ([], FIRST)
        await there.controller.voters.add_voter(4, DISK, "h4", 9092)
        assert there.image.peers[4] == ("h4", 9092)

    play(story)


def test_a_vote_is_given_only_to_the_disk_that_is_registered() -> None:
    """Everybody else holds a voter against its registration."""

    async def story(there: ControllerWorld) -> None:
        where = Whereabouts(there, h4=(4, OTHER_DISK))
        await there.register(4, directory_id=uuid_text(DISK))
        await asyncio.sleep(1)
        add = there.controller.voters.add_voter
        with pytest.raises(ApiError, match="node 4 is registered with another disk") as caught:
            await add(4, OTHER_DISK, "h4", 9092)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        for disk in (b"", DISK):
            with pytest.raises(ApiError, match="this is another disk"):
                await add(4, disk, "h4", 9092)
        where.nodes["h4"] = (4, DISK)
        await add(4, b"", "h4", 9092)
        assert there.image.peers[4] == ("h4", 9092)

    play(story)


def test_a_controller_without_a_directory_id_is_where_it_says() -> None:
    """It cannot tell itself from another node of its id."""

    async def story(there: ControllerWorld) -> None:
        Whereabouts(there)
        await there.controller.voters.update_voter(1, bytes(16), [("written", 1), ("bound", 1)])
        assert there.image.peers[1] == ("written", 1)
        index = there.quorum.index
        await there.controller.voters.update_voter(1, bytes(16), [("bound", 1), ("written", 1)])
        assert there.quorum.index == index
        assert await refused(there.controller.voters.update_voter(1, DISK, [("bound", 1)])) is ErrorCode.INVALID_REQUEST

    play(story)


def test_a_voter_moves_to_where_it_is_found() -> None:
    async def story(there: ControllerWorld) -> None:
        where = Whereabouts(there, new=(3, DISK), other=(2, DISK))
        update = there.controller.voters.update_voter
        await update(3, DISK, [("nowhere", 1), ("other", 1), ("new", 9092)])
        assert there.image.peers[3] == ("new", 9092)
        index = there.quorum.index
        where.nodes["newer"] = (3, DISK)
        await update(3, DISK, [("newer", 9092)])
        assert there.image.peers[3] == ("new", 9092), "an address that works stays"
        del where.nodes["new"]
        assert await refused(update(3, DISK, [("other", 1)])) is ErrorCode.INVALID_REQUEST
        assert await refused(update(3, OTHER_DISK, [("newer", 1)])) is ErrorCode.INVALID_REQUEST
        assert await refused(update(9, DISK, [("newer", 1)])) is ErrorCode.VOTER_NOT_FOUND
        assert there.quorum.index == index
        await update(3, DISK, [("newer", 9092)])
        assert there.image.peers[3] == ("newer", 9092)

    play(story)


@pytest.mark.parametrize("disk", [b"", bytes(16), DISK])
def test_a_voter_of_another_disk_is_not_that_voter(disk: bytes) -> None:
    async def story(there: ControllerWorld) -> None:
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(2 * GRACE_S)
        epoch = await there.register(3, b"second", directory_id=uuid_text(DISK))
        code = await refused(there.register(3, b"third", directory_id=uuid_text(OTHER_DISK)))
        assert code is ErrorCode.INCONSISTENT_VOTER_SET
        assert there.image.brokers[3].epoch == epoch
        assert (
            await refused(there.controller.voters.update_voter(3, OTHER_DISK, [("h", 1)])) is ErrorCode.VOTER_NOT_FOUND
        )
        assert await refused(there.controller.voters.remove_voter(3, OTHER_DISK)) is ErrorCode.VOTER_NOT_FOUND
        await there.controller.voters.remove_voter(3, disk)
        there.quorum.observers = (3,)
        await there.register(3, b"third", directory_id=uuid_text(OTHER_DISK))
        assert there.image.brokers[3].epoch > epoch

    play(story)


def test_the_registration_of_a_voter_stays_while_it_votes() -> None:
    """It says which disk the votes are on."""

    async def story(there: ControllerWorld) -> None:
        there.fall_silent(3)
        there.break_link(3)
        await asyncio.sleep(2 * GRACE_S)
        assert there.image.brokers[3].is_fenced
        with pytest.raises(ApiError, match="broker 3 is a voter: remove its vote first") as caught:
            await there.controller.registry.unregister_broker(3)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert 3 in there.image.brokers
        await there.controller.voters.remove_voter(3, b"")
        await there.controller.registry.unregister_broker(3)
        assert 3 not in there.image.brokers

    play(story)


def test_what_is_unregistered_leaves_no_address_behind() -> None:
    async def story(there: ControllerWorld) -> None:
        await there.register(4)
        there.image.replay(PeerAddressSet(4, "h4", 9092))  # as a controller leaves it that ends in between
        await there.controller.registry.unregister_broker(4)
        assert 4 not in there.image.peers

    play(story)
