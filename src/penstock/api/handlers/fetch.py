"""Fetch (key 1), versions 4-18.

- Whole batches only, the first one even if it is larger than the limits (KIP-74). Payload leaves by sendfile: the bytes
  on disk are the bytes on the wire.
- Long poll: parked until min_bytes are readable, there is an error, or max_wait is over.
- Sessions (KIP-227) for clients that request them, and for followers always.
- Data that this process has not checked, or that is not in the page cache, is first read and verified in a worker. A
  damaged batch is CORRUPT_MESSAGE, never bytes.
- Followers (replica id >= 0) read to the end of the log, and their fetch offsets report what they hold. On topics with
  `flush.messages=1` they report what is on disk in separate messages (`replica_acknowledgement`). They have presented
  the cluster's secret on their connection; other connections that fetch as a follower are closed.
- Consumers may read from followers (KIP-392); with RackAwareReplicaSelector the leader returns a replica in the
  consumer's rack.
- NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH name the current leader (KIP-951).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.api.fetch.consumer_fetch import ConsumerFetch
from penstock.api.fetch.fetch_answers import Fetch, FetchAnswers
from penstock.api.fetch.fetch_findings import Asked
from penstock.api.fetch.fetch_sessions import FetchSessions
from penstock.api.fetch.follower_connections import FollowerConnections
from penstock.api.fetch.follower_fetch import FollowerFetch, replica_of
from penstock.api.fetch.leader_throttle import LeaderThrottle
from penstock.api.fetch.parked_request import PARTITIONS_PER_STEP, ParkedRequest
from penstock.api.fetch.session_resolution import SessionResolution
from penstock.api.leader_hints import EndpointOf, LeaderHints, nowhere
from penstock.api.traffic import Traffic
from penstock.model.errors import ErrorCode, ProtocolError, Stranger
from penstock.ports.workers import Workers
from penstock.replica.hosting import HostedPartitions
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchRequest, FetchResponse


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
        self.resolution = SessionResolution(sessions, partitions, loop.time)
        self.answers = FetchAnswers(workers, LeaderHints(partitions, endpoint_of))
        self.throttle = LeaderThrottle(loop.time)
        self._followers = followers or FollowerConnections()
        self._loop = loop
        self._max_bytes = max_bytes
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._traffic = traffic

    def handle(
        self, ctx: RequestContext, request: FetchRequest
    ) -> FetchResponse | Coroutine[Any, Any, FetchResponse | None] | None:
        replica_id = replica_of(request)
        if replica_id >= 0 and not self._may_replicate(ctx, replica_id):
            return None
        if _is_wide(request):
            ctx.connection.hold()
            return self._resolve_and_serve(ctx, request, replica_id)
        asked = self.resolution.resolve(ctx, request, is_of_follower=replica_id >= 0)
        fetch = self._fetch(ctx, request, asked, replica_id)
        if len(asked.partitions) + (0 if asked.watch is None else asked.watch.due) > PARTITIONS_PER_STEP:
            ctx.connection.hold()
            return self._serve_wide(fetch, request)
        fetch.first_look()
        if _is_ready(fetch, request):
            return self.answers.answer(fetch)
        parked = ParkedRequest(fetch, fetch.listen(), ctx.connection, self._loop)
        parked.park(request.max_wait_ms / 1000, partial(self._finish, fetch))
        return None

    def _may_replicate(self, ctx: RequestContext, replica_id: int) -> bool:
        if not ctx.connection.is_peer:
            raise Stranger(f"a fetch as replica {replica_id} without the cluster's secret")
        if self._followers.is_outdated(replica_id, ctx.connection):
            ctx.connection.abort()  # the follower has abandoned it; if it is alive, it uses a newer one
            return False
        self.throttle.quota.rate = self._partitions.broker.leader_replication_throttled_rate
        return True

    def _fetch(self, ctx: RequestContext, request: FetchRequest, asked: Asked, replica_id: int) -> Fetch:
        max_bytes = min(request.max_bytes, self._max_bytes)
        if replica_id < 0:
            return ConsumerFetch(ctx, request, asked, max_bytes, self._partitions, self._traffic)
        return FollowerFetch(ctx, request, asked, max_bytes, self._partitions, self.throttle)

    async def _resolve_and_serve(
        self, ctx: RequestContext, request: FetchRequest, replica_id: int
    ) -> FetchResponse | None:
        resolving = self.resolution.resolve_in_steps(ctx, request, is_of_follower=replica_id >= 0)
        asked = await ctx.pace.finish(resolving)
        return await self._serve_wide(self._fetch(ctx, request, asked, replica_id), request)

    async def _serve_wide(self, fetch: Fetch, request: FetchRequest) -> FetchResponse | None:
        """In turns of its own; the connection waits for it. It listens from the first look on."""
        pace = fetch.ctx.pace
        parked = ParkedRequest(fetch, fetch.listen(), fetch.ctx.connection, self._loop)
        try:
            await pace.finish(fetch.first_look_in_steps())
            if not _is_ready(fetch, request) and not await parked.wait_in_turns(request.max_wait_ms / 1000, pace):
                return None
        finally:
            parked.leave()
        return await self.answers.answer_in_turns(fetch)

    def _finish(self, fetch: Fetch) -> None:
        """Answer a parked fetch."""
        answer = self.answers.answer(fetch)
        if isinstance(answer, FetchResponse):
            fetch.ctx.respond(answer)
            return
        task = asyncio.ensure_future(_respond(fetch.ctx, answer))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def refuse(self, request: FetchRequest, code: ErrorCode, message: str | None) -> FetchResponse:
        return FetchResponse(error_code=code)


def _is_wide(request: FetchRequest) -> bool:
    left = PARTITIONS_PER_STEP
    for topic in request.topics:
        left -= len(topic.partitions)
    for forgotten in request.forgotten_topics_data:
        left -= len(forgotten.partitions)
    return left < 0


def _is_ready(fetch: Fetch, request: FetchRequest) -> bool:
    """Whether there is something to answer, or nothing to wait for."""
    findings = fetch.findings
    if request.max_wait_ms <= 0 or findings.is_enough:
        return True
    return not findings.found and not fetch.has_quiet_session


async def _respond(ctx: RequestContext, answer: Coroutine[Any, Any, FetchResponse]) -> None:
    """Answer a parked fetch that needs data from the disk."""
    try:
        ctx.respond(await answer)
    except BaseException:
        ctx.connection.abort(ProtocolError("internal error"))
        raise
