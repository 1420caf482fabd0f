"""Regular expressions of consumer groups, matched in a worker before a group asks.

One at a time for the whole broker, some names at a time: expressions of hostile clients take one worker, and others get
that one in between. Must not know: what groups do with what matches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from penstock.core.group import topic_regex
from penstock.core.metadata.image import MetadataImage
from penstock.ports.workers import Workers

NAMES_AT_A_TIME: Final = 50
ROUNDS: Final = 3


class RegexMatching:
    def __init__(self, image: MetadataImage, workers: Workers) -> None:
        self._image = image
        self._workers = workers
        self._lock = asyncio.Lock()
        self._names: list[str] = []
        self._names_version: int | None = None
        self.jobs = 0

    def is_ready(self, regexes: Iterable[str]) -> bool:
        names, version = self._image.topics, self._image.topics_version
        return all(topic_regex.is_prepared(regex, names, version) for regex in regexes)

    async def prepare(self, regexes: list[str]) -> None:
        """Topics may come meanwhile: what is left after some rounds is matched when the group asks."""
        for _ in range(ROUNDS):
            for regex in regexes:
                await self._match(regex)
            if self.is_ready(regexes):
                return

    async def _match(self, regex: str) -> None:
        async with self._lock:
            image = self._image
            names = self._sorted_names()
            is_done = topic_regex.is_prepared(regex, image.topics, image.topics_version)
            while not is_done:
                self.jobs += 1
                is_done = await self._workers.run(partial(topic_regex.prepare, regex, names, NAMES_AT_A_TIME))
            version = image.topics_version
            if not topic_regex.is_prepared(regex, image.topics, version) and self._sorted_names() is names:
                topic_regex.settle(regex, image.topics, version, names)

    def _sorted_names(self) -> list[str]:
        """Of all topics; the same list as long as they are the same."""
        version = self._image.topics_version
        if self._names_version != version:
            self._names, self._names_version = sorted(self._image.topics), version
        return self._names
