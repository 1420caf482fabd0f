"""The cluster as consumer groups see it: its topics and a group's settings."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from penstock.cluster.running_config import RunningConfig
from penstock.config.broker import BrokerConfig
from penstock.config.group import GROUP_KEYS, group_value
from penstock.core.group.assignors import ASSIGNORS
from penstock.core.group.consumer_exchange import ConsumerSettings
from penstock.core.group.consumer_group import TopicInfo
from penstock.core.metadata import features
from penstock.core.metadata.image import RESOURCE_GROUP, MetadataImage


class ImageTopics:
    """The metadata image as `consumer_group.Topics`."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.topics_version

    def find(self, name: str) -> TopicInfo | None:
        topic = self._image.topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Collection[str]:
        return self._image.topics


class ConsumerSettingsOf:
    """The group's settings over the broker's. Read with every heartbeat, so the broker's are cached."""

    def __init__(self, running: RunningConfig, image: MetadataImage) -> None:
        self._running = running
        self._image = image
        self._config = running.current
        self._default = _settings(self._config)

    @property
    def is_enabled(self) -> bool:
        """Whether the cluster and this broker have KIP-848 enabled."""
        return self._of_broker().is_enabled and features.level_of(self._image, features.GROUP_VERSION) > 0

    def _of_broker(self) -> ConsumerSettings:
        config = self._running.current
        if config is not self._config:
            self._config, self._default = config, _settings(config)
        return self._default

    def __call__(self, group_id: str) -> ConsumerSettings:
        default = self._of_broker()
        overrides = self._image.configs.get((RESOURCE_GROUP, group_id))
        if not overrides:
            return default
        heartbeat_ms, session_ms, assignment_ms = (
            cast(int, group_value(GROUP_KEYS[f"consumer.{name}"], overrides, self._config.settings))
            for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
        )
        return default._replace(
            heartbeat_interval_ms=heartbeat_ms, session_timeout_ms=session_ms, assignment_interval_ms=assignment_ms
        )


def _settings(config: BrokerConfig) -> ConsumerSettings:
    policy = cast(str, config.settings.value("group.consumer.migration.policy")).lower()
    known = tuple(name for name in config.group_consumer_assignors if name in ASSIGNORS)
    return ConsumerSettings(
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        assignment_interval_ms=cast(int, config.settings.value("group.consumer.assignment.interval.ms")),
        max_size=config.group_consumer_max_size,
        assignors=known or tuple(ASSIGNORS),
        can_upgrade=policy in ("upgrade", "bidirectional"),
        can_downgrade=policy in ("downgrade", "bidirectional"),
        is_enabled="consumer" in cast(tuple[str, ...], config.settings.value("group.coordinator.rebalance.protocols")),
    )
