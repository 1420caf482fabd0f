"""The addresses of this node for other nodes and clients: as advertised, else as bound, never a wildcard host.

The listeners are bound first, so ports chosen by the operating system are known. Must not know: the addresses of other
nodes.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from penstock.config.broker import BrokerConfig
from penstock.config.listeners import Endpoint
from penstock.model.addresses import Address
from penstock.net.listener import Listener

EVERY_INTERFACE = ("", "0.0.0.0", "::")


class OwnAddresses:
    def __init__(self, config: BrokerConfig, listeners: Sequence[Listener]) -> None:
        self._config = config
        self._listeners = listeners
        self.voters: dict[int, Address] = {
            voter.node_id: (voter.host, voter.port) for voter in config.controller_quorum_voters
        }
        """The voters come from the settings; a single node is its own voter."""
        if not config.is_clustered:
            self.voters = {config.node_id: self.for_nodes}

    @property
    def for_nodes(self) -> Address:
        """The address for other nodes."""
        endpoint = self._config.peer_listeners[0]
        advertised = self._config.advertised_listeners.get(endpoint.name)
        if advertised is not None:
            return advertised.host, advertised.port
        host = endpoint.host if endpoint.host not in EVERY_INTERFACE else self._host_name()
        return host, self._port_of(endpoint)

    @property
    def of_voter(self) -> list[Address]:
        """The addresses of this node as a voter: the one in the settings, unless its host is a wildcard, then the bound
        one.
        """
        bound = self.for_nodes
        written = self.voters.get(self._config.node_id, bound)
        return [bound] if written[0] in EVERY_INTERFACE else [written, bound]

    @property
    def of_first_voters(self) -> dict[int, Address]:
        """The voters' addresses for a new cluster. Another node with a wildcard host reports its address itself."""
        own = self._config.node_id
        return {
            node: where if where[0] not in EVERY_INTERFACE else self.for_nodes
            for node, where in self.voters.items()
            if where[0] not in EVERY_INTERFACE or node == own
        }

    @property
    def endpoints(self) -> dict[str, Address]:
        """By listener. The inter-broker listener comes first, if it is named."""
        endpoints: dict[str, Address] = {}
        for endpoint in self._config.listeners:
            advertised = self._config.advertised_listeners.get(endpoint.name)
            if advertised is not None:
                endpoints[endpoint.name] = advertised.host, advertised.port
            else:
                host = endpoint.host if endpoint.host not in EVERY_INTERFACE else self._host_name()
                endpoints[endpoint.name] = host, self._port_of(endpoint)
        first = self._config.inter_broker_listener_name
        if first and first.upper() in endpoints:
            return {first.upper(): endpoints.pop(first.upper()), **endpoints}
        return endpoints

    def _port_of(self, endpoint: Endpoint) -> int:
        names = [other.name for other in (*self._config.listeners, *self._config.controller_listeners)]
        return self._listeners[names.index(endpoint.name)].port

    def _host_name(self) -> str:
        """The configured voter list says how the other nodes reach this one."""
        own = self.voters.get(self._config.node_id)
        return own[0] if own is not None and own[0] not in EVERY_INTERFACE else socket.gethostname()
