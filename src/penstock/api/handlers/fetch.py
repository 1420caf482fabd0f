"""Fetch (key 1), versions 4-18.

- Whole batches only, the first one even when it is larger than the limits (KIP-74). Payload
  leaves by sendfile: the bytes on disk are the bytes on the wire.
- Long poll: parked until min_bytes are readable, an error turns up, or max_wait is over.
- Sessions (KIP-227) for clients that ask for them, and for followers always.
- Data this process has not checked, or that is not in the page cache, is read and its
  checksums verified in a worker first. A damaged batch is CORRUPT_MESSAGE, never bytes.
- Followers (replica id >= 0) read to the end of the log and say by what they ask for what
  they hold; on durable topics they say that apart (`replica_acknowledgement`). They have
  shown the cluster's secret on their connection; anybody else's is closed.
- Consumers may read from followers (KIP-392); with RackAwareReplicaSelector the leader
  names one in the consumer's rack.
- Who leads instead is told with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.fetch_request import PARTITIONS_PER_STEP, Fetch, Found, error_data
from penstock.api.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_SESSION_PARTITIONS,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    SessionPartition,
)
from penstock.api.fetch_watch import FetchWatch
from penstock.api.follower_connections import FollowerConnections
from penstock.api.leader_hints import EndpointOf, LeaderHints, nowhere
from penstock.api.traffic import Traffic
from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, ProtocolError, StorageError, Stranger
from penstock.net.connection import Connection
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.replica.replication import RACK_AWARE_SELECTOR, preferred_read_replica
from penstock.replica.throttle import ReplicationQuota, is_throttled_on_leader
from penstock.storage.lookups import Lookup
from penstock.storage.slices import LogSlice
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

log = logging.getLogger(__name__)

MAX_REPORTED = 1000
NOT_SERVED = "it is not served"  # as the log says of a damaged batch
# Up to here one read, and one send together with what surrounds it, are cheaper than two probes and sendfile.
INLINE_BYTES = 32 << 10
MAX_LOOKUPS = 3  # in workers, for one fetch: pages may be gone again when the loop looks
FIRST_WITH_LEADER_HINTS = 16
STEP_ITEMS = 128
ELSEWHERE = frozenset({int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)})


class FetchHandler:
    api: ClassVar = Api.FETCH
    min_version: ClassVar = 4
    max_version: ClassVar = 18
    bounds: ClassVar = WIDE

    def __init__(
        self,
        partitions: HostedPartitions,
        sessions: FetchSessions,
        workers: Workers,
        loop: asyncio.AbstractEventLoop,
        traffic: Traffic,
        *,
        max_bytes: int,
        endpoint_of: EndpointOf = nowhere,
        followers: FollowerConnections | None = None,
    ) -> None:
        self._partitions = partitions
        self.sessions = sessions
        self._followers = followers or FollowerConnections()
        self._workers = workers
        self._loop = loop
        self._max_bytes = max_bytes
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._reported: dict[str, None] = {}
        self._traffic = traffic
        self._hints = LeaderHints(partitions, endpoint_of)
        self._watches: dict[int, FetchWatch] = {}  # by session
        self._watched_sessions: dict[Connection, int] = {}
        sessions.when_evicted = self._stop_watching
        self.quota = ReplicationQuota()
        self.cold_reads = 0
        self.cold_lookups = 0
        self.replicated_bytes = 0  # sent to followers

    # -- what a fetch needs -----------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def now_ms(self) -> int:
        return self._partitions.host.now_ms()

    def find(self, version: int, asked: SessionPartition) -> Partition:
        if version >= 13:
            return self._partitions.get_by_id(asked.topic_id, asked.index)
        return self._partitions.get(asked.topic, asked.index)

    @property
    def _is_rack_aware(self) -> bool:
        return self._partitions.broker.replica_selector_class == RACK_AWARE_SELECTOR

    def preferred_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        if partition.followers is None or not self._is_rack_aware:
            return None
        hosted = self._partitions
        return preferred_read_replica(partition.followers, offset, rack, hosted.rack_of, hosted.host.node_id)

    def is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Never one that is in sync: throttling it would take it out of the ISR."""
        return self._is_throttled(partition, replica_id) and self.quota.wait_s(self._loop.time()) > 0

    def _is_throttled(self, partition: Partition, replica_id: int) -> bool:
        return replica_id not in partition.isr and is_throttled_on_leader(
            partition.config, partition.index, partition.node_id
        )

    def finish(self, fetch: Fetch) -> None:
        answer = self.answer(fetch)
        if isinstance(answer, FetchResponse):
            fetch.ctx.respond(answer)
        else:
            self._run(fetch.ctx, answer)

    # -- requests ---------------------------------------------------------------------------------------------

    def handle(
        self, ctx: RequestContext, request: FetchRequest
    ) -> FetchResponse | Coroutine[Any, Any, FetchResponse | None] | None:
        fetch = Fetch(self, ctx, request, min(request.max_bytes, self._max_bytes))
        if fetch.is_of_follower and not ctx.connection.is_peer:
            raise Stranger(f"a fetch as replica {fetch.replica_id} without the cluster's secret")
        if fetch.is_of_follower and self._followers.is_outdated(fetch.replica_id, ctx.connection):
            ctx.connection.abort()  # nobody listens there; a follower that does comes back on a younger one
            return None
        if fetch.is_of_follower:
            self.quota.rate = self._partitions.broker.leader_replication_throttled_rate
        if _is_wide(request):
            ctx.connection.hold()
            return self._serve_wide(fetch, request, self._resolve_in_steps(fetch, request))
        fetch.asked = [_asked(topic, one) for topic in request.topics for one in topic.partitions]
        if len(fetch.asked) > 1:
            # As on Kafka the last one counts where a partition is named twice.
            fetch.asked = list({(one.topic, one.topic_id, one.index): one for one in fetch.asked}.values())
        session = self._session_of(fetch, request)
        if session is not None:
            fetch.asked = [session.put(one) for one in fetch.asked]
            self._end_resolving(fetch, session)
            if len(fetch.asked) + (fetch.watch.due if fetch.watch is not None else 0) > PARTITIONS_PER_STEP:
                ctx.connection.hold()
                return self._serve_wide(fetch, request)
        fetch.first_look(fetch.asked)
        if self._is_ready(fetch, request):
            return self.answer(fetch)
        fetch.park(request.max_wait_ms / 1000, self._loop.call_later)
        return None

    def _is_ready(self, fetch: Fetch, request: FetchRequest) -> bool:
        """Whether there is something to say, or nothing to wait for."""
        if request.max_wait_ms <= 0 or fetch.is_satisfied:
            return True
        if fetch.found:
            return False
        is_idle = fetch.watch is not None and (fetch.is_of_follower or (fetch.session and fetch.session.partitions))
        return not is_idle

    async def _serve_wide(
        self, fetch: Fetch, request: FetchRequest, resolving: Generator[None, None, None] | None = None
    ) -> FetchResponse | None:
        """The same in turns of its own. The connection waits for it."""
        pace = fetch.ctx.pace
        fetch.is_wide = True
        if resolving is not None:
            await pace.finish(resolving)
        try:
            await pace.finish(fetch.first_look_in_steps(fetch.asked))
            if not self._is_ready(fetch, request) and not await fetch.wait_in_turns(
                request.max_wait_ms / 1000, self._loop.call_later
            ):
                return None
        finally:
            fetch.unpark()
        answer = self.answer(fetch)
        return await answer if not isinstance(answer, FetchResponse) else answer

    def _resolve_in_steps(self, fetch: Fetch, request: FetchRequest) -> Generator[None, None, None]:
        asked: dict[tuple[str, bytes, int], SessionPartition] = {}
        count = 0
        for topic in request.topics:
            for one in topic.partitions:
                asked[topic.topic, topic.topic_id, one.partition] = _asked(topic, one)
                count += 1
                if not count % STEP_ITEMS:
                    yield
        fetch.asked = list(asked.values())
        session = self._session_of(fetch, request)
        if session is None:
            return
        remembered: list[SessionPartition] = []
        for put in fetch.asked:
            remembered.append(session.put(put))
            if not len(remembered) % STEP_ITEMS:
                yield
        fetch.asked = remembered
        self._end_resolving(fetch, session)

    def _session_of(self, fetch: Fetch, request: FetchRequest) -> FetchSession | None:
        """The one that is gone on with or begun, without what it is asked for now. Raises ApiError."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH) and request.session_id != NO_SESSION:
            self._close_session(request.session_id)
        if epoch == FINAL_EPOCH:
            return None
        now, uses_topic_ids = self._loop.time(), fetch.ctx.version >= 13
        if epoch == INITIAL_EPOCH:
            session = self.sessions.start(uses_topic_ids=uses_topic_ids, now=now, is_of_follower=fetch.is_of_follower)
            if session is None:
                return None
        else:
            session = self.sessions.use(request.session_id, epoch, uses_topic_ids=uses_topic_ids, now=now)
            fetch.is_incremental = True
            fetch.watch = self._watches.get(session.id)
            for forgotten in request.forgotten_topics_data:
                for index in forgotten.partitions:
                    known = session.forget(forgotten.topic, forgotten.topic_id, index)
                    if known is not None and fetch.watch is not None:
                        fetch.watch.forget(known)
        if len(session.partitions) + len(fetch.asked) > MAX_SESSION_PARTITIONS:
            self._close_session(session.id)  # the client begins anew, with what it reads now
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        fetch.session, fetch.session_id = session, session.id
        return session

    def _end_resolving(self, fetch: Fetch, session: FetchSession) -> None:
        """The session knows what it is asked for: what of that has to be looked at?"""
        manner = fetch.manner
        if fetch.watch is None or session.manner != manner or (fetch.rack and self._is_rack_aware):
            # What has not changed is not known, or counts for another kind of reading: a look at everything.
            fetch.asked = list(session.partitions.values())
        if fetch.watch is None and not (session.is_of_follower and fetch.is_incremental):
            self._watch(fetch, session)
        session.manner = manner

    def _watch(self, fetch: Fetch, session: FetchSession) -> None:
        is_of_follower = session.is_of_follower
        watch = FetchWatch(is_of_follower=is_of_follower, is_eager=not is_of_follower or self._is_rack_aware)
        fetch.watch = self._watches[session.id] = watch
        self._tie_to_connection(session, watch, fetch.ctx.connection)

    def _tie_to_connection(self, session: FetchSession, watch: FetchWatch, connection: Connection) -> None:
        """One watch a connection: a client that begins anew does not come back to the session before.

        A follower's session ends with its connection. A consumer's does not, but nobody keeps watch for it any more;
        should it come back, everything is looked at once."""
        before = self._watched_sessions.get(connection)
        if before is not None:
            (self._close_session if session.is_of_follower else self._stop_watching)(before)
        closes = partial(self._close_session if session.is_of_follower else self._stop_watching, session.id)
        connection.when_closed[closes] = None
        self._watched_sessions[connection] = session.id

        def untie() -> None:
            connection.when_closed.pop(closes, None)
            self._watched_sessions.pop(connection, None)

        watch.on_close = untie

    def _close_session(self, session_id: int) -> None:
        self.sessions.close(session_id)
        self._stop_watching(session_id)

    def _stop_watching(self, session_id: int) -> None:
        watch = self._watches.pop(session_id, None)
        if watch is not None:
            watch.close()

    # -- answering ----------------------------------------------------------------------

    def answer(self, fetch: Fetch) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        return self._look_up_and_answer(fetch) if fetch.cold else self._answer(fetch)

    async def _look_up_and_answer(self, fetch: Fetch) -> FetchResponse:
        """Find in a worker what could not be found in memory. What is cold again and again waits for the next fetch."""
        for _ in range(MAX_LOOKUPS):
            lookups = fetch.take_cold()
            self.cold_lookups += len(lookups)
            outcomes = await self._workers.run(partial(_look_up, [lookup for _, _, lookup in lookups]))
            found: list[SessionPartition] = []
            for (asked, partition, lookup), failure in zip(lookups, outcomes, strict=True):
                if failure is None:
                    partition.log.reader.end_lookup(lookup)
                    found.append(asked)
                elif partition.log.reader.is_stale(lookup):
                    found.append(asked)  # cut or compacted meanwhile: it was looking at what is gone
                else:
                    self._report(partition, failure)
                    fetch.put_error(asked, partition, ErrorCode(failure.code))
            await fetch.ctx.pace.finish(fetch.look_at(found))
            if not fetch.cold:
                break
        fetch.leave_cold()
        answer = self._answer(fetch)
        return answer if isinstance(answer, FetchResponse) else await answer

    def _answer(self, fetch: Fetch) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        if fetch.is_wide:
            return self._answer_in_turns(fetch)
        cold = [
            (data, partition)
            for _, data, partition in fetch.found.values()
            if data.records and partition is not None and self._is_cold(fetch, data, partition)
        ]
        if cold:
            return self._warm_and_respond(fetch, cold)
        response = FetchResponse(session_id=fetch.session_id)
        for found in fetch.found.values():
            self._tell(fetch, response, found)
        return self._end_response(fetch, response)

    async def _answer_in_turns(self, fetch: Fetch) -> FetchResponse:
        cold: list[tuple[PartitionData, Partition]] = []
        async for _, data, partition in fetch.ctx.pace.each(fetch.found.values()):
            if data.records and partition is not None and self._is_cold(fetch, data, partition):
                cold.append((data, partition))
        return await (self._warm_and_respond(fetch, cold) if cold else self._respond_in_turns(fetch))

    async def _respond_in_turns(self, fetch: Fetch) -> FetchResponse:
        response = FetchResponse(session_id=fetch.session_id)
        async for found in fetch.ctx.pace.each(fetch.found.values()):
            self._tell(fetch, response, found)
        return self._end_response(fetch, response)

    def _is_cold(self, fetch: Fetch, data: PartitionData, partition: Partition) -> bool:
        """Whether it has to be read in a worker first. What is small and warm is taken."""
        piece = data.records
        if not isinstance(piece, LogSlice):
            return False
        if not piece.is_trusted():
            return True
        inline = piece.file.read_cached(piece.position, piece.size) if piece.size <= INLINE_BYTES else None
        if inline is not None:
            self._count(fetch, partition, piece)
            data.records = inline
            return False
        return not _is_unflushed(partition, piece) and not piece.file.is_cached(piece.position, piece.size)

    async def _warm_and_respond(self, fetch: Fetch, cold: list[tuple[PartitionData, Partition]]) -> FetchResponse:
        """Read and check the cold slices in a worker; the pages stay in the cache for sendfile."""
        self.cold_reads += 1
        slices = [
            # Where there are other replicas to repair from, a wrong epoch counts as damage: they would not take it.
            (partition.log, data.records, partition.log.epochs.copy() if len(partition.replicas) > 1 else None)
            for data, partition in cold
            if isinstance(data.records, LogSlice)
        ]

        def verify() -> list[LogSlice | StorageError]:
            outcomes: list[LogSlice | StorageError] = []
            for owner, piece, epochs in slices:
                try:
                    outcomes.append(owner.reader.verify_slice(piece, epochs))
                except StorageError as error:
                    outcomes.append(error)
                except OSError as error:
                    outcomes.append(StorageError(f"cannot read {piece!r}: {error}"))
            return outcomes

        outcomes = await self._workers.run(verify)
        for (data, partition), outcome in zip(cold, outcomes, strict=True):
            if isinstance(outcome, LogSlice):
                partition.log.reader.mark_trusted(outcome)
                data.records = outcome
            else:
                self._report(partition, outcome)
                failed = error_data(data.partition_index, outcome.code)
                data.error_code, data.records = failed.error_code, failed.records
        return await self._respond_in_turns(fetch)

    def _report(self, partition: Partition, failure: StorageError) -> None:
        """Once for each damaged batch; clients ask for it again and again."""
        if str(failure) not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported[str(failure)] = None
            if isinstance(failure, CorruptBatch):
                log.critical("%r: %s; %s", partition, failure, NOT_SERVED)
            else:  # out of descriptors, say: that may pass
                log.error("%r: %s; the fetch is answered with an error", partition, failure)
        if isinstance(failure, CorruptBatch):
            partition.report_damage(failure.path)

    def _tell(self, fetch: Fetch, response: FetchResponse, found: Found) -> None:
        asked, data, partition = found
        session = fetch.session
        if partition is not None and isinstance(data.records, LogSlice):
            self._count(fetch, partition, data.records)
        if session is not None:
            if fetch.is_incremental and not _is_news(asked, data):
                return
            asked.sent_high_watermark = data.high_watermark
            asked.sent_log_start_offset = data.log_start_offset
            asked.had_error = data.error_code != 0
            if data.records:
                session.move_to_end(asked)
                if fetch.watch is not None:
                    fetch.watch.move_to_end(asked)
        current = response.responses[-1] if response.responses else None
        if current is None or current.topic != asked.topic or current.topic_id != asked.topic_id:
            current = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id)
            response.responses.append(current)
        current.partitions.append(data)

    def _end_response(self, fetch: Fetch, response: FetchResponse) -> FetchResponse:
        if fetch.is_urgent and fetch.ctx.version >= FIRST_WITH_LEADER_HINTS:
            self._add_leaders(fetch.ctx, response)
        return response

    def _count(self, fetch: Fetch, partition: Partition, sent: LogSlice) -> None:
        if fetch.is_of_follower:
            self.replicated_bytes += sent.size
            if self._is_throttled(partition, fetch.replica_id):
                self.quota.record(sent.size, self._loop.time())
            return  # replication is no client's traffic
        traffic = self._traffic.of(partition.topic)
        traffic.bytes_out += sent.size
        traffic.records_out += sent.next_offset - sent.offset

    def _add_leaders(self, ctx: RequestContext, response: FetchResponse) -> None:
        leaders: list[int] = []
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code in ELSEWHERE:
                    leader, epoch = self._hints.leader_of(topic.topic_id, topic.topic, data.partition_index)
                    data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                    leaders.append(leader)
        response.node_endpoints = [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self._hints.nodes(leaders, ctx)
        ]

    def _run(self, ctx: RequestContext, answer: Coroutine[Any, Any, FetchResponse]) -> None:
        """Finish a parked fetch that turned out cold."""

        async def finish() -> None:
            try:
                ctx.respond(await answer)
            except BaseException:
                ctx.connection.abort(ProtocolError("internal error"))
                raise

        task = asyncio.ensure_future(finish())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def refuse(self, request: FetchRequest, code: ErrorCode, message: str | None) -> FetchResponse:
        return FetchResponse(error_code=code)


def _look_up(lookups: Sequence[Lookup]) -> list[StorageError | None]:
    """In a worker."""
    failures: list[StorageError | None] = []
    for lookup in lookups:
        try:
            lookup.run()
            failures.append(None)
        except StorageError as error:
            failures.append(error)
        except OSError as error:
            failures.append(StorageError(f"cannot read at offset {lookup.offset}: {error}"))
    return failures


def _is_wide(request: FetchRequest) -> bool:
    left = PARTITIONS_PER_STEP
    for topic in request.topics:
        left -= len(topic.partitions)
    for forgotten in request.forgotten_topics_data:
        left -= len(forgotten.partitions)
    return left < 0


def _asked(topic: FetchTopic, one: FetchPartition) -> SessionPartition:
    return SessionPartition(
        topic.topic,
        topic.topic_id,
        one.partition,
        one.fetch_offset,
        one.partition_max_bytes,
        one.current_leader_epoch,
        one.last_fetched_epoch,
        one.log_start_offset,
    )


def _is_unflushed(partition: Partition, piece: LogSlice) -> bool:
    """Just written, and nothing leaves memory before it is on the disk: what a follower that keeps pace asks for."""
    return partition.is_durable and piece.offset >= partition.log.stable_offset


def _is_news(asked: SessionPartition, data: PartitionData) -> bool:
    return bool(
        data.records
        or data.error_code
        or asked.had_error
        or data.high_watermark != asked.sent_high_watermark
        or data.log_start_offset != asked.sent_log_start_offset
        or data.diverging_epoch is not None
        or data.preferred_read_replica >= 0
    )
