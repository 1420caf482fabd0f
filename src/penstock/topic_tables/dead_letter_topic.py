"""Records that are no rows, in a topic: key, value and headers as they were, and headers that say why and from where.

They are acknowledged before the rows are committed. So a crash in between sends them again, and none is lost: at least
once. `error.topic`, `error.partition` and `error.offset` name the record, so a duplicate has all three the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Final, Protocol

from penstock.model.errors import PenstockError

REASON, TOPIC, PARTITION, OFFSET = "error.reason", "error.topic", "error.partition", "error.offset"
LOOK_S: Final = 0.5
PATIENCE_S: Final = 10.0
"""How long a stop waits for acknowledgements."""
MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 8 << 20
"""Of letters that are not acknowledged: a producer whose buffer is full does not notice a stop."""

Headers = list[tuple[str, bytes | None]]


class DeadLettersNotSent(PenstockError):
    pass


class RecordSender(Protocol):
    """A producer."""

    def submit(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes | None]]
    ) -> Future[Any]: ...


class DeadLetterTopic:
    def __init__(self, sender: RecordSender, name: str, of_topic: str, stop: threading.Event) -> None:
        self.name = name
        self._sender = sender
        self._of_topic = of_topic
        self._stop = stop

    def append(self, rows: Mapping[int, list[Any]], streams: Mapping[int, str], reached: Mapping[int, int]) -> int:
        """By partition: rows as in a table of dead letters. Waits until all are acknowledged.

        Raises DeadLettersNotSent; then they have to be sent again.
        """
        futures: list[Future[Any]] = []
        sent = size_bytes = 0
        try:
            for _, batches in sorted(rows.items()):
                for batch in batches:
                    for row in batch.to_pylist():
                        headers = self._headers(row)
                        future = self._sender.submit(self.name, row["value"], key=row["key"], headers=headers)
                        futures.append(future)
                        sent += 1
                        size_bytes += len(row["value"] or b"") + len(row["key"] or b"")
                        if len(futures) >= MAX_WAITING or size_bytes >= MAX_WAITING_BYTES:
                            self._wait(futures)
                            futures, size_bytes = [], 0
            self._wait(futures)
        except DeadLettersNotSent:
            raise
        except PenstockError as error:
            raise DeadLettersNotSent(f"dead letters cannot be sent to topic {self.name}: {error}") from error
        return sent

    def _headers(self, row: Mapping[str, Any]) -> Headers:
        told = {
            REASON: row["reason"],
            TOPIC: self._of_topic,
            PARTITION: str(row["partition"]),
            OFFSET: str(row["offset"]),
        }
        own = [(one["key"], one["value"]) for one in row["headers"] or ()]
        return [*own, *((name, text.encode()) for name, text in told.items())]

    def _wait(self, futures: list[Future[Any]]) -> None:
        """Raises what the first one failed with."""
        waiting: set[Future[Any]] = set(futures)
        stopped_s = None
        while waiting:
            done, waiting = wait(waiting, LOOK_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if self._stop.is_set():
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s > PATIENCE_S:
                    raise DeadLettersNotSent(
                        f"topic {self.name} has not acknowledged {len(waiting)} dead letters: the next run sends them"
                    )
