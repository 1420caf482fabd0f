"""pytest fixtures, loaded by themselves wherever penstock is installed.

A broker is imported by the first test that asks for it, so a suite that does not use it
pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker, Cluster


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    """One real broker for the whole session; tests keep apart by topic names."""
    from penstock.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Start brokers with settings of their own: `penstock_broker_factory({"num.partitions": 3})`."""
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
    """Three real nodes of this test alone: whatever it kills, the next test has a whole cluster."""
    from penstock.testing import Cluster

    with Cluster() as cluster:
        yield cluster
