"""No request imports anything: the broker may have no file descriptor left, and the loop must not wait for the disk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from wire_client import WireClient, batch

from penstock.records.batch import read_header
from penstock.records.compression import recompress
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.api_versions import ApiVersionsRequest
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.list_groups import ListGroupsRequest

LATE = ("cramjam", "lz4", "re2", "zstandard", "penstock.node.metrics")


class Watch(MetaPathFinder):
    """Notes what threads other than this one look for."""

    def __init__(self) -> None:
        self.own = threading.get_ident()
        self.wanted: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() != self.own:
            self.wanted.append(fullname)
        return None


@pytest.fixture
def forgotten() -> Iterator[None]:
    """As in a process that has imported none of what is imported late."""
    kept = {name: module for name, module in sys.modules.items() if name.startswith(LATE)}
    for name in kept:
        if name.startswith("penstock."):
            del sys.modules[name]  # extension modules do not load twice: those stay
    yield
    sys.modules.update(kept)


@pytest.mark.usefixtures("forgotten")
def test_requests_import_nothing() -> None:
    plain = batch(b"v")
    with Broker(durable=True) as broker, WireClient(broker.port) as wire:
        watch = Watch()
        sys.meta_path.insert(0, watch)
        try:
            for codec, name in enumerate(("uncompressed", "gzip", "snappy", "lz4", "zstd")):
                topic = wire.create_topic(compression_type=name)
                assert wire.produce(topic, plain).error_code == 0
                compressed = recompress(read_header(plain), plain, codec)
                keyed = wire.create_topic(cleanup_policy="compact")
                assert wire.produce(keyed, compressed).error_code == 0
                wire.list_offset(keyed, 1)
                wire.fetch(topic)
            wire.call(Api.API_VERSIONS, 3, ApiVersionsRequest())
            wire.call(Api.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
            wire.call(Api.LIST_GROUPS, 4, ListGroupsRequest())
            wire.call(
                Api.CONSUMER_GROUP_HEARTBEAT,
                1,
                ConsumerGroupHeartbeatRequest(
                    group_id="g",
                    member_id="m" * 22,
                    rebalance_timeout_ms=1000,
                    subscribed_topic_regex="w.*",
                    topic_partitions=[],
                ),
            )
            resource = DescribeConfigsResource(resource_type=4, resource_name=str(broker._running.config.node_id))
            wire.call(Api.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
        finally:
            sys.meta_path.remove(watch)
    assert watch.wanted == []


def test_what_is_imported_late_is_there_at_the_start() -> None:
    with Broker():
        assert set(LATE) <= set(sys.modules)
