"""Where the nodes of a test cluster live, and how they are cut off from each other.

`LOOPBACK`: all on 127.0.0.1, nothing can be cut. `RoutedNetwork`: a network namespace a node around one that routes
between them, and a leg into the tests' own namespace, where clients live. A cut is a policy rule in the router that
drops what one sends to another: packets vanish, nobody gets a reset, as behind a pulled cable. It works in one
direction if need be. Needs root and iproute2 (no nft, no tc).
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
from types import TracebackType

CLIENTS = 0
"""Stands for the tests' own namespace where a node id is expected."""


class NetworkUnavailable(RuntimeError):
    """This machine, or this user, cannot make network namespaces."""


class Network:
    """All nodes on the loopback address."""

    def host_of(self, node_id: int) -> str:
        return "127.0.0.1"

    def command_prefix(self, node_id: int) -> list[str]:
        return []

    def free_port(self, node_id: int) -> int:
        with socket.create_server((self.host_of(node_id), 0)) as server:
            return int(server.getsockname()[1])


LOOPBACK = Network()


class RoutedNetwork(Network):
    """Up to `node_count` nodes; made on entry, gone on exit. Names carry the process id: runs do not collide."""

    _serial = itertools.count()
    PORT = 9092

    def __init__(self, node_count: int) -> None:
        self._name = f"ps{os.getpid()}x{next(self._serial)}"
        # 198.18.0.0/15 is set aside for tests of network devices: no real host is hidden by it.
        self._subnet = f"198.18.{os.getpid() % 250}"
        self._node_ids = range(1, node_count + 1)
        self._namespaces: list[str] = []
        self._cuts: list[tuple[str, str]] = []

    def host_of(self, node_id: int) -> str:
        return f"{self._subnet}.{250 if node_id == CLIENTS else node_id}"

    def command_prefix(self, node_id: int) -> list[str]:
        return ["ip", "netns", "exec", self._namespace(node_id)]

    def free_port(self, node_id: int) -> int:
        return self.PORT  # a namespace of its own: every port is free

    # -- cables -------------------------------------------------------------------------

    def cut(self, source: int, target: int) -> None:
        """Bytes from `source` to `target` are lost from now on; the other direction is not touched."""
        pair = (self.host_of(source), self.host_of(target))
        self._router("rule", "add", "from", pair[0], "to", pair[1], "blackhole")
        self._cuts.append(pair)

    def isolate(self, node_id: int, *, from_clients: bool = False) -> None:
        """Cut a node off from all other nodes, both ways."""
        others = [other for other in self._node_ids if other != node_id] + ([CLIENTS] if from_clients else [])
        for other in others:
            self.cut(node_id, other)
            self.cut(other, node_id)

    def heal(self) -> None:
        while self._cuts:
            source, target = self._cuts.pop()
            self._router("rule", "del", "from", source, "to", target, "blackhole")

    # -- making and ending --------------------------------------------------------------

    def _namespace(self, node_id: int) -> str:
        return f"{self._name}n{node_id}"

    @property
    def _gateway(self) -> str:
        return f"{self._subnet}.254"

    def _router(self, *arguments: str) -> None:
        _ip("-n", f"{self._name}r", *arguments)

    def __enter__(self) -> RoutedNetwork:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NetworkUnavailable("network namespaces need root and iproute2")
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        router = f"{self._name}r"
        self._add_namespace(router)
        forwarding = "import pathlib; pathlib.Path('/proc/sys/net/ipv4/ip_forward').write_text('1')"
        try:
            _run("ip", "netns", "exec", router, sys.executable, "-c", forwarding)
        except subprocess.CalledProcessError as error:  # in a chroot, for one, whose root is no mount point
            raise NetworkUnavailable(f"ip netns exec: {error.stderr.strip()}") from None
        for node_id in self._node_ids:
            name, host, leg = self._namespace(node_id), self.host_of(node_id), f"leg{node_id}"
            self._add_namespace(name)
            _ip("link", "add", leg, "netns", router, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._connect_leg(leg, host)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", host, "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "route", "add", "default", "via", self._gateway, "dev", "eth0", "onlink")
        here, clients = self._name, self.host_of(CLIENTS)
        _ip("link", "add", here, "type", "veth", "peer", "name", "clients", "netns", router)
        self._connect_leg("clients", clients)
        _ip("addr", "add", clients, "dev", here)
        _ip("link", "set", here, "up")
        subnet = f"{self._subnet}.0/24"
        _ip("route", "add", subnet, "via", self._gateway, "dev", here, "onlink", "src", clients)

    def _add_namespace(self, name: str) -> None:
        try:
            _ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            raise NetworkUnavailable(f"ip netns add: {error.stderr.strip()}") from None
        self._namespaces.append(name)

    def _connect_leg(self, leg: str, host: str) -> None:
        self._router("addr", "add", self._gateway, "dev", leg)
        self._router("link", "set", leg, "up")
        self._router("route", "add", host, "dev", leg)

    def close(self) -> None:
        """Ending a namespace ends the devices in it, and their peers here with the routes over them."""
        while self._namespaces:
            _ip("netns", "del", self._namespaces.pop())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
