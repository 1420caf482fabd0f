"""Clients with a transactional id are told at once, and for good, that there are no transactions.

They used to try again until their own time-out. Each is given one that the test would not live to see.
"""

from __future__ import annotations

import asyncio

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import admin

from kafka import KafkaProducer

TIMEOUT_S = 600


def test_librdkafka_has_a_fatal_error_with_the_sentence(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    with pytest.raises(confluent_kafka.KafkaException, match="does not support transactions") as caught:
        producer.init_transactions(TIMEOUT_S)
    error = caught.value.args[0]
    assert (error.fatal(), error.retriable()) == (True, False)
    assert error.code() == confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_aiokafka_does_not_start(bootstrap: str) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="t")
        try:
            with pytest.raises(aiokafka.errors.KafkaError, match="ClusterAuthorizationFailed"):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(start())


def test_kafka_python_raises(bootstrap: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id="t", max_block_ms=TIMEOUT_S * 1000, acks="all"
    )
    try:
        with pytest.raises(kafka.errors.KafkaError, match="ClusterAuthorizationFailed"):
            producer.init_transactions()
    finally:
        producer.close(timeout=1)


def test_an_administrator_is_told_that_there_are_no_acls(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    acl = admin.AclBinding(
        admin.ResourceType.TOPIC,
        "t",
        admin.ResourcePatternType.LITERAL,
        "User:a",
        "*",
        admin.AclOperation.READ,
        admin.AclPermissionType.ALLOW,
    )
    with pytest.raises(confluent_kafka.KafkaException, match="No Authorizer is configured") as caught:
        client.create_acls([acl])[acl].result(TIMEOUT_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED
