"""The channel port: bytes and file ranges out, buffers in.

Implementation: `net.channel.SocketChannel` (plain TCP, sendfile). TLS and the simulated network
use the same port. The split follows asyncio's BufferedProtocol: the receiver owns the memory, the
channel fills it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from penstock.ports.disk import Buffer, FileSlice

Part: TypeAlias = bytes | FileSlice


class Receiver(Protocol):
    def receive_buffer(self) -> Buffer:
        """Writable memory for the next bytes; never empty."""
        ...

    def received(self, size: int) -> None: ...

    def writable(self) -> None:
        """The channel's queue fell below its low mark after exceeding the high one."""
        ...

    def closed(self, error: OSError | None) -> None:
        """Called once, whichever side closed."""
        ...


class Channel(Protocol):
    @property
    def peer(self) -> tuple[str, int]: ...

    @property
    def local(self) -> tuple[str, int]:
        """The address the client used to reach this broker."""
        ...

    @property
    def queued_bytes(self) -> int: ...

    def send(self, parts: Iterable[Part]) -> None:
        """Queue in order and write as much as the peer accepts now. Never blocks."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_peer_gone(self) -> bool:
        """Whether the peer has closed its side; detected even while reading is paused."""
        ...

    def close(self, *, drain: bool = False) -> None:
        """Stop reading; with `drain`, close after the queue is written."""
        ...
