"""The broker's current configuration: the file, overridden by the run-time settings in the metadata.

Run-time settings of this broker win over those of the whole cluster, and both win over the file. Users of a dynamic
setting subscribe; this module does not know them. The node that received a change ran `check` on it first; another
node's file may still contradict it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from penstock.config.broker import BrokerConfig
from penstock.config.settings import AGREED_ON, BROKER_KEYS
from penstock.core.metadata.image import RESOURCE_BROKER, MetadataImage
from penstock.model.errors import ConfigError

log = logging.getLogger(__name__)

CLUSTER_WIDE = ""  # resource name of the settings for all brokers


class RunningConfig:
    def __init__(self, file: BrokerConfig, image: MetadataImage) -> None:
        self._file = file
        self._image = image
        self._subscribers: list[Callable[[BrokerConfig], None]] = []
        self.current = self._combine(self._stored(CLUSTER_WIDE), self._stored(str(file.node_id)))

    def subscribe(self, apply: Callable[[BrokerConfig], None]) -> None:
        self._subscribers.append(apply)

    def check(self, resource_name: str, overrides: Mapping[str, str]) -> None:
        """Raises ConfigError if the settings as a whole would be invalid with these."""
        if resource_name == CLUSTER_WIDE:
            self._combine(overrides, self._stored(str(self._file.node_id)))
        else:
            self._combine(self._stored(CLUSTER_WIDE), overrides)

    def with_cluster_wide(self, overrides: Mapping[str, str]) -> BrokerConfig:
        """The configuration with these settings."""
        return self._combine(overrides, self._stored(str(self._file.node_id)))

    def overruled(self) -> Iterator[str]:
        """A sentence for each setting in this node's file that differs from the agreed cluster setting."""
        cluster = self._stored(CLUSTER_WIDE)
        for name in AGREED_ON:
            own, agreed = self._file.settings.static.get(name), cluster.get(name)
            if own is None or agreed is None:
                continue
            parse = BROKER_KEYS.key(name).parse
            if parse(own) != parse(agreed):
                yield (
                    f"{name}={own} in this node's settings has no effect: the cluster has {name}={agreed} for all "
                    f"nodes; change it with: penstock configs set --all-brokers {name}={own}"
                )

    def refresh(self) -> None:
        """The metadata changed. If it contradicts this node's file, the configuration stays as it was, and that is
        logged.
        """
        cluster, broker = self._stored(CLUSTER_WIDE), self._stored(str(self._file.node_id))
        in_force = self.current.settings
        if in_force.cluster_dynamic == cluster and in_force.broker_dynamic == broker:
            return
        try:
            changed = self._combine(cluster, broker)
        except ConfigError as error:
            log.error(
                "settings of the cluster contradict this node's file; this node keeps its previous settings: %s", error
            )
            return
        self.current = changed
        for apply in self._subscribers:
            apply(changed)

    def _stored(self, resource_name: str) -> Mapping[str, str]:
        return self._image.configs.get((RESOURCE_BROKER, resource_name), {})

    def _combine(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        if not cluster and not broker:
            return self._file
        return self._file.with_dynamic(cluster=cluster, broker=broker)
