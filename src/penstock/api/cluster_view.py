"""The handlers' view of the cluster for clients: brokers, addresses, ids.

A sole broker returns the address that the client used. Without an advertised listener the reply names the local end of
the client's own connection, so localhost, a container's address and a host name all work without a setting.

With several brokers every answer has the registered addresses, so that all brokers say the same. Addresses are by
listener name; a broker without a listener of that name is listed with its first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from penstock.api.context import RequestContext
from penstock.core.metadata.image import BrokerState, MetadataImage
from penstock.model.addresses import Address

NO_CONTROLLER = -1


class BrokerNode(NamedTuple):
    """A broker as seen by a client on some listener."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterView:
    def __init__(
        self,
        node_id: int,
        rack: str | None,
        image: MetadataImage,
        advertised: Mapping[str, Address],
        active_controller: Callable[[], int | None] = lambda: None,
        voters: Callable[[], Mapping[int, Address]] = dict,
        controller_listeners: Collection[str] = (),
        suspects: Callable[[], Collection[int]] = tuple,
        is_cut_off: Callable[[], bool] = bool,
    ) -> None:
        """`suspects`: live brokers whose connections have just broken. `is_cut_off`: the quorum does not answer."""
        self.suspects = suspects
        self.is_cut_off = is_cut_off
        self.node_id = node_id
        self.rack = rack
        self.image = image
        self._advertised = dict(advertised)  # listener name -> (host, port)
        self._active_controller = active_controller
        self._voters = voters
        self._controller_listeners = tuple(controller_listeners)

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    @property
    def controller_id(self) -> int:
        """The broker that answers cluster changes fastest. Any live broker works: it forwards them."""
        active = self._active_controller()
        if active is not None and self.is_live(active):
            return active
        if self.is_live(self.node_id):
            return self.node_id
        return next(iter(self.image.live_brokers()), NO_CONTROLLER)

    def is_live(self, broker_id: int) -> bool:
        """A sole broker that is not registered yet counts as live."""
        if not self.image.brokers:
            return broker_id == self.node_id
        return self.image.is_live(broker_id)

    def live_ids(self) -> list[int]:
        """Sorted."""
        return self.image.live_brokers() if self.image.brokers else [self.node_id]

    # -- addresses ------------------------------------------------------------------------

    def brokers(self, ctx: RequestContext, *, with_fenced: bool = False) -> list[BrokerNode]:
        """Live ones, and fenced ones if requested, by id."""
        if self._stands_alone:
            host, port = self.endpoint(ctx)
            known = self.image.brokers.get(self.node_id)
            is_fenced = known is not None and known.is_fenced
            return [] if is_fenced and not with_fenced else [BrokerNode(self.node_id, host, port, self.rack, is_fenced)]
        return [
            BrokerNode(broker.broker_id, *_address(broker, ctx.listener_name), broker.rack, broker.is_fenced)
            for _, broker in sorted(self.image.brokers.items())
            if with_fenced or not broker.is_fenced
        ]

    def endpoint(self, ctx: RequestContext) -> Address:
        """This broker's address for the requesting client."""
        if not self._stands_alone:
            own = self.image.brokers.get(self.node_id)
            if own is not None:
                return _address(own, ctx.listener_name)
        advertised = self._advertised.get(ctx.listener_name)
        return advertised if advertised is not None else ctx.connection.channel.local

    def endpoint_of(self, broker_id: int, ctx: RequestContext) -> Address | None:
        """A live broker's address for the requesting client; None for a fenced or unknown broker."""
        if not self.is_live(broker_id):
            return None
        if broker_id == self.node_id:
            return self.endpoint(ctx)
        return _address(self.image.brokers[broker_id], ctx.listener_name)

    @property
    def _stands_alone(self) -> bool:
        return not any(broker_id != self.node_id for broker_id in self.image.brokers)

    # -- controllers ----------------------------------------------------------------------

    def is_controller_listener(self, ctx: RequestContext) -> bool:
        return ctx.listener_name in self._controller_listeners

    def controllers(self) -> list[tuple[int, Address]]:
        """The voters of the metadata quorum, by id."""
        return sorted(self._voters().items())

    @property
    def active_controller_id(self) -> int:
        active = self._active_controller()
        return NO_CONTROLLER if active is None else active


def _address(broker: BrokerState, listener_name: str) -> Address:
    found = broker.endpoints.get(listener_name)
    return found if found is not None else next(iter(broker.endpoints.values()))
