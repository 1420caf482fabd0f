"""What a crash test of tables sends to its topics, and what the tables have to have in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from support.processes.cluster import QUIET_CLIENT

CLICKS, KEYED = "clicks", "keyed"
KEYS = 40
KINDS = 3
BURST = 20
EVERY_S = 0.1
FLUSH_S = 120


@dataclass(frozen=True, slots=True)
class Sent:
    topic: str
    value: str | None
    key: str | None = None


def click(number: int) -> Sent:
    return Sent(CLICKS, json.dumps({"id": number, "kind": f"k{number % KINDS}"}))


def is_bad(number: int) -> bool:
    return number % 17 == 5


def click_or_bad(number: int) -> Sent:
    return Sent(CLICKS, f"no JSON {number}") if is_bad(number) else click(number)


def change(number: int) -> Sent:
    """Every seventh one deletes its key."""
    return Sent(KEYED, None if number % 7 == 0 else f"{number}", f"key {number % KEYS}")


def newest(count: int) -> dict[str, str]:
    """The values that are left after so many changes."""
    found: dict[str, str] = {}
    for one in map(change, range(count)):
        assert one.key is not None
        if one.value is None:
            found.pop(one.key, None)
        else:
            found[one.key] = one.value
    return found


class Input:
    """Sends numbers from 0 on, some at a time, until it is stopped. An idempotent producer that never gives up: in the
    end all are acknowledged, and each is in its topic once."""

    def __init__(self, servers: str, make: Callable[[int], list[Sent]]) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": 600_000, **QUIET_CLIENT}
        self._producer = Producer({"bootstrap.servers": servers, **settings})
        self._make = make
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.failures: list[str] = []
        self.count = 0
        """Numbers that were sent."""
        self.acknowledged = 0
        """Records."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def finish(self) -> int:
        """Ends it. Returns the number of numbers, all of them acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(FLUSH_S) == 0, "not all was acknowledged"
        assert not self.failures, self.failures[0]
        assert self.acknowledged == sum(len(self._make(number)) for number in range(self.count))
        return self.count

    def _send(self) -> None:
        while not self._stop.is_set():
            for number in range(self.count, self.count + BURST):
                for one in self._make(number):
                    self._producer.produce(one.topic, one.value, one.key, on_delivery=self._delivered)
            self.count += BURST
            self._producer.poll(0)
            self._stop.wait(EVERY_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))
