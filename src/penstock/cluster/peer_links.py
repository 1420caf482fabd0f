"""Connections to the other servers of the cluster: one outgoing connection to each, reconnected as long as needed.

Messages from A to B use A's connection, B's responses use B's own. A connection is up when the other side has answered
the hello, which names both servers and the cluster. A process that dies closes its sockets at once, and `peer_lost`
reports that. A silent connection is closed after `SILENCE_S` without an answer to a ping. After a loss the first
attempt to connect follows at once, the next ones after 20 to 200 ms. A peer may have several addresses: each is tried
in turn, until the peer itself answers. If the peer must have another disk than its hello named, the hello is repeated
before the next message: a peer without that disk gets no further messages on the connection.

Delivery is not guaranteed: a message that does not fit the bounded queue, or is queued when the connection breaks, is
lost. Must not know: the meaning of a payload, the leader.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from penstock.broker_link.introduction import IntroductionRefused, PeerIdentity, dial
from penstock.cluster.raft_codec import PING, Hello, encode_hello
from penstock.model.addresses import Address
from penstock.model.errors import ProtocolError
from penstock.ports.clock import Clock
from penstock.wire.peers import PeerAnswers, peer_frame

CONNECT_TIMEOUT_S: Final = 1.0
GREETING_TIMEOUT_S: Final = 3.0
PING_EVERY_S: Final = 1.0
SILENCE_S: Final = 3.0
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.2
REFUSED_PAUSE_S: Final = 5.0
"""A setting must be changed first."""
MAX_QUEUED: Final = 64
MAX_QUEUED_BYTES: Final = 16 << 20
"""The limit for one peer: messages before the connection is up, then bytes that the kernel has not taken yet."""

log = logging.getLogger(__name__)


class PeerEvents(Protocol):
    """Notified of lost and restored peers, and asked for the disk of each. Called from `start` on."""

    def peer_lost(self, peer: int) -> None:
        """A connection broke. Called again whenever the peer's address refuses a connection."""
        ...

    def peer_back(self, peer: int) -> None:
        """A connection is up."""
        ...

    def directory_of(self, peer: int) -> str:
        """The directory id that a peer must have; empty: any."""
        ...


class PeerLinks:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        identity: PeerIdentity,
        cluster_id: str,
        addresses: Mapping[int, Address],
        clock: Clock,
        events: PeerEvents,
        own_address: str = "",
    ) -> None:
        """An empty cluster id is not known yet; it matches every other. `own_address`: host:port for peers that do not
        know it; empty: they do.
        """
        self.loop = loop
        self.identity = identity
        self.node_id = node_id = identity.node_id
        self.cluster_id = cluster_id
        self.events = events
        self._own_address = own_address
        self.directory_id = identity.directory_id
        """The directory id of this node's disk."""
        self.clock = clock
        self._addresses: dict[int, tuple[Address, ...]] = {
            peer: (address,) for peer, address in addresses.items() if peer != node_id
        }
        self._links: dict[int, _Link] = {}
        self._is_started = False
        self.losses = 0

    def start(self) -> None:
        self._is_started = True
        for peer, addresses in self._addresses.items():
            self._links[peer] = _Link(self, peer, addresses)

    def stop(self) -> None:
        self._is_started = False
        for link in self._links.values():
            link.close()
        self._links.clear()

    @property
    def peers(self) -> list[int]:
        return list(self._addresses)

    def set_addresses(self, peer: int, addresses: Sequence[Address]) -> None:
        """Set the addresses of a new peer, or of one that may have moved; the best first. An open connection stays."""
        addresses = tuple(addresses)
        if peer == self.node_id or not addresses or self._addresses.get(peer) == addresses:
            return
        self._addresses[peer] = addresses
        if (link := self._links.get(peer)) is not None:
            link.set_addresses(addresses)
        elif self._is_started:
            self._links[peer] = _Link(self, peer, addresses)

    def forget(self, peer: int) -> None:
        self._addresses.pop(peer, None)
        if (link := self._links.pop(peer, None)) is not None:
            link.close()

    def send(self, peer: int, payload: bytes) -> None:
        if (link := self._links.get(peer)) is not None:
            link.send(payload)

    def lost_since(self, peer: int) -> float | None:
        """When the connection went down, by the monotonic clock; None while it is up. A peer never reached is lost,
        too.
        """
        link = self._links.get(peer)
        return link.lost_at_s if link is not None else None

    @property
    def has_silent_peer(self) -> bool:
        """Whether some peer does not answer at all: its machine or network is gone, or this one's."""
        return any(link.lost_at_s is not None and not link.is_refused for link in self._links.values())

    def is_up(self, peer: int) -> bool:
        link = self._links.get(peer)
        return link is not None and link.lost_at_s is None

    def hello_to(self, peer: int, directory_id: str) -> Hello:
        return Hello(self.node_id, peer, self.cluster_id, self._own_address, self.directory_id, directory_id)

    async def why_not_at(self, address: Address, peer: int, directory_id: str = "") -> str:
        """Return an empty string if `peer` listens there, with that disk if one is named; else a sentence."""
        at = f"{address[0]}:{address[1]}"
        try:
            wire = await _greeted(self.loop, address, self.identity, self.hello_to(peer, directory_id))
        except (socket.gaierror, UnicodeError):
            return f"the name {address[0]} does not resolve"
        except OverflowError:
            return f"{address[1]} is not a port"
        except ConnectionRefusedError:
            return f"nothing listens at {at}"
        except TimeoutError:
            return f"no answer from {at}"
        except IntroductionRefused as error:
            return f"{at} says: {error}"
        except OSError as error:
            return f"no node of this cluster answers at {at} ({error.strerror or error})"
        wire.drop()
        return f"{at} says: {wire.refusal}" if wire.refusal else ""


