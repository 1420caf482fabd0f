"""The voters of the metadata quorum and their addresses. A part of the controller (see `cluster.agreement`).

The address of a voter is a metadata record, set before the node votes and removed afterwards; for other nodes the
registration counts. Before a node gets a vote, or a voter another address, the node at that address must confirm its
identity. Must not know: sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from penstock.cluster.agreement import Agreement
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import MetadataRecord, PeerAddressRemoved, PeerAddressSet
from penstock.core.metadata.requests import uuid_text
from penstock.core.raft.core import Status
from penstock.core.raft.exchange import Change
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode

WhyNotAt: TypeAlias = Callable[[Address, int, str], Awaitable[str]]
"""Why the node at an address is not the expected one, with the named disk if any; empty if it is."""

log = logging.getLogger(__name__)


class QuorumMembers(Protocol):
    """The part of `cluster.quorum.Quorum` that decisions on members use."""

    @property
    def status(self) -> Status: ...

    async def change_membership(self, change: Change, node: int) -> None: ...


class VoterDecisions:
    def __init__(
        self,
        node_id: int,
        agreement: Agreement,
        quorum: QuorumMembers,
        image: MetadataImage,
        why_not_at: WhyNotAt,
        first_addresses: Mapping[int, Address],
    ) -> None:
        """`first_addresses`: the addresses of a new cluster's voters in this node's file."""
        self._node_id = node_id
        self._agreement = agreement
        self._quorum = quorum
        self.image = image
        self._why_not_at = why_not_at
        self._first_addresses = first_addresses

    @property
    def _voters(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.voters

    @property
    def _observers(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.observers

    def first_addresses(self) -> list[MetadataRecord]:
        voters = self._voters
        return [PeerAddressSet(node, *where) for node, where in self._first_addresses.items() if node in voters]

    async def add_voter(self, voter_id: int, directory_id: bytes, host: str, port: int) -> None:
        disk = self._check_may_be_added(voter_id, uuid_text(directory_id))
        why = await self._why_not_at((host, port), voter_id, disk)
        if why:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"give the address where the others reach node {voter_id}: {why}")
        async with self._agreement.turn:
            self._check_may_be_added(voter_id, disk)
            await self._agreement.commit([PeerAddressSet(voter_id, host, port)])
        is_new = voter_id not in self._observers
        if is_new:
            await self._quorum.change_membership(Change.ADD_OBSERVER, voter_id)
        try:
            await self._quorum.change_membership(Change.ADD_VOTER, voter_id)
        except ApiError:
            await self._forget_address(voter_id)
            if is_new and voter_id not in self.image.brokers:  # it has never registered
                await self._forget_observer(voter_id)
            raise

    async def _forget_observer(self, node: int) -> None:
        try:
            await self._quorum.change_membership(Change.REMOVE_OBSERVER, node)
        except ApiError as error:
            log.warning("node %d stays an observer although it was not added as a voter: %s", node, error)

    def _check_may_be_added(self, voter_id: int, asked: str) -> str:
        """The directory id that the voter must have, if known: the other voters compare it with the registered one."""
        self._agreement.check_active()
        if voter_id in self._voters:
            raise ApiError(ErrorCode.DUPLICATE_VOTER, f"node {voter_id} is a voter already")
        broker = self.image.brokers.get(voter_id)
        registered = "" if broker is None else broker.directory_id
        if asked and registered and asked != registered:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"node {voter_id} is registered with another disk: the directory id is {registered}, not {asked}",
            )
        return asked or registered

    async def update_voter(self, voter_id: int, directory_id: bytes, addresses: Sequence[Address]) -> None:
        """A voter reports its addresses. If it is found at the known address, that stays; else the first working one
        counts.
        """
        self._check_is_voter(voter_id, directory_id)
        known = self.image.peers.get(voter_id)
        if voter_id == self._node_id and not any(directory_id):
            # Without a directory id it cannot be distinguished from another node with its id, and it refuses
            # connections to itself.
            if known not in addresses:
                await self._move_voter(voter_id, directory_id, addresses[0])
            return
        if known is not None and not await self._why_not_at(known, voter_id, uuid_text(directory_id)):
            return
        reasons: list[str] = []
        for address in addresses:
            why = await self._why_not_at(address, voter_id, uuid_text(directory_id))
            if not why:
                await self._move_voter(voter_id, directory_id, address)
                return
            reasons.append(why)
        log.warning("voter %d reported a new address, but is not found there: %s", voter_id, "; ".join(reasons))
        raise ApiError(ErrorCode.INVALID_REQUEST, "; ".join(reasons))

    async def _move_voter(self, voter_id: int, directory_id: bytes, address: Address) -> None:
        async with self._agreement.turn:
            self._check_is_voter(voter_id, directory_id)
            known = self.image.peers.get(voter_id)
            await self._agreement.commit([PeerAddressSet(voter_id, *address)])
        before = "" if known is None else f", it was at {known[0]}:{known[1]}"
        log.info("voter %d is at %s:%d now%s", voter_id, *address, before)

    def _check_is_voter(self, voter_id: int, directory_id: bytes, *, is_disk_needed: bool = True) -> None:
        self._agreement.check_active()
        if voter_id not in self._voters:
            raise ApiError(ErrorCode.VOTER_NOT_FOUND, f"node {voter_id} is not a voter")
        broker = self.image.brokers.get(voter_id)
        registered = "" if broker is None else broker.directory_id
        if is_disk_needed and registered and registered != uuid_text(directory_id):
            raise ApiError(
                ErrorCode.VOTER_NOT_FOUND, f"node {voter_id} votes with another disk: its directory id is {registered}"
            )

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """With any disk, unless one is named."""
        self._check_is_voter(voter_id, directory_id, is_disk_needed=any(directory_id))
        await self._quorum.change_membership(Change.REMOVE_VOTER, voter_id)
        await self._forget_address(voter_id)

    async def _forget_address(self, node: int) -> None:
        """Forget the voter address of a node that does not vote. If this fails, nothing breaks: the registration
        counts.
        """
        try:
            async with self._agreement.turn:
                if self._agreement.is_active and node not in self._voters:
                    await self._agreement.commit(self.address_removed(node))
        except ApiError as error:
            log.info("the voter address of node %d could not be removed from the metadata: %s", node, error)

    def address_removed(self, node: int) -> list[MetadataRecord]:
        return [PeerAddressRemoved(node)] if node in self.image.peers and node not in self._voters else []
