"""pytest fixtures, loaded automatically where penstock is installed.

The first test that uses a broker imports it, so a suite without one pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker, Cluster


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    """One real broker for the whole session; tests use different topic names."""
    from penstock.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Start brokers with their own settings: `penstock_broker_factory({"num.partitions": 3})`."""
    from penstock.testing import Broker

    brokers: list[Broker] = []

    def start(settings: Mapping[str, str | int | float | bool] | None = None, **options: Any) -> Broker:
        broker = Broker(settings, **options).start()
        brokers.append(broker)
        return broker

    yield start
    for broker in reversed(brokers):
        broker.stop()


@pytest.fixture
def penstock_cluster() -> Iterator[Cluster]:
    """Three real nodes for this test alone: whatever it kills, the next test has a whole cluster."""
    from penstock.testing import Cluster

    with Cluster() as cluster:
        yield cluster
