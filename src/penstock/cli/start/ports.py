"""The addresses at which the nodes of `penstock start --nodes` listen.

The Kafka ports count up from --port. The REST proxy of a node is as far below its Kafka port as that of a single
broker: 8082, 8083, 8084 for 9092, 9093, 9094. Only node 1 serves the line protocol. The nodes reach each other on ports
20000 above those for clients. With --port 0 the system chooses all ports.
All ports are chosen and tried before a node is started. The error names a port that is not free, and its use.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Container
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.gateway import HTTP_LISTENER, LINE_LISTENER
from penstock.model.errors import ConfigError
from penstock.net.accepting import bind
from penstock.node.local_nodes import bracketed, free_ports

FIRST_PORT = 9092
HTTP_BELOW = FIRST_PORT - 8082
LINES_ABOVE = 9099 - FIRST_PORT
NODES_ABOVE = 20_000
FIRST_UNPRIVILEGED_PORT = 1024
LAST_PORT = 65535
# The sockets of a cluster that was killed a moment ago may still be closing.
BIND_TRIES = 5
BIND_PAUSE_S = 0.05


class ListenerAddress(NamedTuple):
    host: str
    port: int
    """Zero until it is chosen."""

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


class NodePorts(NamedTuple):
    """The addresses of one node; None for a listener that is off."""

    kafka: ListenerAddress
    http: ListenerAddress | None
    lines: ListenerAddress | None
    nodes: ListenerAddress | None = None
    """For the other nodes; None: they use the port for clients."""

    @property
    def gateway(self) -> dict[str, str]:
        """The listeners of REST proxy and line protocol, as settings of the node."""
        named = ((HTTP_LISTENER, self.http), (LINE_LISTENER, self.lines))
        return {name: "" if place is None else str(place) for name, place in named}

    def __str__(self) -> str:
        named = (("Kafka", self.kafka), ("HTTP", self.http), ("lines", self.lines))
        return ", ".join(f"{name} on {place}" for name, place in named if place is not None)


def plan_ports(host: str, first: int, count: int, config: BrokerConfig, given: Container[str]) -> list[NodePorts]:
    """`given`: the settings that were given; a listener of `config` counts only if it is among them.

    Raises ConfigError.
    """
    places = {"kafka": _row(host, first, count, f"--port {first}")}
    above = first + NODES_ABOVE if first and first + NODES_ABOVE + count - 1 <= LAST_PORT else 0
    places["nodes"] = _row(host, above, count, f"--port {first}")
    if HTTP_LISTENER not in given:
        places["http"] = _row(host, _http_port(first), count, f"--port {first}")
    elif (asked := config.penstock_http_listener) is not None:
        places["http"] = _row(asked.host, asked.port, count, f"{HTTP_LISTENER}: port {asked.port}")
    if LINE_LISTENER not in given:
        places["lines"] = [ListenerAddress(host, _line_port(first, count))]
    elif (asked := config.penstock_line_listener) is not None:
        places["lines"] = [ListenerAddress(asked.host, asked.port)]
    _settle(places)
    http, lines = places.get("http", []), places.get("lines", [])
    return [
        NodePorts(kafka, http[index] if http else None, lines[0] if lines and index == 0 else None, nodes)
        for index, (kafka, nodes) in enumerate(zip(places["kafka"], places["nodes"], strict=True))
    ]


def _row(host: str, first: int, count: int, what: str) -> list[ListenerAddress]:
    if first + count - 1 > LAST_PORT:
        raise ConfigError(f"{what} leaves no room for {count} nodes: use a lower port")
    return [ListenerAddress(host, first + index if first else 0) for index in range(count)]


def _http_port(first: int) -> int:
    lowest = HTTP_BELOW + FIRST_UNPRIVILEGED_PORT
    if 0 < first < lowest:
        raise ConfigError(
            f"--port {first} leaves no room for the REST proxies, {HTTP_BELOW} below it: use a port from {lowest} on, "
            f"or give the address of node 1's REST proxy with --set {HTTP_LISTENER}=HOST:PORT"
        )
    return first - HTTP_BELOW if first else 0


def _line_port(first: int, count: int) -> int:
    """A port above the Kafka ports of all nodes."""
    port = first + max(LINES_ABOVE, count)
    return port if first and port <= LAST_PORT else 0


def _settle(places: dict[str, list[ListenerAddress]]) -> None:
    """Replaces zeros by free ports, all at once so that none is used twice."""
    open_ended = [(row, index) for row in places.values() for index, place in enumerate(row) if not place.port]
    hosts = [row[index].host for row, index in open_ended]
    try:
        ports = free_ports(hosts)
    except OSError as error:
        shown = ", ".join(dict.fromkeys(hosts))
        raise ConfigError(f"cannot listen on {shown}: {error.strerror}; use --host 127.0.0.1") from error
    for (row, index), port in zip(open_ended, ports, strict=True):
        row[index] = row[index]._replace(port=port)


def check_free(nodes: list[NodePorts]) -> None:
    """Raises ConfigError about the first port that is not free."""
    for number, node in enumerate(nodes, 1):
        _try(node.kafka, f"the Kafka port of node {number}", "with --port")
        if node.nodes is not None:
            _try(node.nodes, f"the port of node {number} for other nodes", "with --port")
        if node.http is not None:
            _try(node.http, f"the REST proxy of node {number}", _elsewhere(HTTP_LISTENER))
        if node.lines is not None:
            _try(node.lines, f"the line protocol of node {number}", _elsewhere(LINE_LISTENER))


def _elsewhere(setting: str) -> str:
    return f"with --set {setting}=HOST:PORT, or turn it off with --set {setting}="


def _try(place: ListenerAddress, what: str, how: str) -> None:
    for tries_left in reversed(range(BIND_TRIES)):
        try:
            for sock in bind(place.host, place.port):
                sock.close()
        except ConfigError as error:
            is_taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
            if not is_taken:
                raise ConfigError(f"{what}: {error}") from error
            if not tries_left:
                raise ConfigError(f"{what}: {error} {how}") from error
        else:
            return
        time.sleep(BIND_PAUSE_S)
