"""Visitors of a shop as a stream of clicks: JSON values keyed by user, some of them broken, at a steady rate.

The same seed gives the same clicks. What was acknowledged is counted, good and bad, so that the end of the pipeline can
be held against its beginning.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from confluent_kafka import KafkaError, KafkaException, Message, Producer

PAGES = ("/", "/shoes", "/shirts", "/cart", "/checkout", "/account")
NEXT = {"/": 6, "/shoes": 5, "/shirts": 4, "/cart": 3, "/checkout": 1, "/account": 1}
BAD_SHARE = 0.01
FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK_S = 0.05


def clicks(seed: int) -> Iterator[tuple[str, bytes, bool]]:
    """(user, value, whether it is a good click), without end."""
    random, at = Random(seed), FIRST
    pages, weights = list(NEXT), list(NEXT.values())
    while True:
        at += timedelta(milliseconds=random.randint(0, 40))
        user = f"user-{random.randrange(500):03}"
        click = {
            "user": user,
            "page": random.choices(pages, weights)[0],
            "ts": at.isoformat(timespec="milliseconds"),
            "ms": int(random.lognormvariate(4.6, 0.7)),
        }
        if random.random() >= BAD_SHARE:
            yield user, json.dumps(click).encode(), True
        elif random.random() < 0.5:
            yield user, json.dumps(click).encode()[:-20], False  # cut off
        else:
            yield user, json.dumps(click | {"ms": -1}).encode(), False


class Clickstream(threading.Thread):
    """Sends `rate` clicks a second for `seconds`, with a stock client that has no setting but the address."""

    def __init__(self, bootstrap: str, topic: str, rate: int, seconds: float, seed: int = 7) -> None:
        super().__init__(name="clickstream", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._topic = topic
        self._rate = rate
        self._seconds = seconds
        self._clicks = clicks(seed)
        self.acknowledged: Counter[bool] = Counter()
        """Good (True) and bad (False)."""
        self.pages: Counter[str] = Counter()
        self.error: str | None = None
        self._longest_silence_s = 0.0
        self._last_answer = 0.0

    @property
    def total(self) -> int:
        return self.acknowledged.total()

    @property
    def longest_silence_s(self) -> float:
        """Without an acknowledgement."""
        return self._longest_silence_s

    def run(self) -> None:
        begin = self._last_answer = time.monotonic()
        sent = 0
        try:
            while (elapsed := time.monotonic() - begin) < self._seconds:
                for _ in range(int(elapsed * self._rate) - sent):
                    self._send()
                    sent += 1
                self._producer.poll(TICK_S)
            if self._producer.flush(60):
                self.error = "not everything was acknowledged within 60 s"
        except KafkaException as error:
            self.error = str(error)

    def _send(self) -> None:
        user, value, is_good = next(self._clicks)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.error = f"a click was refused: {error}"
                return
            now = time.monotonic()
            self._longest_silence_s = max(self._longest_silence_s, now - self._last_answer)
            self._last_answer = now
            self.acknowledged[is_good] += 1
            if is_good:
                self.pages[json.loads(value)["page"]] += 1

        self._producer.produce(self._topic, key=user, value=value, on_delivery=delivered)
