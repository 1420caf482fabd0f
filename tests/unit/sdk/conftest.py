from __future__ import annotations

import itertools

import pytest

from penstock.testing import Broker

_numbers = itertools.count(1)


@pytest.fixture
def servers(penstock_broker: Broker) -> str:
    return penstock_broker.bootstrap_servers


@pytest.fixture
def topic() -> str:
    """A name of this test's own; the session's broker is shared."""
    return f"client-{next(_numbers)}"


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"