async def _greeted(loop: asyncio.AbstractEventLoop, address: Address, identity: PeerIdentity, hello: Hello) -> _Wire:
    """A connection whose hello was answered, perhaps with a refusal. Raises OSError (including TimeoutError and
    IntroductionRefused), UnicodeError for an invalid host name, and OverflowError for an invalid port.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        introduction = await dial(loop, *address, identity, hello.recipient)
    async with asyncio.timeout(GREETING_TIMEOUT_S):
        wire = await introduction.hand_over(lambda: _Wire(loop))
    try:
        wire.greet(hello)
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            await wire.greeted
    except BaseException:
        wire.drop()
        raise
    return wire


class _Link:
    """One peer: connecting, up, lost, connecting again."""

    def __init__(self, links: PeerLinks, peer: int, addresses: tuple[Address, ...]) -> None:
        self._links = links
        self._loop = links.loop
        self._peer = peer
        self._addresses = addresses
        self._address = addresses[0]
        """The address of the current or last connection."""
        self._wire: _Wire | None = None
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._refusals: dict[Address, tuple[str, float]] = {}
        """Why the listener there is not the peer, and when it said so."""
        self.is_refused = False
        """The machine answers, but the port is closed."""
        self.lost_at_s: float | None = links.clock.monotonic()
        self._task = self._loop.create_task(self._keep_up())

    def close(self) -> None:
        self._task.cancel()
        if self._wire is not None:
            self._wire.drop()
            self._wire = None

    def set_addresses(self, addresses: tuple[Address, ...]) -> None:
        """Use these from now on. An open connection leads to the peer itself and stays."""
        self._addresses = addresses
        if self._wire is not None:
            return
        self._task.cancel()
        self._refusals = {address: said for address, said in self._refusals.items() if address in addresses}
        self._task = self._loop.create_task(self._keep_up())

    def send(self, payload: bytes) -> None:
        if self._wire is None:
            self._queue.append(payload)
            return
        self._insist_on_disk(self._wire)
        if not self._wire.send(payload):
            log.debug("dropped a message to node %d: the queue to it is full", self._peer)

    def _insist_on_disk(self, wire: _Wire) -> None:
        directory_id = self._links.events.directory_of(self._peer)
        if directory_id and directory_id != wire.directory_id:
            wire.greet(self._links.hello_to(self._peer, directory_id))

    async def _keep_up(self) -> None:
        pause_s = 0.0
        while True:
            if pause_s:
                await asyncio.sleep(pause_s)
            wire = await self._reach()
            if wire is None:
                pause_s = max(min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S), self._refused_for_s())
            else:
                began_s = self._loop.time()
                self._is_up(wire)
                await wire.lost
                self._is_lost()
                # A connection that breaks at once is not retried at once, to avoid a busy loop.
                pause_s = 0.0 if self._loop.time() - began_s > LONGEST_PAUSE_S else FIRST_PAUSE_S

    async def _reach(self) -> _Wire | None:
        """A connection to the peer itself, at the first address where it answers."""
        for address in self._addresses:
            if self._left_s(address) > 0:
                continue
            try:
                wire = await self._connect(address)
            except IntroductionRefused as error:
                self._complain(address, str(error))
                continue
            if wire is None:
                continue
            if not wire.refusal:
                self._address = address
                return wire
            wire.drop()
            self._complain(address, wire.refusal)
        return None

    def _left_s(self, address: Address) -> float:
        """How long until a refused address is tried again."""
        known = self._refusals.get(address)
        return 0.0 if known is None else known[1] + REFUSED_PAUSE_S - self._loop.time()

    def _refused_for_s(self) -> float:
        """How long until the first of the addresses may be tried again."""
        return min(self._left_s(address) for address in self._addresses)

    async def _connect(self, address: Address) -> _Wire | None:
        """Answered, or refused with a reason; None: not reachable. Raises IntroductionRefused."""
        links, peer = self._links, self._peer
        is_best = address == self._addresses[0]
        if is_best:
            self.is_refused = False
        try:
            hello = links.hello_to(peer, links.events.directory_of(peer))
            return await _greeted(self._loop, address, links.identity, hello)
        except IntroductionRefused:
            raise
        except ConnectionRefusedError:
            if is_best:  # a refusal at another address proves little
                self.is_refused = True
                # Reported again, because a message sent before its death may have arrived meanwhile.
                links.events.peer_lost(peer)
        except (OSError, UnicodeError, OverflowError):  # an invalid host name or port
            pass
        return None

    def _complain(self, address: Address, refusal: str) -> None:
        said, _ = self._refusals.get(address, ("", 0.0))
        self._refusals[address] = refusal, self._loop.time()
        if refusal != said:
            log.warning("node %d at %s:%d refuses this node: %s", self._peer, *address, refusal)

    def _is_up(self, wire: _Wire) -> None:
        self._wire, self.lost_at_s = wire, None
        self._refusals.clear()
        wire.begin_pinging()
        queued, self._queue = self._queue, deque(maxlen=MAX_QUEUED)
        self._insist_on_disk(wire)
        for payload in queued:
            wire.send(payload)
        log.info("connected to node %d at %s:%d", self._peer, *self._address)
        self._links.events.peer_back(self._peer)

    def _is_lost(self) -> None:
        self._wire = None
        self._links.losses += 1
        self.lost_at_s = self._links.clock.monotonic()
        log.info("lost the connection to node %d at %s:%d", self._peer, *self._address)
        self._links.events.peer_lost(self._peer)


class _Wire(asyncio.Protocol):
    """One connection from start to end. Answers are counted, not matched: they come in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._answers = PeerAnswers()
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at_s: float | None = None
        """When the unanswered ping was sent."""
        self.directory_id = ""
        """The directory id that the hello named; empty: any."""
        self.refusal = ""
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def greet(self, hello: Hello) -> None:
        self.directory_id = hello.recipient_directory_id
        if self._transport is not None:
            self._transport.write(peer_frame(encode_hello(hello)))

    def send(self, payload: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            return False
        transport.write(peer_frame(payload))
        return True

    def begin_pinging(self) -> None:
        self._timer = self._loop.call_later(PING_EVERY_S, self._ping)

    def _ping(self) -> None:
        if self._transport is None:
            return
        now_s = self._loop.time()
        if self._asked_at_s is None:
            self._asked_at_s = now_s
            self._transport.write(peer_frame(PING))
        elif now_s - self._asked_at_s >= SILENCE_S:
            self.drop()
            return
        self._timer = self._loop.call_later(PING_EVERY_S, self._ping)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._answers.feed(data)
        except ProtocolError as error:
            log.warning("closed a connection to another node: %s", error)
            self.drop()
            return
        for _, reason in answers:
            self._asked_at_s = None
            if not self.greeted.done():
                self.refusal = reason
                self.greeted.set_result(None)
            elif reason:
                self.drop()  # another node listens there now; the next hello tells which
                return

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("closed before the hello was answered"))
            self.greeted.exception()  # the waiting caller may have given up
        if not self.lost.done():
            self.lost.set_result(None)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
