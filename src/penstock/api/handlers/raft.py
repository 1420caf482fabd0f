"""Receives messages from the other servers of the cluster (private API key 0x7001, unadvertised), for Raft.

- The first payload of a connection is a hello: sender, recipient and cluster. A stranger is refused with a reason,
  which both sides log, and further messages on that connection are not accepted.
- Hello and ping are answered, Raft's messages are not: their responses use the connection of the other side.
- A message closes the connection if its sender differs from the hello, if another disk has the sender's vote now, or if
  its bytes are invalid.
- A repeated hello checks the disk again; if the disk differs, the connection's messages are no longer accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Protocol

from penstock.cluster.raft_codec import PING, Hello, decode_hello, is_hello, sender_of
from penstock.model.errors import ProtocolError
from penstock.net.connection import Connection
from penstock.wire.peers import PEER_API_KEY, peer_answer

log = logging.getLogger(__name__)


class Introduced(Protocol):
    """Tracks the nodes that have introduced themselves: `node.neighbours.Neighbours`."""

    def greeted_by(self, node: int, address: str, directory_id: str) -> None:
        """The node, its address and its disk."""
        ...

    def left_by(self, node: int) -> None:
        """The last connection of that node is closed."""
        ...

    def directory_of_sender(self, node: int) -> str:
        """The directory id that the node must have; empty: any."""
        ...


class RaftHandler:
    """A `PrivateHandler`."""

    key: ClassVar[int] = PEER_API_KEY

    def __init__(
        self,
        node_id: int,
        cluster_id: Callable[[], str],
        deliver: Callable[[memoryview], None],
        introduced: Introduced,
        directory_id: str,
    ) -> None:
        """`deliver` is `Quorum.receive`: the payload is valid during the call only; raises ProtocolError.

        An empty cluster id is not known yet; it matches every other.
        """
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._deliver = deliver
        self._introduced = introduced
        self._directory_id = directory_id
        self._senders: dict[Connection, Hello] = {}

    def is_peer(self, connection: Connection) -> bool:
        """Whether a node of this cluster is at the other end."""
        return connection in self._senders

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        """Answers the slot, or raises ProtocolError."""
        if is_hello(payload):
            reason = self._greet(connection, decode_hello(payload))
            connection.reply(slot, [peer_answer(correlation_id, reason)])
            return
        hello = self._senders.get(connection)
        if hello is None:
            raise ProtocolError("a message between nodes without an accepted hello")
        if payload == PING:
            connection.reply(slot, [peer_answer(correlation_id)])
            return
        if sender_of(payload) != hello.sender:
            raise ProtocolError(f"node {hello.sender} sent a message in the name of node {sender_of(payload)}")
        if reason := self._why_not_with_disk(hello):
            raise ProtocolError(reason)
        connection.reply(slot, [])
        self._deliver(payload)

    def _greet(self, connection: Connection, hello: Hello) -> str:
        reason = self._why_not(hello)
        if reason:
            level = logging.DEBUG if self._is_own(hello) else logging.WARNING  # the dialing side logs it, too
            log.log(level, "refused node %d (%s): %s", hello.sender, connection.id, reason)
            self._forget(connection)
        elif connection not in self._senders:
            self._senders[connection] = hello
            self._introduced.greeted_by(hello.sender, hello.address, hello.directory_id)
            connection.when_closed[partial(self._forget, connection)] = None
        return reason

    def _forget(self, connection: Connection) -> None:
        gone = self._senders.pop(connection, None)
        if gone is None:
            return
        left = [hello for hello in self._senders.values() if hello.sender == gone.sender]
        if left:
            self._introduced.greeted_by(left[-1].sender, left[-1].address, left[-1].directory_id)
        else:
            self._introduced.left_by(gone.sender)

    def _why_not(self, hello: Hello) -> str:
        own = self._cluster_id()
        if hello.cluster_id and own and hello.cluster_id != own:
            return f"it belongs to cluster {hello.cluster_id}, this is cluster {own}"
        if hello.sender == self._node_id and not self._is_own(hello):
            return f"node.id {self._node_id} is in use twice: give each node its own"
        if hello.recipient != self._node_id:
            itself = " itself" if self._is_own(hello) else ""
            return f"this is node {self._node_id}{itself}, not node {hello.recipient}"
        if hello.recipient_directory_id not in ("", self._directory_id):
            own_id = self._directory_id or "missing"
            return (
                f"this is node {self._node_id} with another disk: the directory id is {own_id}, "
                f"not {hello.recipient_directory_id}"
            )
        return self._why_not_with_disk(hello)

    def _why_not_with_disk(self, hello: Hello) -> str:
        expected = self._introduced.directory_of_sender(hello.sender)
        if expected and hello.directory_id not in ("", expected):
            return (
                f"node {hello.sender} votes with another disk: the directory id is {expected}, not {hello.directory_id}"
            )
        return ""

    def _is_own(self, hello: Hello) -> bool:
        """A node that dials itself: its data directory is locked while its process runs."""
        return hello.sender == self._node_id and hello.directory_id == self._directory_id != ""
