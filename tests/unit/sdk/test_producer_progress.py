"""A producer whose timeout counts from the last progress: slow brokers are waited for, silent ones are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from penstock.sdk import BadSetting, BlockingProducer, ClientError, Delivery, DeliveryFailed, Unreachable
from penstock.wire.apis import Api
from penstock.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire.primitives import Message
from support.scripted.broker import ScriptedBroker

TIMEOUT_MS = 1500
RECORDS = 8
ANSWER_AFTER_S = 0.4


def broker(before_answer: Callable[[int], None]) -> ScriptedBroker:
    """It writes one batch after the other; `before_answer` is called with how many it has answered."""
    answered = 0

    def produce(request: Message) -> Message:
        nonlocal answered
        assert isinstance(request, ProduceRequest)
        before_answer(answered)
        answered += 1
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=one.index, base_offset=answered, error_message=None)
                        for one in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return ScriptedBroker({Api.PRODUCE: produce}, {"t": bytes(range(16))}, {Api.PRODUCE: 8})


def producer(broker: ScriptedBroker) -> BlockingProducer:
    """A request carries one record, and the next waits for its answer."""
    return BlockingProducer(
        f"127.0.0.1:{broker.port}",
        acks=1,
        linger_ms=0,
        delivery_timeout_ms=TIMEOUT_MS,
        timeout_counts_from="progress",
        settings={"max.in.flight.requests.per.connection": 1, "batch.num.messages": 1},
    )


def test_records_wait_in_the_buffer_for_as_long_as_others_arrive() -> None:
    assert RECORDS * ANSWER_AFTER_S * 1000 > 2 * TIMEOUT_MS
    results: list[Delivery | ClientError] = []
    with broker(lambda answered: time.sleep(ANSWER_AFTER_S)) as slow, producer(slow) as sending:
        for _ in range(RECORDS):
            sending.enqueue("t", b"x", then=results.append, partition=0)
        sending.flush()
        assert [type(one) for one in results] == [Delivery] * RECORDS


def test_all_that_wait_are_given_up_when_nothing_arrives_any_more() -> None:
    gate = threading.Event()

    def answer_two(answered: int) -> None:
        if answered == 2:
            gate.wait(60)

    results: list[Delivery | ClientError] = []
    with broker(answer_two) as stalled, producer(stalled) as sending:
        try:
            for _ in range(RECORDS):
                sending.enqueue("t", b"x", then=results.append, partition=0)
            sending.flush()
        finally:
            gate.set()
        assert [type(one) for one in results[:2]] == [Delivery] * 2
        assert len(results) == RECORDS
        for failure in results[2:]:
            assert isinstance(failure, DeliveryFailed)
            assert "no answer in time" in str(failure)
        sending.enqueue("t", b"later", then=results.append, partition=0)  # it has a chance of its own
        sending.flush()
        assert isinstance(results[-1], Delivery)


def test_a_broker_that_is_gone_is_said() -> None:
    with broker(lambda answered: None) as gone, producer(gone) as sending:
        sending.send("t", b"x", partition=0)
        gone.__exit__(None, None, None)
        with pytest.raises((Unreachable, DeliveryFailed)):
            sending.send("t", b"x", partition=0)


def test_it_is_one_of_two() -> None:
    with pytest.raises(BadSetting, match="timeout_counts_from"):
        BlockingProducer(timeout_counts_from="now")  # type: ignore[arg-type]
