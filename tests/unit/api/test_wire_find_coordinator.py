"""FindCoordinator without coordinators: Kafka's word for it to the client, one line to whoever runs the broker."""

from __future__ import annotations

import pytest
from wire_client import WireClient

from penstock.api.handlers.find_coordinator import MAX_WARNINGS
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("find_coordinator")]


@pytest.mark.parametrize("version", range(7))
def test_one_line_a_client_and_key(version: int, caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker, WireClient(broker.port) as client:
        for key in ("billing", "billing", "audit", "billing"):
            request = FindCoordinatorRequest(key=key, coordinator_keys=[key])
            response: FindCoordinatorResponse = client.call(Api.FIND_COORDINATOR, version, request)
            code = response.error_code if version < 4 else response.coordinators[0].error_code
            assert code == 15
    first, second = warnings(caplog)
    assert "coordinator of group 'billing': consumer groups are not there yet" in first
    assert "assign() with an explicit offset" in first
    assert "'audit'" in second


def test_transactions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker, WireClient(broker.port) as client:
        client.call(Api.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="tx", key_type=1))
    [line] = warnings(caplog)
    assert "transactional id 'tx': transactions are not there yet" in line


def test_lines_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker, WireClient(broker.port) as client:
        keys = [f"{number}-{'x' * 1000}" for number in range(MAX_WARNINGS + 50)]
        client.call(Api.FIND_COORDINATOR, 6, FindCoordinatorRequest(coordinator_keys=keys))
    lines = warnings(caplog)
    assert len(lines) == MAX_WARNINGS + 1
    assert "no more lines" in lines[-1]
    assert max(map(len, lines)) < 400
