"""Topic settings that decide who may lead: the topic's overrides over this node's settings. Read at each call."""

from __future__ import annotations

from penstock.cluster.running_config import RunningConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import MetadataImage


class ConfiguredPolicies:
    """A `core.metadata.policies.TopicPolicies`."""

    def __init__(self, image: MetadataImage, running: RunningConfig) -> None:
        self._image = image
        self._running = running

    def min_isr(self, topic: str) -> int:
        return self._config(topic).min_insync_replicas

    def unclean_ok(self, topic: str) -> bool:
        return self._config(topic).unclean_leader_election_enable

    def is_durable(self, topic: str) -> bool:
        return is_durable(self._config(topic))

    def _config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self._image.topic_overrides(topic), self._running.current)


def is_durable(config: TopicConfig) -> bool:
    """Whether acknowledged records are on the disk, so that a crash does not lose them."""
    return config.flush_messages <= 1
