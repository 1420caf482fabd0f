"""Visitors of a shop as a stream of clicks: JSON values keyed by user, some of them broken, at a steady rate.

The same seed gives the same clicks. Every click that was acknowledged is kept, partition by partition and in the order
in which it was sent, so that the end of the pipeline can be held against its beginning.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

from penstock.sdk import BlockingProducer, ClientError, Delivery

NEXT = {"/": 6, "/shoes": 5, "/shirts": 4, "/cart": 3, "/checkout": 1, "/account": 1}
BAD_SHARE = 0.01
FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK_S = 0.02
SILENT = {"log_level": 0}  # for librdkafka: a broker is killed on purpose


class Click(NamedTuple):
    user: str
    page: str
    at: datetime
    ms: int


def clicks(seed: int) -> Iterator[tuple[Click, bytes, bool]]:
    """Yields (click, value, whether it is good) without end."""
    random, at = Random(seed), FIRST
    pages, weights = list(NEXT), list(NEXT.values())
    while True:
        at += timedelta(milliseconds=random.randint(0, 40))
        user = f"user-{random.randrange(500):03}"
        click = Click(user, random.choices(pages, weights)[0], at, int(random.lognormvariate(4.6, 0.7)))
        fields = {"user": user, "page": click.page, "ts": at.isoformat(timespec="milliseconds"), "ms": click.ms}
        if random.random() >= BAD_SHARE:
            yield click, json.dumps(fields).encode(), True
        elif random.random() < 0.5:
            yield click, json.dumps(fields).encode()[:-20], False  # cut off
        else:
            yield click, json.dumps(fields | {"ms": -1}).encode(), False


class Acknowledged(NamedTuple):
    number: int
    """Clicks in the order of sending."""
    click: Click
    is_good: bool


class Clickstream(threading.Thread):
    """Sends `rate` clicks per second until it is stopped, with Penstock's Python client and its default settings."""

    def __init__(self, bootstrap: str, topic: str, rate: int, seed: int = 7) -> None:
        super().__init__(name="clickstream", daemon=True)
        self._producer = BlockingProducer(bootstrap, settings=SILENT)
        self._topic = topic
        self._rate = rate
        self._clicks = clicks(seed)
        self.acknowledged: dict[int, list[Acknowledged]] = {}
        """The times of acknowledgements, by partition."""
        self.error: str | None = None
        self._stopping = threading.Event()
        self._last_answer: dict[int, float] = {}
        self._longest_pause_s: dict[int, float] = {}

    @property
    def total(self) -> int:
        return sum(len(entries) for entries in list(self.acknowledged.values()))

    def count(self, *, good: bool) -> int:
        return sum(entry.is_good is good for entries in self.acknowledged.values() for entry in entries)

    def sent(self, partition: int) -> list[Click]:
        """The good clicks, in order."""
        return [entry.click for entry in sorted(self.acknowledged.get(partition, ())) if entry.is_good]

    @property
    def pages(self) -> Counter[str]:
        return Counter(entry.click.page for entries in self.acknowledged.values() for entry in entries if entry.is_good)

    def forget_pauses(self) -> None:
        self._longest_pause_s = {}

    def longest_pause_s(self, partitions: list[int]) -> float:
        """The longest time without an acknowledgement from a partition, since the last `forget_pauses`."""
        return max((self._longest_pause_s.get(partition, 0.0) for partition in partitions), default=0.0)

    def has_answer_since(self, at: float, partitions: list[int]) -> bool:
        return all(self._last_answer.get(partition, 0.0) > at for partition in partitions)

    def stop(self) -> None:
        """Returns when every click is acknowledged."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        begin = time.monotonic()
        sent = 0
        try:
            with self._producer:
                while not self._stopping.wait(TICK_S) and self.error is None:
                    for _ in range(int((time.monotonic() - begin) * self._rate) - sent):
                        self._send(sent)
                        sent += 1
        except ClientError as error:
            self.error = str(error)

    def _send(self, number: int) -> None:
        click, value, is_good = next(self._clicks)

        def acknowledged(result: Delivery | ClientError) -> None:
            if isinstance(result, ClientError):
                self.error = f"a click was refused: {result}"
                return
            now, partition = time.monotonic(), result.partition
            pause_s = now - self._last_answer.get(partition, now)
            self._longest_pause_s[partition] = max(self._longest_pause_s.get(partition, 0.0), pause_s)
            self._last_answer[partition] = now
            self.acknowledged.setdefault(partition, []).append(Acknowledged(number, click, is_good))

        self._producer.enqueue(self._topic, value, key=click.user, then=acknowledged)
