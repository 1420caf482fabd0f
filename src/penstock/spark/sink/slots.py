"""The transactional ids of a worker process, reused from task to task: a coordinator remembers each id for a week.

An id belongs to a process, never to a partition: a late attempt with the id of another would abort what that one has
finished. A task leaves its transaction open for the driver. So an id is used again only where that transaction has
ended: in a later batch of the same run, because Spark begins a batch only after the commit of the one before; or when
the coordinator says so. Ids that the last decision may list are not used at all: whoever finishes it sees by their
state whether their transactions were committed.

Must not know: requests, what is written. Thread safe.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock.spark.options.cluster import ClusterOptions
from penstock.spark.sink.decisions import task_prefix

MAX_RESTING = 64
"""How many unused ids a process keeps, of all queries."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a query: from its start to its stop or failure."""

    query_id: str
    run_id: str


@dataclass(slots=True)
class Slot:
    transactional_id: str
    run: Run
    batch_id: int
    """The batch that its last transaction belongs to."""


class Slots:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._worker = ""
        self._count = 0
        self._resting: dict[str, tuple[ClusterOptions, Slot]] = {}

    def take(
        self, cluster: ClusterOptions, run: Run, batch_id: int, last_decided: int, has_ended: Callable[[str], bool]
    ) -> Slot:
        """An id that no other task uses. `has_ended` asks a coordinator whether no transaction of an id is open.

        `last_decided`: the last batch of the query that is decided.
        """
        doubtful: list[Slot] = []
        with self._lock:
            self._begin_process()
            for name, (of, slot) in list(self._resting.items()):
                if of != cluster or slot.run.query_id != run.query_id or slot.batch_id >= last_decided:
                    continue
                if slot.run == run and slot.batch_id < batch_id:
                    del self._resting[name]
                    return Slot(name, run, batch_id)
                if slot.run != run:
                    doubtful.append(slot)
            for slot in doubtful:
                del self._resting[slot.transactional_id]
        found: str | None = None
        for slot in doubtful:
            # An id whose transaction is still open is not used again: only the driver may end that.
            if has_ended(slot.transactional_id):
                if found is None:
                    found = slot.transactional_id
                else:
                    self.give_back(cluster, slot)
        return Slot(found or self._new(run.query_id), run, batch_id)

    def give_back(self, cluster: ClusterOptions, slot: Slot) -> None:
        """When a task ends. Its transaction may still be open."""
        with self._lock:
            self._begin_process()
            self._resting[slot.transactional_id] = cluster, slot
            if len(self._resting) > MAX_RESTING:
                self._resting.pop(next(iter(self._resting)))

    def _new(self, query_id: str) -> str:
        with self._lock:
            self._count += 1
            return f"{task_prefix(query_id)}{self._worker}-{self._count}"

    def _begin_process(self) -> None:
        """A forked child has ids of its own."""
        if self._pid != os.getpid():
            self._pid, self._worker, self._count = os.getpid(), uuid.uuid4().hex[:12], 0
            self._resting.clear()


slots = Slots()
"""Those of this process."""
