"""Penstock's own client, for requests that librdkafka does not offer. It uses the same client settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.cli.reach.connection import Target

if TYPE_CHECKING:
    from penstock.wire_client.blocking.broker_settings import BrokerSettings
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin
    from penstock.wire_client.blocking.transaction_admin import TransactionAdmin


@contextmanager
def wire_admin(target: Target) -> Iterator[ClusterAdmin]:
    from penstock.wire_client.blocking.cluster_admin import ClusterAdmin

    with wire_cluster(target) as cluster:
        yield ClusterAdmin(cluster)


@contextmanager
def broker_settings(target: Target) -> Iterator[BrokerSettings]:
    from penstock.wire_client.blocking.broker_settings import BrokerSettings

    with wire_cluster(target) as cluster:
        yield BrokerSettings(cluster)


@contextmanager
def transaction_admin(target: Target) -> Iterator[TransactionAdmin]:
    from penstock.wire_client.blocking.transaction_admin import TransactionAdmin

    with wire_cluster(target) as cluster:
        yield TransactionAdmin(cluster)


@contextmanager
def wire_cluster(target: Target) -> Iterator[BlockingCluster]:
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.security import security_from_settings

    serving = target.check()
    # The address that answers comes first: an address that hangs would use up the timeout.
    addresses = list(dict.fromkeys([serving, *target.addresses()]))
    security = security_from_settings({name: str(value) for name, value in target.settings.items()})
    connected = BlockingCluster(addresses, "penstock-cli", security, target.timeout_s)
    try:
        yield connected
    finally:
        connected.close()
