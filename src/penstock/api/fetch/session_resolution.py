"""Resolves a fetch request by its session, and keeps the watches of sessions.

The session has the client's partitions; its watch tracks their changes (`api.fetch.fetch_watch`). A watch lives as long
as the connection on which it began. Without a watch, all partitions of the session are looked at. Must not know:
how partitions are read, how a request waits or is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from penstock.api.context import RequestContext
from penstock.api.fetch.consumer_fetch import is_rack_aware
from penstock.api.fetch.fetch_findings import FIRST_WITH_TOPIC_IDS, Asked
from penstock.api.fetch.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_SESSION_PARTITIONS,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    SessionPartition,
)
from penstock.api.fetch.fetch_watch import FetchWatch
from penstock.model.errors import ApiError, ErrorCode
from penstock.net.connection import Connection
from penstock.replica.hosting import HostedPartitions
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

STEP_ITEMS = 128


class SessionResolution:
    def __init__(self, sessions: FetchSessions, partitions: HostedPartitions, now_s: Callable[[], float]) -> None:
        self._sessions = sessions
        self._partitions = partitions
        self._now_s = now_s
        self._watches: dict[int, FetchWatch] = {}  # by session
        self._watched_sessions: dict[Connection, int] = {}
        sessions.when_evicted = self.stop_watching

    def resolve(self, ctx: RequestContext, request: FetchRequest, *, is_of_follower: bool) -> Asked:
        """Raises ApiError."""
        asked = [_asked(topic, one) for topic in request.topics for one in topic.partitions]
        if len(asked) > 1:
            # As in Kafka the last entry counts if a partition is named twice.
            asked = list({(one.topic, one.topic_id, one.index): one for one in asked}.values())
        if request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION:
            return Asked(asked, None, None, False)  # never had a session: most consumers
        session, watch = self._session_of(ctx, request, len(asked), is_of_follower=is_of_follower)
        if session is None:
            return Asked(asked, None, None, False)
        return self._remembered(ctx, request, session, watch, [session.put(one) for one in asked])

    def resolve_in_steps(
        self, ctx: RequestContext, request: FetchRequest, *, is_of_follower: bool
    ) -> Generator[None, None, Asked]:
        """The same for a wide request."""
        asked: dict[tuple[str, bytes, int], SessionPartition] = {}
        count = 0
        for topic in request.topics:
            for one in topic.partitions:
                asked[topic.topic, topic.topic_id, one.partition] = _asked(topic, one)
                count += 1
                if not count % STEP_ITEMS:
                    yield
        session, watch = self._session_of(ctx, request, len(asked), is_of_follower=is_of_follower)
        if session is None:
            return Asked(list(asked.values()), None, None, False)
        remembered: list[SessionPartition] = []
        for put in asked.values():
            remembered.append(session.put(put))
            if not len(remembered) % STEP_ITEMS:
                yield
        return self._remembered(ctx, request, session, watch, remembered)

    def _session_of(
        self, ctx: RequestContext, request: FetchRequest, asked: int, *, is_of_follower: bool
    ) -> tuple[FetchSession | None, FetchWatch | None]:
        """The continued or new session, without the partitions of this request. Raises ApiError."""
        watch: FetchWatch | None = None
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH) and request.session_id != NO_SESSION:
            self._close(request.session_id)
        if epoch == FINAL_EPOCH:
            return None, None
        now, uses_topic_ids = self._now_s(), ctx.version >= FIRST_WITH_TOPIC_IDS
        if epoch == INITIAL_EPOCH:
            session = self._sessions.start(uses_topic_ids=uses_topic_ids, now=now, is_of_follower=is_of_follower)
            if session is None:
                return None, None
        else:
            session = self._sessions.use(request.session_id, epoch, uses_topic_ids=uses_topic_ids, now=now)
            watch = self._watches.get(session.id)
            for forgotten in request.forgotten_topics_data:
                for index in forgotten.partitions:
                    known = session.forget(forgotten.topic, forgotten.topic_id, index)
                    if known is not None and watch is not None:
                        watch.forget(known)
        if len(session.partitions) + asked > MAX_SESSION_PARTITIONS:
            self._close(session.id)  # the client starts over, with its current partitions
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session, watch

    def _remembered(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        session: FetchSession,
        watch: FetchWatch | None,
        asked: list[SessionPartition],
    ) -> Asked:
        """The session contains the partitions of the request: which of them must be looked at?"""
        is_incremental = request.session_epoch != INITIAL_EPOCH
        manner = request.isolation_level, ctx.version
        if watch is None or session.manner != manner or (request.rack_id and is_rack_aware(self._partitions)):
            # The unchanged partitions are unknown, or were read in another manner: look at everything.
            asked = list(session.partitions.values())
        if watch is None and not (session.is_of_follower and is_incremental):
            watch = self._watch(session, ctx.connection)
        session.manner = manner
        return Asked(asked, session, watch, is_incremental)

    # -- watches ------------------------------------------------------------------------------------------------

    def _watch(self, session: FetchSession, connection: Connection) -> FetchWatch:
        is_of_follower = session.is_of_follower
        is_eager = not is_of_follower or is_rack_aware(self._partitions)
        watch = self._watches[session.id] = FetchWatch(is_of_follower=is_of_follower, is_eager=is_eager)
        self._tie_to_connection(session, watch, connection)
        return watch

    def _tie_to_connection(self, session: FetchSession, watch: FetchWatch, connection: Connection) -> None:
        """One watch a connection: a client that starts over does not return to its earlier session.

        A follower's session ends with its connection. A consumer's session stays, but without a watch; if the consumer
        returns, everything is looked at once.
        """
        end = self._close if session.is_of_follower else self.stop_watching
        before = self._watched_sessions.get(connection)
        if before is not None:
            end(before)
        closes = partial(end, session.id)
        connection.when_closed[closes] = None
        self._watched_sessions[connection] = session.id

        def untie() -> None:
            connection.when_closed.pop(closes, None)
            self._watched_sessions.pop(connection, None)

        watch.on_close = untie

    def _close(self, session_id: int) -> None:
        self._sessions.close(session_id)
        self.stop_watching(session_id)

    def stop_watching(self, session_id: int) -> None:
        watch = self._watches.pop(session_id, None)
        if watch is not None:
            watch.close()


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
