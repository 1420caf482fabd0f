"""How a command asks for what librdkafka has no words for: Penstock's own client, under the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.cli.connection import Target

if TYPE_CHECKING:
    from penstock.client.cluster_admin import ClusterAdmin


@contextmanager
def wire_admin(target: Target) -> Iterator[ClusterAdmin]:
    from penstock.client.blocking_cluster import BlockingCluster
    from penstock.client.cluster_admin import ClusterAdmin
    from penstock.client.security import security_from_settings

    target.check()
    security = security_from_settings({name: str(value) for name, value in target.settings.items()})
    connected = BlockingCluster(target.addresses(), "penstock-cli", security, target.timeout_s)
    try:
        yield ClusterAdmin(connected)
    finally:
        connected.close()
