"""Matches the regular expressions of consumer groups in a separate process, before a group needs the result.

One at a time for the whole broker, some names at a time: expressions of hostile clients occupy only that process, which
has a low priority. Must not know: what groups do with the matches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from penstock.core.group import topic_regex
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.workers import RecordWorkers

log = logging.getLogger(__name__)

NAMES_AT_A_TIME: Final = 100
ROUNDS: Final = 3


class RegexMatching:
    def __init__(self, image: MetadataImage, processes: RecordWorkers) -> None:
        self._image = image
        self._processes = processes
        self._lock = asyncio.Lock()
        self._names: list[str] = []
        self._names_version: int | None = None
        self.jobs = 0

    def is_ready(self, regexes: Iterable[str]) -> bool:
        names, version = self._image.topics, self._image.topics_version
        return all(topic_regex.is_prepared(regex, names, version) for regex in regexes)

    async def prepare(self, regexes: list[str]) -> None:
        """Topics may be created meanwhile. After some rounds, the remaining topics are matched when the group needs
        them.

        Raises COORDINATOR_LOAD_IN_PROGRESS if the process is lost: the member tries again.
        """
        for _ in range(ROUNDS):
            for regex in regexes:
                await self._match(regex)
            if self.is_ready(regexes):
                return

    async def _match(self, regex: str) -> None:
        async with self._lock:
            image = self._image
            names = self._sorted_names()
            if topic_regex.is_prepared(regex, image.topics, image.topics_version):
                return
            expression = topic_regex.expression_of(regex)
            if not expression.makes_sense and expression.refusal is None:
                await self._learn(expression, [])  # even if there are no topics
            while (unknown := expression.unknown(names, NAMES_AT_A_TIME)) is not None:
                if unknown:
                    await self._learn(expression, unknown)
                else:
                    await asyncio.sleep(0)
            topic_regex.keep(expression)
            version = image.topics_version
            if not expression.knows(image.topics, version) and self._sorted_names() is names:
                expression.settle(image.topics, version, names)

    async def _learn(self, expression: topic_regex.Expression, names: list[str]) -> None:
        self.jobs += 1
        regex = expression.regex
        try:
            matched = await self._processes.call_patiently(topic_regex.match, regex, names)
        except ApiError as error:
            if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:  # it took too long
                message = f"SubscribedTopicRegex `{regex}` takes too long to match."
                error = ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
            expression.refusal = error
        except StorageError as error:
            log.warning("a consumer group's regular expression could not be matched, the member will retry: %s", error)
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Topics could not be matched just now.") from error
        else:
            expression.learn(names, matched)

    def _sorted_names(self) -> list[str]:
        """The names of all topics; the same list while the topics stay the same."""
        version = self._image.topics_version
        if self._names_version != version:
            self._names, self._names_version = sorted(self._image.topics), version
        return self._names
