"""The addresses at which to look for each other node of the quorum, the best first.

    a voter           the address in the log (from `add-voter`, or reported by the voter at its start), then its
                      registration. The configured address is used if the log has none. Without a leader it is tried in
                      any case: all nodes may have moved at once
    any other node    its registration, whatever it was before
    last              the address in its hello to this node, if no other is known, or it has the same disk, or it leads:
                      its messages arrive here, so they must be answered

After a start this uses the whole log, later the applied part (`cluster.log_ahead`). An address does not prove which
node listens there: every connection begins with a hello that names both nodes, the cluster, and the disk if known. Must
not know: connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from penstock.cluster.log_ahead import LogAhead, LogView
from penstock.core.metadata.image import MetadataImage
from penstock.model.addresses import Address


class Greeting(NamedTuple):
    address: Address
    directory_id: str


class PeerAddresses:
    def __init__(self, image: MetadataImage, configured: Mapping[int, Address]) -> None:
        """`configured`: the voters' addresses in this node's file."""
        self._applied = image
        self._ahead: LogAhead | None = None
        self._configured = configured
        self._greetings: dict[int, Greeting] = {}

    def look_ahead(self, log: LogView) -> None:
        """Use the part of the log that is not applied yet, until it is."""
        self._ahead = LogAhead(self._applied, log)

    @property
    def ahead_to(self) -> int:
        """The log index up to which this knows more than the applied part; 0: no more."""
        return self._ahead.index if self._ahead is not None else 0

    @property
    def _image(self) -> MetadataImage:
        return self._ahead.image if self._ahead is not None and self._ahead.index else self._applied

    def greeted_by(self, node: int, address: str, directory_id: str) -> None:
        host, _, port = address.rpartition(":")
        if host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536:
            self._greetings[node] = Greeting((host, int(port)), directory_id)

    def forget(self, node: int) -> None:
        self._greetings.pop(node, None)

    @property
    def known(self) -> list[int]:
        """Nodes in the metadata or the file, and nodes that have sent a hello."""
        return list(dict.fromkeys((*self._configured, *self._image.brokers, *self._image.peers, *self._greetings)))

    def to_try(self, node: int, voters: Collection[int], leader: int | None) -> tuple[Address, ...]:
        """Without duplicates; empty if no address is known."""
        found = list(self._of_voter(node, leader is not None) if node in voters else self._of_other(node))
        if (greeting := self._greetings.get(node)) is not None:
            directory_id = self.directory_of(node)
            if not found or node == leader or (directory_id and greeting.directory_id == directory_id):
                found.append(greeting.address)
        return tuple(dict.fromkeys(found))

    def _of_voter(self, node: int, is_led: bool) -> Iterator[Address]:
        said = self._image.peers.get(node)
        if said is not None:
            yield said
        if node in self._configured and (said is None or not is_led):
            yield self._configured[node]
        if (registered := self.registered(node)) is not None:
            yield registered

    def _of_other(self, node: int) -> Iterator[Address]:
        address = self.registered(node) or self._image.peers.get(node) or self._configured.get(node)
        if address is not None:
            yield address

    def registered(self, node: int) -> Address | None:
        broker = self._image.brokers.get(node)
        return next(iter(broker.endpoints.values()), None) if broker is not None else None

    def said_of(self, node: int) -> Address | None:
        """The address in the log."""
        return self._image.peers.get(node)

    def of_voter(self, node: int) -> Address | None:
        """The address to pass on to other nodes."""
        return self._image.peers.get(node) or self._configured.get(node) or self.registered(node)

    def for_requests(self, node: int) -> Address | None:
        """The address for all requests but Raft. The node's own report wins over the file, which may be old."""
        greeting = self._greetings.get(node)
        said = self._image.peers.get(node) or (greeting.address if greeting is not None else None)
        return self.registered(node) or said or self._configured.get(node)

    def directory_of(self, node: int) -> str:
        """The directory id of its disk, as registered; empty if unknown."""
        broker = self._image.brokers.get(node)
        return "" if broker is None else broker.directory_id

    def contradictions(self, voters: Collection[int]) -> Iterator[str]:
        """A sentence for each voter whose address in this node's file differs from the log."""
        for voter in sorted(voters):
            said, written = self._image.peers.get(voter), self._configured.get(voter)
            if said is not None and written is not None and said != written:
                yield (
                    f"controller.quorum.voters names {voter}@{written[0]}:{written[1]}, but the quorum has node "
                    f"{voter} at {said[0]}:{said[1]}, which is used instead: correct the file"
                )
