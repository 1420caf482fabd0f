"""Topics made with the broker's defaults: by CreateTopics with -1, and by clients that just use a name."""

from __future__ import annotations

import asyncio

from penstock.cluster.controller import Controller
from penstock.cluster.running_config import RunningConfig
from penstock.core.metadata.decisions import check_new_topic, check_topic_name
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.model.errors import ApiError, ErrorCode


class TopicCreation:
    def __init__(self, controller: Controller, running: RunningConfig) -> None:
        self._controller = controller
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
        """Start auto-creation if the broker allows it; many callers may ask for one name."""
        if not self._running.current.auto_create_topics_enable or name in self._pending:
            return
        if name in INTERNAL_TOPICS:
            return  # a coordinator makes its topic when it is first needed, with settings of its own
        check_new_topic(self._controller.image, name)
        task = asyncio.ensure_future(self._create(name))
        self._pending[name] = task
        task.add_done_callback(lambda _: self._pending.pop(name))

    async def _create(self, name: str) -> None:
        try:
            await self._controller.create_topic(name, self.default_partitions, self.default_replication_factor, {}, {})
        except ApiError as error:
            # Somebody created it meanwhile, which is what was wanted. Anything else the next
            # Metadata request meets again and answers.
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
