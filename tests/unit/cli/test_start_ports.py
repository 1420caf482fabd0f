"""Where the nodes of `penstock start --nodes` listen, and what is said of a port that cannot be had."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from penstock.cli.start.ports import ListenerAddress, NodePorts, check_free, plan_ports
from penstock.config.broker import BrokerConfig
from penstock.model.errors import ConfigError

HTTP = "penstock.http.listener"
LINES = "penstock.line.listener"


def plan(first: int, count: int = 3, host: str = "127.0.0.1", **gateway: str) -> list[NodePorts]:
    given = {{"http": HTTP, "lines": LINES}[name]: text for name, text in gateway.items()}
    config, _ = BrokerConfig.load(None, {**given, "log.dirs": "unused"})
    return plan_ports(host, first, count, config, given)


def shown(nodes: list[NodePorts]) -> list[str]:
    return [str(node) for node in nodes]


def test_the_usual_ports() -> None:
    assert shown(plan(9092)) == [
        "Kafka on 127.0.0.1:9092, HTTP on 127.0.0.1:8082, lines on 127.0.0.1:9099",
        "Kafka on 127.0.0.1:9093, HTTP on 127.0.0.1:8083",
        "Kafka on 127.0.0.1:9094, HTTP on 127.0.0.1:8084",
    ]


def test_gateway_ports_keep_their_distance_from_another_port_and_host() -> None:
    assert shown(plan(19092, 2, "::1")) == [
        "Kafka on [::1]:19092, HTTP on [::1]:18082, lines on [::1]:19099",
        "Kafka on [::1]:19093, HTTP on [::1]:18083",
    ]


@pytest.mark.parametrize("count", range(2, 10))
def test_no_port_is_used_twice(count: int) -> None:
    for first in (9092, 65535 - count + 1, 2034, 0):
        nodes = plan(first, count)
        ports = [place.port for node in nodes for place in node if place is not None]
        assert len(ports) == 3 * count + 1
        assert len(set(ports)) == len(ports)
        assert all(0 < port < 65536 for port in ports)


def test_a_gateway_port_that_is_asked_for_is_the_first_one() -> None:
    nodes = plan(9092, http=":8000", lines="127.0.0.1:7000")
    assert [node.gateway for node in nodes] == [
        {HTTP: ":8000", LINES: "127.0.0.1:7000"},
        {HTTP: ":8001", LINES: ""},
        {HTTP: ":8002", LINES: ""},
    ]


def test_gateways_on_free_ports_are_settled_and_differ() -> None:
    nodes = plan(9092, http="127.0.0.1:0", lines="127.0.0.1:0")
    ports = [place.port for node in nodes for place in (node.http, node.lines) if place is not None]
    assert len(set(ports)) == 4
    assert 0 not in ports


def test_no_gateway() -> None:
    nodes = plan(1500, http="", lines="")  # and no port is too low then
    assert shown(nodes) == ["Kafka on 127.0.0.1:1500", "Kafka on 127.0.0.1:1501", "Kafka on 127.0.0.1:1502"]
    assert [node.gateway for node in nodes] == [{HTTP: "", LINES: ""}] * 3


@contextmanager
def five_ports(taken: int) -> Iterator[list[ListenerAddress]]:
    """Different ones, all free but the one with this index."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        places = [ListenerAddress("127.0.0.1", sock.getsockname()[1]) for sock in sockets]
        for index, sock in enumerate(sockets):
            if index != taken:
                sock.close()
        yield places


@pytest.mark.parametrize(
    ("taken", "use", "remedy"),
    [
        (0, "the Kafka port of node 1", "with --port"),
        (1, "the line protocol of node 1", f"with --set {LINES}=HOST:PORT, or turn it off with --set {LINES}="),
        (2, "the Kafka port of node 2", "with --port"),
        (4, "the port of node 2 for other nodes", "with --port"),
        (3, "the REST proxy of node 2", f"with --set {HTTP}=HOST:PORT, or turn it off with --set {HTTP}="),
    ],
)
def test_a_taken_port_is_named_with_its_use(taken: int, use: str, remedy: str) -> None:
    with five_ports(taken) as places:
        nodes = [NodePorts(places[0], None, places[1]), NodePorts(places[2], places[3], None, places[4])]
        with pytest.raises(ConfigError) as refused:
            check_free(nodes)
        assert str(refused.value) == (
            f"{use}: cannot listen on {places[taken]}: the port is taken; "
            f"stop the other process or choose another port {remedy}"
        )


def test_free_ports_are_free_afterwards_too() -> None:
    with five_ports(-1) as places:
        nodes = [NodePorts(places[0], places[1], places[2])]
        check_free(nodes)
        check_free(nodes)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"^the REST proxy of node 1: cannot listen on 192\.0\.2\.1:1: this machine"):
        check_free([NodePorts(plan(0, 2)[0].kafka, ListenerAddress("192.0.2.1", 1), None)])
