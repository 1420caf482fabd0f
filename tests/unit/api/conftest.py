"""One embedded broker for the tests of raw frames, and a connection to it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire_client import WireClient

from penstock.testing import Broker


@pytest.fixture(scope="session")
def wire_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def wire(wire_broker: Broker) -> Iterator[WireClient]:
    with WireClient(wire_broker.port) as client:
        yield client


@pytest.fixture
def penstock_bounded() -> Iterator[WireClient]:
    """A client of a broker that takes two requests at a time from a connection, and flushes each."""
    settings = {"penstock.requests.in.flight.per.connection": "2"}
    with Broker(settings, durable=True) as broker, WireClient(broker.port) as client:
        yield client
