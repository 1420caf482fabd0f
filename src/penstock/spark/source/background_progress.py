"""Commits a query's progress beside the query, at most once a second.

The query hands over what is finished, and goes on. A thread commits the newest of it: a commit that is overtaken while
it waits is never sent. The last one of a run is sent before the run ends: the query waits for it after its last batch,
and the process briefly before it ends (`termination`). Must not know: how a commit is made, or why it failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.group_progress import COMMIT_TIMEOUT_S, RETRY_S, Progress

INTERVAL_S = 1.0
ENDING_S = 1.0
"""How long the end of the process may wait. Longer than that, and the query's next run could be under way."""


class BackgroundProgress:
    def __init__(
        self, progress: Progress, clock: Callable[[], float] = time.monotonic, interval_s: float = INTERVAL_S
    ) -> None:
        """`progress` is used by the thread only."""
        self._progress = progress
        self._clock = clock
        self._interval_s = interval_s
        self._changed = threading.Condition()  # reentrant: a signal may arrive while it is held
        self._waiting: tuple[str, dict[TopicPartition, int], bool] | None = None
        self._handed: tuple[str, dict[TopicPartition, int]] | None = None
        self._handed_at = 0.0
        self._sent_at: float | None = None
        self._is_sending = False
        self._is_hurried = False
        self._thread: threading.Thread | None = None

    def report(self, group: str, positions: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
        """Everything before `positions` is finished. If it is the last report of a run, waits for the commit."""
        wanted, now = (group, dict(positions)), self._clock()
        with self._changed:
            # Now and then an idle query reports what is known, because a commit may have failed, or is due again.
            if wanted != self._handed or now - self._handed_at >= RETRY_S or is_last:
                self._handed, self._handed_at = wanted, now
                self._waiting = (*wanted, is_last)
                self._changed.notify_all()
                self._ensure_thread()
        if is_last:
            self._wait_for_commit(2 * COMMIT_TIMEOUT_S)

    def flush(self) -> None:
        self._wait_for_commit(ENDING_S)

    def _wait_for_commit(self, timeout_s: float) -> None:
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting is None and not self._is_sending, timeout_s)
            self._is_hurried = False

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._is_sending = False
            self._thread = threading.Thread(target=self._run, name="penstock-progress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            group, positions, is_last = self._next()
            try:
                self._progress.report(group, positions, is_last=is_last)
            finally:
                with self._changed:
                    self._is_sending, self._sent_at = False, self._clock()
                    self._changed.notify_all()

    def _next(self) -> tuple[str, dict[TopicPartition, int], bool]:
        with self._changed:
            while True:
                left_s = self._left_s()
                if self._waiting is not None and left_s <= 0:
                    found, self._waiting, self._is_sending = self._waiting, None, True
                    return found
                self._changed.wait(left_s if self._waiting is not None else None)

    def _left_s(self) -> float:
        if self._sent_at is None or self._is_hurried:
            return 0.0
        return self._sent_at + self._interval_s - self._clock()
