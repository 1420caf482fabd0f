"""Topics made with the broker's defaults: by CreateTopics with -1, and by clients that just use a name.

What a broker makes for a client goes through the controller, wherever that is.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.api.controller_protocols import TopicCreator
from penstock.cluster.running_config import RunningConfig
from penstock.core.metadata.decisions import check_topic_name, create_topic
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.model.errors import ApiError, ErrorCode, PenstockError

log = logging.getLogger(__name__)

MAX_PENDING = 1000  # topics being made for clients; who asks for more is told to ask again


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

        Raises ApiError for what can be known at once, so that whoever asked is told why.
        """
        if not self._running.current.auto_create_topics_enable or name in self._pending:
            return
        if len(self._pending) >= MAX_PENDING:
            return  # the client asks again
        if name in INTERNAL_TOPICS:
            return  # a coordinator makes its topic when it is first needed, with settings of its own
        # A rehearsal: the controller decides again when it is this topic's turn.
        partitions, factor = self.default_partitions, self.default_replication_factor
        create_topic(self._creator.image, self._creator.brokers, name, bytes(16), partitions, factor, {}, {})
        task = asyncio.ensure_future(self._create(name))
        self._pending[name] = task
        task.add_done_callback(lambda _: self._pending.pop(name))

    async def _create(self, name: str) -> None:
        try:
            await self._creator.create_topic(name, self.default_partitions, self.default_replication_factor, {}, {})
        except PenstockError as error:
            # Somebody created it meanwhile, which is what was wanted. Nobody waits for this task, so
            # anything else is said here; the next Metadata request tries again.
            if not (isinstance(error, ApiError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                log.warning("topic %s was not created for a client that asked for it: %s", name, error)
