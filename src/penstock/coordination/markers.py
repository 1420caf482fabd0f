"""Sends the markers of decided transactions to the leaders of their partitions.

A marker is sent until its partition has it, or is deleted, or another coordinator has taken over. Markers for another
broker travel together, one request at a time, so no request overtakes another. A partition whose leader is this broker
gets its markers without a detour, and no transaction waits there for another one's replicas.

Must not know: why a transaction ended. Invariants: `written` is called once for every partition of a transaction; the
markers of a former leadership of the coordinator are no longer sent (`MarkerTask.is_wanted`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.broker_link.peer_requests import PeerRequests
from penstock.core.metadata.image import MetadataImage
from penstock.core.txn.exchange import MarkersDue
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 1.0
TIMEOUT_S: Final = 10.0
MARKERS_PER_REQUEST: Final = 500
TRANSACTIONS_PER_TURN: Final = 16

DONE: Final = frozenset((ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT))
OVER: Final = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
"""Another coordinator has ended this transaction, or a later one: there is nothing left to do."""


class MarkerTask(NamedTuple):
    due: MarkersDue
    coordinator_epoch: int
    is_wanted: Callable[[], bool]
    """False once this coordinator is no longer the leader: then the next leader sends the markers."""
    written: Callable[[frozenset[Place]], None]


class Outgoing(NamedTuple):
    task: MarkerTask
    places: frozenset[Place]


class LocalPartitions(Protocol):
    """The partitions that this broker leads."""

    async def write(
        self, due: MarkersDue, coordinator_epoch: int, places: frozenset[Place]
    ) -> dict[Place, ErrorCode]: ...


class MarkerSender:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        image: MetadataImage,
        local: LocalPartitions,
        peers: PeerRequests,
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._image = image
        self._local = local
        self._peers = peers
        self._waiting: dict[int, list[Outgoing]] = {}
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, float] = {}
        self._writing: dict[asyncio.Task[None], None] = {}
        self._retries: set[asyncio.TimerHandle] = set()
        self._is_stopped = False

    @property
    def waiting(self) -> int:
        """Transactions whose markers wait for a broker."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._retries) + len(self._writing)

    def send(self, task: MarkerTask) -> None:
        self._route(task, task.due.partitions)

    def stop(self) -> None:
        self._is_stopped = True
        for worker in (*self._workers.values(), *self._writing):
            worker.cancel()
        for handle in self._retries:
            handle.cancel()
        self._waiting.clear()

    def _route(self, task: MarkerTask, places: frozenset[Place], pause_s: float = RETRY_S) -> None:
        """`pause_s`: the pause before partitions without a leader are checked again."""
        if self._is_stopped or not task.is_wanted():
            return
        by_broker: dict[int, set[Place]] = {}
        gone: set[Place] = set()
        unled: set[Place] = set()
        for place in sorted(places):
            topic, index = place
            state = self._image.topics.get(topic)
            if state is None or index >= len(state.partitions):
                gone.add(place)
            elif (leader := state.partitions[index].leader) < 0:
                unled.add(place)
            else:
                by_broker.setdefault(leader, set()).add(place)
        for broker, some in by_broker.items():
            self._waiting.setdefault(broker, []).append(Outgoing(task, frozenset(some)))
            if broker not in self._workers:
                self._workers[broker] = self._loop.create_task(self._work(broker))
        if unled:
            self._later(task, frozenset(unled), pause_s)
        if gone:
            log.info("%s: %s was deleted, so it needs no marker", task.due.transactional_id, _named(gone))
            task.written(frozenset(gone))

    def _later(self, task: MarkerTask, places: frozenset[Place], pause_s: float) -> None:
        if self._is_stopped:
            return

        def again() -> None:
            self._retries.discard(handle)
            self._route(task, places, min(2 * pause_s, LONGEST_RETRY_S))

        handle = self._loop.call_later(pause_s, again)
        self._retries.add(handle)

    async def _work(self, broker: int) -> None:
        """Runs until no markers wait for this broker."""
        some: list[Outgoing] = []
        try:
            while queue := self._waiting.get(broker):
                some, self._waiting[broker] = queue[:MARKERS_PER_REQUEST], queue[MARKERS_PER_REQUEST:]
                some = [one for one in some if one.task.is_wanted()]
                if broker == self._node_id:
                    await self._deliver_here(some)
                elif some:
                    await self._deliver(broker, some)
                some = []
        finally:
            # A defect must not lose a marker: a missing marker blocks its partition for ever.
            for one in (*some, *self._waiting.pop(broker, ())):
                self._later(one.task, one.places, LONGEST_RETRY_S)
            self._workers.pop(broker, None)

    async def _deliver_here(self, some: list[Outgoing]) -> None:
        """Appended in their order, a few in each turn of the loop."""
        for count in range(len(some)):
            one = some.pop(0)
            task = self._loop.create_task(self._write_here(one))
            self._writing[task] = None
            task.add_done_callback(self._written_here)
            if count % TRANSACTIONS_PER_TURN == TRANSACTIONS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _written_here(self, task: asyncio.Task[None]) -> None:
        del self._writing[task]

    async def _write_here(self, one: Outgoing) -> None:
        codes: dict[Place, ErrorCode] | None = None
        try:
            codes = await self._local.write(one.task.due, one.task.coordinator_epoch, one.places)
        finally:
            if codes is None:  # a defect: as in `_work`
                self._later(one.task, one.places, LONGEST_RETRY_S)
        if not self._answered(self._node_id, one, codes):
            self._pauses.pop(self._node_id, None)

    async def _deliver(self, broker: int, some: Sequence[Outgoing]) -> None:
        answers = await self._ask(broker, some)
        left_any = False
        # All or none: an answered marker is not sent again after a defect, the next transaction may have begun.
        for one, codes in list(zip(some, answers, strict=True)):
            left_any |= self._answered(broker, one, codes)
        if not left_any:
            self._pauses.pop(broker, None)

    def _answered(self, broker: int, one: Outgoing, codes: dict[Place, ErrorCode]) -> bool:
        """Return whether something must be retried."""
        written = frozenset(place for place in one.places if codes.get(place) in DONE)
        over = {place for place in one.places if codes.get(place) in OVER}
        if over:
            log.info(
                "%s: %s: the marker for %s is refused (%s): another coordinator has ended this transaction",
                one.task.due.transactional_id,
                f"broker {broker}",
                _named(over),
                codes[min(over)].name,
            )
        if written:
            one.task.written(written)
        left = one.places - written - over
        if left:
            pause_s = self._pauses[broker] = min(max(2 * self._pauses.get(broker, 0.0), RETRY_S), LONGEST_RETRY_S)
            self._later(one.task, left, pause_s)
        return bool(left)

    async def _ask(self, broker: int, some: Sequence[Outgoing]) -> list[dict[Place, ErrorCode]]:
        request = WriteTxnMarkersRequest(markers=[_message(one) for one in some])
        try:
            answer = await self._peers.ask(broker, Api.WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse, TIMEOUT_S)
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut) as error:
            log.debug("markers for broker %d will be sent again: %s", broker, error)
            return [{} for _ in some]
        # In the order of the request: it may contain a producer id twice.
        return [
            {
                (topic.name, partition.partition_index): ErrorCode(partition.error_code)
                for topic in marker.topics
                for partition in topic.partitions
            }
            for marker in answer.markers
        ]


def _message(one: Outgoing) -> WritableTxnMarker:
    due = one.task.due
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(one.places):
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=due.producer_id,
        producer_epoch=due.epoch,
        transaction_result=due.is_commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        coordinator_epoch=one.task.coordinator_epoch,
        transaction_version=due.version,
    )


def _named(places: set[Place]) -> str:
    shown = [f"{topic}-{index}" for topic, index in sorted(places)[:5]]
    return ", ".join(shown) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
