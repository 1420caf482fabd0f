"""Addresses in settings: listeners, advertised listeners, protocol maps and quorum voters.

Text in, values out. Opens no sockets and resolves no names. Errors are whole sentences
that name the setting and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.config.keys import split_list
from penstock.model.errors import ConfigError

_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@]*)):(-?[0-9]+)")
_VOTER = re.compile(r"([0-9]+)@(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@]+)):([0-9]+)")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@]+)):([0-9]+)")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Endpoint(NamedTuple):
    name: str
    host: str
    """Empty: all interfaces, IPv4 and IPv6."""
    port: int
    """Zero: any free port."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Voter(NamedTuple):
    node_id: int
    host: str
    port: int


class Listeners(NamedTuple):
    broker: tuple[Endpoint, ...]
    """Listeners for clients."""
    controller: tuple[Endpoint, ...]
    """Listeners for other nodes; they serve the same protocol."""
    advertised: Mapping[str, Endpoint]
    """By listener name; a listener without an entry advertises the address the client used."""
    security_protocols: Mapping[str, str]
    """By listener name."""


def parse_endpoints(setting: str, items: Sequence[str]) -> tuple[Endpoint, ...]:
    endpoints: dict[str, Endpoint] = {}
    for item in items:
        match = _ENDPOINT.fullmatch(item)
        if match is None:
            raise ConfigError(f"{setting}: '{item}' is not an address: write NAME://host:port")
        name = match[1].upper()
        port = int(match[4])
        if not 0 <= port <= 65535:
            raise ConfigError(f"{setting}: port {port} of {name} is out of range: use one from 0 to 65535")
        if name in endpoints:
            raise ConfigError(f"{setting}: {name} is listed twice: give each listener its own name")
        _check_host(setting, match[2] or match[3])
        endpoints[name] = Endpoint(name, match[2] or match[3], port)
    addresses: set[tuple[str, int]] = set()
    for endpoint in endpoints.values():
        address = (endpoint.host, endpoint.port)
        if endpoint.port and setting == "listeners" and address in addresses:
            raise ConfigError(f"{setting}: two listeners share {endpoint.host}:{endpoint.port}: use different ports")
        addresses.add(address)
    return tuple(endpoints.values())


def _check_host(setting: str, host: str) -> None:
    """Refuse host names that no resolver can look up."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ConfigError(
            f"{setting}: '{host}' is not a host name: each part between its dots has 1 to 63 characters"
        ) from error


def parse_protocol_map(text: str) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for item in split_list(text):
        name, _, protocol = (part.strip() for part in item.partition(":"))
        if not name or protocol not in _PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: '{item}' is not NAME:PROTOCOL with one of {', '.join(_PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol
    return protocols


def parse_address(server: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(server)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(f"controller.quorum.bootstrap.servers: '{server}' is not an address: write host:port")
    host = match[1] or match[2]
    _check_host("controller.quorum.bootstrap.servers", host)
    return host, int(match[3])


def parse_voters(items: Sequence[str]) -> tuple[Voter, ...]:
    voters: list[Voter] = []
    for item in items:
        match = _VOTER.fullmatch(item)
        if match is None or int(match[4]) > 65535:
            raise ConfigError(f"controller.quorum.voters: '{item}' is not a voter: write id@host:port")
        _check_host("controller.quorum.voters", match[2] or match[3])
        voters.append(Voter(int(match[1]), match[2] or match[3], int(match[4])))
    return tuple(voters)


def assemble_listeners(
    listeners: Sequence[str],
    advertised: Sequence[str],
    controller_names: Collection[str],
    protocols: Mapping[str, str],
    *,
    protocols_given: bool,
) -> Listeners:
    endpoints = parse_endpoints("listeners", listeners)
    controller_names = {name.upper() for name in controller_names}
    broker = tuple(endpoint for endpoint in endpoints if endpoint.name not in controller_names)
    if not broker:
        raise ConfigError("listeners: there is no address for clients: add PLAINTEXT://127.0.0.1:9092")
    if not protocols_given:
        # As in Kafka, controller listeners are PLAINTEXT if the map is not set.
        protocols = dict.fromkeys(controller_names, "PLAINTEXT") | dict(protocols)
    used: dict[str, str] = {}
    for endpoint in endpoints:
        protocol = protocols.get(endpoint.name)
        if protocol is None:
            raise ConfigError(
                f"listener {endpoint.name} has no security protocol: "
                f"add {endpoint.name}:PLAINTEXT to listener.security.protocol.map"
            )
        if protocol != "PLAINTEXT":
            raise ConfigError(f"listener {endpoint.name} uses {protocol}, which is not supported yet: use PLAINTEXT")
        used[endpoint.name] = protocol
    return Listeners(
        broker=broker,
        controller=tuple(endpoint for endpoint in endpoints if endpoint.name in controller_names),
        advertised=_check_advertised(parse_endpoints("advertised.listeners", advertised), used),
        security_protocols=used,
    )


def _check_advertised(advertised: tuple[Endpoint, ...], names: Collection[str]) -> dict[str, Endpoint]:
    for endpoint in advertised:
        if endpoint.name not in names:
            raise ConfigError(
                f"advertised.listeners: {endpoint.name} is not in listeners: use one of {', '.join(sorted(names))}"
            )
        if endpoint.host in _EVERY_INTERFACE:
            shown = endpoint.host or "an empty host"
            raise ConfigError(
                f"advertised.listeners: clients cannot connect to {shown}: name a host they can reach, "
                "or leave the setting out to advertise the address each client used"
            )
        if endpoint.port == 0:
            raise ConfigError(f"advertised.listeners: clients cannot connect to port 0 of {endpoint.name}: name a port")
    return {endpoint.name: endpoint for endpoint in advertised}
