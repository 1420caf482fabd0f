"""DescribeConfigs and IncrementalAlterConfigs: the settings of one topic, broker or group in each request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire_client.requests.errors import check

TOPIC, BROKER, GROUP = 2, 4, 32
ALL_BROKERS: Final = ""
"""The broker resource without a name."""
SET, DELETE = 0, 1


def configs_request(kind: int, name: str, settings: Iterable[str] | None = None) -> DescribeConfigsRequest:
    """None asks for all settings."""
    asked = DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=None if settings is None else list(settings),
    )
    return DescribeConfigsRequest(resources=[asked])


def read_configs(answer: DescribeConfigsResponse) -> list[DescribeConfigsResourceResult]:
    """Raises ApiError."""
    found = answer.results[0]
    check(found.error_code, found.error_message)
    return found.configs


def alter_configs_request(
    kind: int, name: str, set_: Mapping[str, str], delete: Iterable[str] = ()
) -> IncrementalAlterConfigsRequest:
    """A setting that is not named stays. A deleted one falls back to its default."""
    changes = [
        *(AlterableConfig(name=setting, config_operation=SET, value=value) for setting, value in set_.items()),
        *(AlterableConfig(name=setting, config_operation=DELETE, value=None) for setting in delete),
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    return IncrementalAlterConfigsRequest(resources=[resource])


def check_altered(answer: IncrementalAlterConfigsResponse) -> None:
    """Raises ApiError."""
    check(answer.responses[0].error_code, answer.responses[0].error_message)
