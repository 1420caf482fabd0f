"""UnregisterBroker: the broker that is forgotten, and the one that is not known."""

from __future__ import annotations

from controller_requests import FakeController, ask

from penstock.api.handlers.unregister_broker import UnregisterBrokerHandler
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest


def test_a_broker_is_forgotten() -> None:
    controller = FakeController()
    response = ask(UnregisterBrokerHandler(controller), UnregisterBrokerRequest(broker_id=4))
    assert controller.asked == ("unregister_broker", 4)
    assert (response.error_code, response.error_message) == (0, None)


def test_one_that_is_not_registered_is_said_to_be_so() -> None:
    sentence = "Broker ID 9 is not currently registered"
    controller = FakeController(unregister_broker=ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, sentence))
    response = ask(UnregisterBrokerHandler(controller), UnregisterBrokerRequest(broker_id=9))
    assert (response.error_code, response.error_message) == (102, sentence)
