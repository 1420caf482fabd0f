"""What the handlers tell clients about the cluster: brokers, addresses, ids.

"The address a client used is the address it is given back": without an advertised
listener the reply names the local end of the client's own connection, so localhost,
a container's address and a host name all work without a setting.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.api.context import RequestContext
from penstock.core.metadata.image import MetadataImage


class ClusterView:
    def __init__(
        self, node_id: int, rack: str | None, image: MetadataImage, advertised: Mapping[str, tuple[str, int]]
    ) -> None:
        self.node_id = node_id
        self.rack = rack
        self.image = image
        self._advertised = dict(advertised)  # listener name -> (host, port)

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    @property
    def controller_id(self) -> int:
        return self.node_id

    def endpoint(self, ctx: RequestContext) -> tuple[str, int]:
        """This broker's address for the client that asks."""
        advertised = self._advertised.get(ctx.connection.listener_name)
        return advertised if advertised is not None else ctx.connection.channel.local
