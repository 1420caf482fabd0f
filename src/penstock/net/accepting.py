"""Accepts connections on listening sockets, for a listener.

Must not know: connections once they are accepted, or their bounds. If the process has no free descriptor, the kernel
keeps clients in the backlog, and accepting goes on half a second later.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Protocol

from penstock.model.errors import ConfigError
from penstock.net.channel import SocketChannel
from penstock.ports.channel import Channel, Receiver

BACKLOG = 512
ACCEPTS_PER_TURN = 64
PAUSE_S = 0.5


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host. An empty host means all interfaces, IPv4 and IPv6."""
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"cannot resolve the listener's host '{host}': {error.strerror}") from error
    sockets: list[socket.socket] = []
    chosen_port = port
    for family, kind, protocol, _, address in sorted(infos, key=lambda info: info[0]):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], chosen_port, *address[2:]))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if family == socket.AF_INET6 and sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # no IPv6 on this machine
            for other in sockets:
                other.close()
            raise ConfigError(_bind_error(host, port, error)) from error
        sock.setblocking(False)
        sockets.append(sock)
        chosen_port = sock.getsockname()[1]  # port 0: the same free port for both families
    return sockets


def _bind_error(host: str, port: int, error: OSError) -> str:
    place = f"{host or '*'}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {place}: the port is taken; stop the other process or choose another port"
    if error.errno == errno.EACCES:
        return f"cannot listen on {place}: permission denied; ports below 1024 need privileges"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {place}: this machine has no such address"
    return f"cannot listen on {place}: {error.strerror}"


class AcceptedChannel(Channel, Protocol):
    """The channel of a connection that was just accepted. Nothing is read before `start`."""

    def start(self, receiver: Receiver) -> None: ...


class Host(Protocol):
    """The part of a listener that its source of connections uses."""

    def admits(self, ip: str) -> bool:
        """Whether one more connection from this address is within the bounds."""
        ...

    def adopt(self, channel: AcceptedChannel, descriptor: int | None = None) -> object:
        """Serves a new connection. `descriptor`: of its socket, if it has one."""
        ...

    def not_accepted(self, error: OSError) -> None: ...


class ConnectionSource(Protocol):
    """The source of a listener's connections."""

    @property
    def port(self) -> int: ...

    def open(self, host: Host) -> None: ...

    def close(self) -> None:
        """Nothing is accepted any more. Also without `open` before."""
        ...


class ListeningSockets:
    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: list[socket.socket]) -> None:
        self._loop = loop
        self._sockets = sockets
        self._host: Host | None = None

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    def open(self, host: Host) -> None:
        self._host = host
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock, host)

    def close(self) -> None:
        for sock in self._sockets:
            if self._host is not None:
                self._loop.remove_reader(sock.fileno())
            sock.close()

    def _accept(self, listening: socket.socket, host: Host) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # EMFILE or similar: the kernel keeps the client in the backlog, so accept again soon.
                host.not_accepted(error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(PAUSE_S, self._accept_again, listening, host)
                return
            if not host.admits(address[0]):
                sock.close()
                continue
            try:
                channel = SocketChannel(self._loop, sock)
            except OSError:
                sock.close()  # the peer has already disconnected
                continue
            host.adopt(channel, sock.fileno())

    def _accept_again(self, listening: socket.socket, host: Host) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening, host)
