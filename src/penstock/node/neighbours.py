"""This node's connections to the other nodes: their addresses, the expected disks, and which nodes to drop.

Every change of the metadata, the members or the leader may change the addresses (`learn`). A voter whose address in the
log differs from its listener reports its new address to the controller (`tell`). Must not know: the content of Raft
messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.cluster.peer_addresses import PeerAddresses
from penstock.cluster.peer_links import PeerLinks
from penstock.cluster.quorum import Quorum
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode

TELL_PAUSE_S = 1.0
LONGEST_TELL_PAUSE_S = 60.0
SETTLED_S = 5.0
"""The wait after a start: other voters may have new addresses, too, and report them soon."""

log = logging.getLogger(__name__)


class Neighbours:
    def __init__(self, node_id: int, addresses: PeerAddresses, links: PeerLinks, quorum: Quorum) -> None:
        self._node_id = node_id
        self._addresses = addresses
        self._links = links
        self._quorum = quorum

    # # -- addresses ----------------------------------------------------------------------

    def voter_addresses(self) -> dict[int, Address]:
        found = {voter: self._addresses.of_voter(voter) for voter in self._quorum.voters}
        return {voter: address for voter, address in found.items() if address is not None}

    def greeted_by(self, node: int, address: str, directory_id: str) -> None:
        self._addresses.greeted_by(node, address, directory_id)
        self._learn_of(node)

    def left_by(self, node: int) -> None:
        """The last connection of this node has closed. If the node is alive, it introduces itself again."""
        self._addresses.forget(node)

    def learn(self) -> None:
        """Includes nodes that were dropped when they left: they may be back."""
        members, leader = self._quorum.members, self._quorum.leader_id
        is_led = leader is not None and self._node_id in members
        for node in dict.fromkeys((*self._addresses.known, *members, *self._links.peers)):
            is_gone = node not in members and node != leader and self._addresses.registered(node) is None
            if is_led and is_gone:
                self._links.forget(node)  # keep what it said: a node introduces itself only once
            else:
                self._learn_of(node)

    def _learn_of(self, node: int) -> None:
        quorum = self._quorum
        self._links.set_addresses(node, self._addresses.to_try(node, quorum.voters, quorum.leader_id))

    # # -- disks --------------------------------------------------------------------------

    def directory_of_voter(self, node: int) -> str:
        """A voter gets messages only if it has this disk: the registered one, which stays the same while it votes.

        Any other node may return with a new disk. So may a voter that was removed and added again without this node
        knowing. It is the leader then, and may be answered.
        """
        quorum, addresses = self._quorum, self._addresses
        if node not in quorum.voters or node == quorum.leader_id:
            return ""
        if max(quorum.applied_index, addresses.ahead_to) < quorum.configuration_index:
            # the applied metadata is older than the voter list: a disk may have changed since
            addresses.look_ahead(quorum)
            if addresses.ahead_to < quorum.configuration_index:  # while a snapshot is being installed
                return ""
        return addresses.directory_of(node)

    def directory_of_sender(self, node: int) -> str:
        """Without a known leader any node may be the leader, so its messages are accepted. Answers follow the rule
        above.
        """
        return "" if self._quorum.leader_id is None else self.directory_of_voter(node)

    # # -- this node ----------------------------------------------------------------------

    async def tell(
        self, update: Callable[[str, Sequence[Address]], Awaitable[None]], directory_id: str, own: Sequence[Address]
    ) -> None:
        """Report this voter's address if the log has another one or none. `own`: the address in its file, if any, then
        its listener. If the controller cannot connect to that address, this voter keeps reporting it: the network may
        be fixed without a restart. After the report, or after the first refusal, it warns of voters whose address in
        the file differs from the log.
        """
        node_id, said, pause_s = self._node_id, list(dict.fromkeys(own)), TELL_PAUSE_S
        is_refused = False
        while node_id in self._quorum.voters and self._addresses.said_of(node_id) != own[-1]:
            try:
                await update(directory_id, said)
                break
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER and not is_refused:
                    is_refused = True
                    where = " or ".join(f"{host}:{port}" for host, port in said)
                    log.warning(
                        "the controller does not find this voter at %s (%s): see the controller's log", where, error
                    )
                    await self._warn_of_file()
                if error.code is ErrorCode.VOTER_NOT_FOUND:
                    break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_TELL_PAUSE_S)
        if not is_refused:
            await self._warn_of_file()

    async def _warn_of_file(self) -> None:
        await asyncio.sleep(SETTLED_S)
        for sentence in self._addresses.contradictions(self._quorum.voters):
            log.warning("%s", sentence)
