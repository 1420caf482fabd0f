"""Creates topics with the broker's defaults: for CreateTopics with -1, and for automatic creation.

A topic for a client is created by the controller, wherever it is.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.api.controller_protocols import TopicCreator
from penstock.cluster.running_config import RunningConfig
from penstock.core.metadata.decisions import check_topic_name, create_topic
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.new_topic import NewTopic

log = logging.getLogger(__name__)

MAX_PENDING = 1000  # topics under creation; beyond that clients must retry


class TopicCreation:
    def __init__(self, creator: TopicCreator, running: RunningConfig) -> None:
        self._creator = creator
        self._running = running
        self._pending: dict[str, asyncio.Task[None]] = {}

    @property
    def default_partitions(self) -> int:
        return self._running.current.num_partitions

    @property
    def default_replication_factor(self) -> int:
        return self._running.current.default_replication_factor

    def check_name(self, name: str) -> None:
        check_topic_name(name)

    def create_soon(self, name: str) -> None:
        """Start auto-creation if the broker allows it; many callers may ask for one name.

        Raises ApiError for errors that are known at once, so that the client gets the reason.
        """
        if not self._running.current.auto_create_topics_enable or name in self._pending:
            return
        if len(self._pending) >= MAX_PENDING:
            return  # the client retries
        if name in INTERNAL_TOPICS:
            return  # a coordinator creates its topic when first needed, with settings of its own
        # A check in advance: the controller decides again later.
        topic = NewTopic(name, self.default_partitions, self.default_replication_factor)
        create_topic(self._creator.image, self._creator.brokers, topic, bytes(16))
        task = asyncio.ensure_future(self._create(topic))
        self._pending[name] = task
        task.add_done_callback(lambda _: self._pending.pop(name))

    async def _create(self, topic: NewTopic) -> None:
        try:
            await self._creator.create_topic(topic)
        except PenstockError as error:
            # If the topic was created meanwhile, that is fine. No caller awaits this task, so any other error is logged
            # here; the next Metadata request tries again.
            if not (isinstance(error, ApiError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                log.warning("topic %s was not created for a client that asked for it: %s", topic.name, error)
