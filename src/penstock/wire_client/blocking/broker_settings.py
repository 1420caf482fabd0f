"""Settings of all brokers at once: the broker resource without a name, which librdkafka refuses to ask for.

Any broker is asked; it has the controller make a change. Must not know: which settings there are, how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.wire.apis import Api
from penstock.wire.messages import describe_configs as describing
from penstock.wire.messages import incremental_alter_configs as altering
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import check

BROKER, ALL = 4, ""
SET, DELETE = 0, 1


class BrokerSetting(NamedTuple):
    name: str
    value: str | None
    """None: a secret."""
    is_read_only: bool
    is_sensitive: bool


class BrokerSettings:
    def __init__(self, cluster: BlockingCluster) -> None:
        self._cluster = cluster

    def describe(self) -> list[BrokerSetting]:
        """Only those that were set at run time; what the brokers' files say is each broker's own."""

        def read(answer: describing.DescribeConfigsResponse) -> list[BrokerSetting]:
            [found] = answer.results
            check(found.error_code, found.error_message)
            return [BrokerSetting(one.name, one.value, one.read_only, one.is_sensitive) for one in found.configs]

        asked = describing.DescribeConfigsResource(resource_type=BROKER, resource_name=ALL, configuration_keys=None)
        request = describing.DescribeConfigsRequest(resources=[asked])
        return self._cluster.ask(Api.DESCRIBE_CONFIGS, request, describing.DescribeConfigsResponse, read)

    def alter(self, set_: Mapping[str, str], delete: Iterable[str] = ()) -> None:
        """What is not named stays. Raises ApiError."""

        def read(answer: altering.IncrementalAlterConfigsResponse) -> None:
            [result] = answer.responses
            check(result.error_code, result.error_message)

        changes = [
            *(altering.AlterableConfig(name=name, config_operation=SET, value=value) for name, value in set_.items()),
            *(altering.AlterableConfig(name=name, config_operation=DELETE, value=None) for name in delete),
        ]
        asked = altering.AlterConfigsResource(resource_type=BROKER, resource_name=ALL, configs=changes)
        request = altering.IncrementalAlterConfigsRequest(resources=[asked])
        self._cluster.ask(Api.INCREMENTAL_ALTER_CONFIGS, request, altering.IncrementalAlterConfigsResponse, read)
