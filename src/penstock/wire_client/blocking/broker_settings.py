"""Settings of all brokers at once: the broker resource without a name, which librdkafka does not support.

Requests go to any broker, which passes changes on to the controller. Must not know: which settings exist, how they are
shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.wire.apis import Api
from penstock.wire.messages.describe_configs import DescribeConfigsResponse
from penstock.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.configs import (
    ALL_BROKERS,
    BROKER,
    alter_configs_request,
    check_altered,
    configs_request,
    read_configs,
)


class BrokerSetting(NamedTuple):
    name: str
    value: str | None
    """None for a secret."""
    is_read_only: bool
    is_sensitive: bool


class BrokerSettings:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    def describe(self) -> list[BrokerSetting]:
        """Only the settings that were set at run time, not those of the brokers' properties files."""

        def read(answer: DescribeConfigsResponse) -> list[BrokerSetting]:
            found = read_configs(answer)
            return [BrokerSetting(one.name, one.value, one.read_only, one.is_sensitive) for one in found]

        request = configs_request(BROKER, ALL_BROKERS)
        return self._cluster.ask(Api.DESCRIBE_CONFIGS, request, DescribeConfigsResponse, read)

    def alter(self, set_: Mapping[str, str], delete: Iterable[str] = ()) -> None:
        """Settings that are not named stay as they are. Raises ApiError."""
        request = alter_configs_request(BROKER, ALL_BROKERS, set_, delete)
        self._cluster.ask(Api.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse, check_altered)
