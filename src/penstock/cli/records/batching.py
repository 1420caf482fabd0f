"""How `penstock produce` batches records: large batches for piped input, no waiting for typed input.

A broker refuses a batch larger than the topic's max.message.bytes even if each record would fit, and librdkafka does
not divide the batch. So the topic's setting is read first.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.cli.reach.connection import Target

BULK_BATCH_BYTES = 256 * 1024
BULK_LINGER_MS = 20.0
LOOK_S = 2.0
MAX_MESSAGE_BYTES = "max.message.bytes"


class Batching(TypedDict, total=False):
    """The options of a producer that control batching."""

    batch_size_bytes: int
    linger_ms: float


def batching(target: Target, topic: str, *, is_typed: bool) -> Batching:
    """The producer's options. The user's own settings, under librdkafka's names, override them."""
    if is_typed:
        return {"linger_ms": 0.0}
    return {
        "batch_size_bytes": min(BULK_BATCH_BYTES, _largest_batch(target, topic)),
        "linger_ms": BULK_LINGER_MS,
    }


def _largest_batch(target: Target, topic: str) -> int:
    """The topic's max.message.bytes, or BULK_BATCH_BYTES if it is unknown, for example because the topic does not
    exist.
    """
    from penstock.model.errors import ApiError
    from penstock.wire.apis import Api
    from penstock.wire.messages.describe_configs import DescribeConfigsResponse
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.security import security_from_settings
    from penstock.wire_client.requests.configs import TOPIC, configs_request
    from penstock.wire_client.requests.errors import WireClientError

    def read(answer: DescribeConfigsResponse) -> int:
        values = [one.value or "" for found in answer.results for one in found.configs if one.name == MAX_MESSAGE_BYTES]
        return next((max(1, int(value)) for value in values if value.isdigit()), BULK_BATCH_BYTES)

    request = configs_request(TOPIC, topic, [MAX_MESSAGE_BYTES])
    try:
        security = security_from_settings({name: str(value) for name, value in target.settings.items()})
        cluster = BlockingCluster(target.addresses(), "penstock-cli", security, min(LOOK_S, target.timeout_s))
    except WireClientError:
        return BULK_BATCH_BYTES
    try:
        return cluster.ask(Api.DESCRIBE_CONFIGS, request, DescribeConfigsResponse, read)
    except (ApiError, WireClientError):
        return BULK_BATCH_BYTES
    finally:
        cluster.close()
