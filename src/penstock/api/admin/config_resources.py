"""The resources that have settings: topics, brokers, groups, client-metrics subscriptions.

For DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: the valid names of a resource, the place of its settings,
their checks. Raises ApiError with Kafka's code and sentence. Must not know: the message classes of any API.

Broker resources are this broker ("<node id>") and the whole cluster (""). A request about another broker must be sent
to that broker: only it knows its file. So a change of a broker's settings is checked by that broker (`settle_here`) and
then made by the controller, like every other change. In Kafka a broker's loggers are a resource; here a broker has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum

from penstock.api.controller_protocols import TopicController
from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.config.alter import Alteration, alter_broker, alter_group, alter_topic
from penstock.config.client_metrics import alter_client_metrics, describe_client_metrics
from penstock.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from penstock.config.settings import AGREED_ON
from penstock.core.metadata.decisions import check_topic_name
from penstock.model.errors import ApiError, ConfigError, ErrorCode


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResources:
    def __init__(self, node_id: int, controller: TopicController, running: RunningConfig) -> None:
        self._node_id = node_id
        self._controller = controller
        self._running = running

    # -- describe -----------------------------------------------------------------------

    def describe(self, resource_type: ResourceType, name: str, names: Collection[str] | None) -> list[ConfigEntry]:
        settings = self._running.current.settings
        match resource_type:
            case ResourceType.TOPIC:
                check_topic_name(name)
                if name not in self._controller.image.topics:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                return describe_topic(self._overrides(resource_type, name), settings, names)
            case ResourceType.BROKER:
                if name == CLUSTER_WIDE:
                    return describe_broker_defaults(settings, names)
                self._check_described_broker(name, " or empty string,")
                return describe_broker(settings, names)
            case ResourceType.BROKER_LOGGER:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
                self._check_described_broker(name, "")
                return []
            case ResourceType.CLIENT_METRICS:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
                entries = describe_client_metrics(self._overrides(resource_type, name))
                return [entry for entry in entries if names is None or entry.name in names]
            case ResourceType.GROUP:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
                return describe_group(self._overrides(resource_type, name), settings, names)

    def _overrides(self, resource_type: ResourceType, name: str) -> Mapping[str, str]:
        return self._controller.image.configs.get((int(resource_type), name), {})

    def _check_described_broker(self, name: str, alternative: str) -> None:
        self._check_broker(name, "Broker id", f"{self._node_id}{alternative}")

    def _check_broker(self, name: str, noun: str, expected: str) -> None:
        try:
            int(name)
        except ValueError:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{noun} must be an integer, but it is: {name}") from None
        if name != str(self._node_id):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} but received {name}")

    # -- alter --------------------------------------------------------------------------

    def settle_here(
        self, resource_type: int, name: str, alterations: Sequence[Alteration], *, replace: bool = False
    ) -> bool:
        """The part that the receiving broker must handle. True: nothing is left for the controller.

        With `replace` the alterations are all settings the resource has from now on.
        """
        if resource_type == ResourceType.BROKER_LOGGER and not replace:
            self._check_broker(name, "Node id", f"{self._node_id},")
            if alterations:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {alterations[0].name} does not exist!")
            return True
        if resource_type == ResourceType.BROKER:
            if name != CLUSTER_WIDE:
                self._check_broker(name, "Node id", f"{self._node_id},")
            try:
                self._alter_broker(name, {} if replace else self._overrides(ResourceType.BROKER, name), alterations)
            except ConfigError as error:
                raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return False

    async def alter(
        self, resource_type: int, name: str, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> None:
        """On the controller: change some settings and keep the others."""
        decide = self._decision(resource_type, name, alterations)
        await self._change(resource_type, name, decide, validate_only)

    async def replace(
        self, resource_type: int, name: str, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> None:
        """On the controller: replace all settings of the resource."""
        decide = self._decision(resource_type, name, alterations)
        await self._change(resource_type, name, lambda _: decide({}), validate_only)

    async def _change(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        try:
            await self._controller.change_config(resource_type, name, decide, validate_only=validate_only)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _decision(
        self, resource_type: int, name: str, alterations: Sequence[Alteration]
    ) -> Callable[[Mapping[str, str]], dict[str, str]]:
        """A function from a resource's overrides to its new ones; the name is checked now, the rest when it runs."""
        settings = self._running.current.settings
        match resource_type:
            case ResourceType.TOPIC:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
                check_topic_name(name)
                return lambda current: self._alter_topic(name, current, alterations)
            case ResourceType.BROKER:
                return lambda current: self._alter_broker(name, current, alterations)
            case ResourceType.CLIENT_METRICS:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
                return lambda current: alter_client_metrics(current, alterations)
            case ResourceType.GROUP:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
                return lambda current: alter_group(current, alterations, settings)
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")

    def _alter_topic(self, name: str, current: Mapping[str, str], alterations: Sequence[Alteration]) -> dict[str, str]:
        overrides = alter_topic(current, alterations, self._running.current.settings)
        if name not in self._controller.image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return overrides

    def _alter_broker(self, name: str, current: Mapping[str, str], alterations: Sequence[Alteration]) -> dict[str, str]:
        settings = self._running.current.settings
        overrides = alter_broker(current, alterations, settings, cluster_wide=name == CLUSTER_WIDE)
        if len(self._controller.image.brokers) > 1:
            self._check_agreed(name, overrides)
        if name not in (CLUSTER_WIDE, str(self._node_id)):
            return overrides  # checked on that broker, against its file
        try:
            self._running.check(name, overrides)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        return overrides

    def _check_agreed(self, name: str, overrides: Mapping[str, str]) -> None:
        """These settings decide who may lead, so all brokers of a cluster must have the same values."""
        for key in AGREED_ON:
            if name != CLUSTER_WIDE and key in overrides:
                raise ConfigError(
                    f"{key} must be the same on all brokers: set it for all of them "
                    "(penstock configs set --all-brokers) or for a topic, not for a single broker"
                )
            if name == CLUSTER_WIDE and key not in overrides and key in self._overrides(ResourceType.BROKER, name):
                raise ConfigError(f"{key} cannot be deleted for all brokers of a cluster: set another value")
