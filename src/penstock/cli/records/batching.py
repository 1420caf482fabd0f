"""How `penstock produce` makes batches: large ones of what is piped in, none of what a person types.

A broker refuses a batch that is larger than the topic's max.message.bytes even where each record of it would fit, and
librdkafka does not divide one: so the topic is asked first.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.cli.reach.connection import Target

BULK_BATCH_BYTES = 256 * 1024
BULK_LINGER_MS = 20.0
LOOK_S = 2.0
TOPIC = 2
MAX_MESSAGE_BYTES = "max.message.bytes"


class Batching(TypedDict, total=False):
    """Of a producer's options."""

    batch_size_bytes: int
    linger_ms: float


def batching(target: Target, topic: str, *, is_typed: bool) -> Batching:
    """Settings of the user's own win, by librdkafka's names."""
    if is_typed:
        return {"linger_ms": 0.0}
    return {
        "batch_size_bytes": min(BULK_BATCH_BYTES, _largest_batch(target, topic)),
        "linger_ms": BULK_LINGER_MS,
    }


def _largest_batch(target: Target, topic: str) -> int:
    """What the topic takes; where it does not say, as when it will be made by the first record, what all take."""
    from penstock.model.errors import ApiError
    from penstock.wire.apis import Api
    from penstock.wire.messages import describe_configs as describing
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.security import security_from_settings
    from penstock.wire_client.requests.errors import WireClientError

    def read(answer: describing.DescribeConfigsResponse) -> int:
        values = [one.value or "" for found in answer.results for one in found.configs if one.name == MAX_MESSAGE_BYTES]
        return next((max(1, int(value)) for value in values if value.isdigit()), BULK_BATCH_BYTES)

    asked = describing.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=[MAX_MESSAGE_BYTES]
    )
    request = describing.DescribeConfigsRequest(resources=[asked])
    try:
        security = security_from_settings({name: str(value) for name, value in target.settings.items()})
        cluster = BlockingCluster(target.addresses(), "penstock-cli", security, min(LOOK_S, target.timeout_s))
    except WireClientError:
        return BULK_BATCH_BYTES
    try:
        return cluster.ask(Api.DESCRIBE_CONFIGS, request, describing.DescribeConfigsResponse, read)
    except (ApiError, WireClientError):
        return BULK_BATCH_BYTES
    finally:
        cluster.close()
