"""Follows one leader: a connection, a fetch under way on it, and the append of its records straight from the buffer.

The fetch answer is parsed in the receive buffer, and each partition's batches are written from there in the same call:
no task, no copy. The next fetch leaves in the same call. Slow work (a truncation, a request for the leader's bounds) is
a task, and its partition stays out of the session meanwhile.

On durable topics the log runs ahead of its disk, so the stable offset is reported separately (`replica.claims`). The
leader has then parked our fetch and need not answer it.

Must not know: why a partition is followed, the log format. Uses one Fetch version, 17, without asking for the leader's
versions: all brokers of a cluster serve it. `num.replica.fetchers` is ignored: there is one connection for each leader,
because there is one loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from penstock.broker_link.introduction import PeerIdentity
from penstock.broker_link.leader_link import LeaderLink, retry_s
from penstock.config.broker import BrokerConfig
from penstock.core.partition.following import Input
from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, StorageError
from penstock.ports.clock import Clock
from penstock.replica.claims import Claims
from penstock.replica.divergence import LeaderLogRange, Recovering, batch_around_start
from penstock.replica.following import FollowedPartition, FollowerSession
from penstock.replica.leader_batches import ask_batches
from penstock.replica.leader_offsets import EARLIEST, LATEST, ask_offset
from penstock.replica.partition import Partition
from penstock.replica.throttle import ReplicationQuota
from penstock.wire.acknowledgement import WAKE_FRAME
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, read_response_header
from penstock.wire.messages.fetch import FetchResponse, PartitionData

log = logging.getLogger(__name__)

FETCH_VERSION = 17
SHORTEST_TIMER_S = 0.001

SESSION_IS_GONE = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
# One of the two brokers has not received the latest change yet; it takes milliseconds.
METADATA_IS_COMING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)


class FetcherParts(Protocol):
    """The parts that the fetchers of a broker share."""

    node_id: int
    identity: PeerIdentity
    quota: ReplicationQuota

    @property
    def config(self) -> BrokerConfig: ...

    def broker_epoch(self) -> int: ...

    def address_of(self, broker_id: int) -> tuple[str, int] | None: ...

    def found_damage(self, partition: Partition, path: str) -> None: ...


class ReplicaFetcher:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        follower: FetcherParts,
        leader_id: int,
        recovering: Recovering,
        clock: Clock,
    ) -> None:
        self._loop = loop
        self._follower = follower
        self.leader_id = leader_id
        self._recovering = recovering
        self._clock = clock
        self.session = FollowerSession(follower.node_id, follower.quota)
        self._is_fetching = False
        self._is_parked = False  # the leader may park the fetch under way
        self._is_kick_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._is_stopped = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._last_sent_s = 0.0
        self._broker_epoch = -1  # the epoch in which the session began
        # for observability
        self.fetches = 0
        self.bytes_fetched = 0
        self.errors = 0
        self.link = LeaderLink(
            loop,
            leader_id,
            f"broker-{follower.node_id}-fetcher",
            follower.identity,
            follower.address_of,
            self._backoff_s,
            self._connected,
        )
        self.claims = Claims(loop, self.session, self.link, follower.node_id, follower.broker_epoch)

    def _backoff_s(self) -> float:
        return self._follower.config.replica_fetch_backoff_ms / 1000

    # -- which partitions -----------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> None:
        self.session.follow(partition)
        self._kick_soon()

    def unfollow(self, partition: Partition) -> None:
        followed = self.session.followed.get((partition.topic_id, partition.index))
        if followed is not None:
            self.claims.forget(followed)
        self.session.unfollow(partition.topic_id, partition.index)

    def stop(self) -> None:
        """Stop at once and permanently; truncations under way continue."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self.link.stop()

    @property
    def has_work(self) -> bool:
        """A truncation is under way."""
        return bool(self._tasks)

    def let_go(self, followed: FollowedPartition, met: Input) -> None:
        """`met` ends a hold. The partition is fetched again unless another hold remains."""
        self.session.meet(followed, met)
        self._kick_soon()

    async def settled(self) -> None:
        """Wait until nothing of this fetcher runs."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # -- fetching -------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        self.session.reset()
        self._fetch()

    def _kick_soon(self) -> None:
        if not self._is_kick_due:
            self._is_kick_due = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        """There is something new to fetch: send it now, or as soon as the leader answers the parked fetch."""
        self._is_kick_due = False
        if not self.link.is_up or self._is_stopped:
            return
        if not self._is_fetching:
            self._fetch()
        elif self._is_parked and self.session.has_changes:
            self._is_parked = False
            self.link.send_frame(WAKE_FRAME)

    def _fetch(self) -> None:
        if not self.link.is_up or self._is_fetching:
            return
        now_s = self._clock.monotonic()
        if (broker_epoch := self._follower.broker_epoch()) != self._broker_epoch:
            # Registered again: the leader drops its state of the earlier broker epoch, even if nothing else changed.
            self._broker_epoch = broker_epoch
            self.session.reset()
        request = self.session.next_request(self._follower.config, broker_epoch, now_s)
        self._is_fetching = request is not None
        self._last_sent_s = now_s
        self._set_timer(now_s)
        if request is None:
            return
        self._is_parked = request.max_wait_ms > 0
        self.fetches += 1
        self.link.send(Api.FETCH, FETCH_VERSION, request, self._fetched)

    def _set_timer(self, now_s: float) -> None:
        """While a fetch is under way, detects a silent leader; else wakes up for delayed partitions.

        A timer that is set and not too late stays: fetches are sent thousands of times a second.
        """
        due_s = max(self._silent_from_s, now_s + SHORTEST_TIMER_S)
        wakeup_s = None if self._is_fetching else self.session.next_wakeup_s()
        if wakeup_s is not None:
            due_s = min(due_s, max(wakeup_s, now_s + SHORTEST_TIMER_S))
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self._loop.call_later(due_s - now_s, self._look)

    @property
    def _silent_from_s(self) -> float:
        """The deadline for the answer to the fetch under way."""
        config = self._follower.config
        return self._last_sent_s + (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000

    def _look(self) -> None:
        self._timer = None
        if not self.link.is_up or self._is_stopped:
            return
        now_s = self._clock.monotonic()
        if self._is_fetching and now_s >= self._silent_from_s:
            self.link.give_up(TimeoutError(f"no answer for {now_s - self._last_sent_s:.0f} s"))
        elif self._is_fetching:
            self._set_timer(now_s)
        else:
            self._fetch()

    def _fetched(self, frame: memoryview) -> None:
        self._is_fetching = self._is_parked = False
        if not frame:
            return
        _, at = read_response_header(Api.FETCH, FETCH_VERSION, frame)
        response = decode_response(Api.FETCH, FETCH_VERSION, frame, at)
        assert isinstance(response, FetchResponse)
        if response.error_code:
            self._refused(ErrorCode(response.error_code))
            return
        session = self.session
        session.answered(response)
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        for topic in response.responses:
            for data in topic.partitions:
                followed = session.followed.get((topic.topic_id, data.partition_index))
                if followed is None:
                    continue
                if followed.is_as_asked:
                    self._take(followed, data, now_ms, now_s)
                else:
                    session.meet(followed, Input.OUTDATED)
        for followed in session.take_matched():
            if followed.partition.is_durable:  # in the other case the fetch itself has reported it
                self.claims.claimed(followed.partition)
        self._fetch()

    def _refused(self, code: ErrorCode) -> None:
        """An error of the whole fetch, not of one partition."""
        if code in SESSION_IS_GONE:
            log.info("broker %d: %s; a new fetch session begins", self.leader_id, code.name)
            self.session.reset()
            self._fetch()
            return
        self.errors += 1
        until_s = self._clock.monotonic() + self._backoff_s()
        log.warning("broker %d refused a fetch: %s; trying again", self.leader_id, code.name)
        self.session.reset()
        for followed in self.session.followed.values():
            self.session.delay(followed, Input.FETCH_REFUSED, until_s)
        self._fetch()

    def _take(self, followed: FollowedPartition, data: PartitionData, now_ms: int, now_s: float) -> None:
        if data.error_code:
            self._failed(followed, ErrorCode(data.error_code), now_s)
            return
        partition = followed.partition
        if data.diverging_epoch is not None:
            epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
            self._hold_for(followed, Input.DIVERGES, self._recovering.truncate_to_leader(partition, epoch, end_offset))
            return
        records = data.records
        assert records is None or isinstance(records, bytes | memoryview)
        size = len(records) if records else 0
        if size and followed.is_throttled:
            self._follower.quota.record(size, now_s)
        log_start = partition.log.log_start_offset
        try:
            first = batch_around_start(partition, records) if records else None
            if first is not None:
                work = self._recovering.begin_below(partition, first, now_ms)
                self._hold_for(followed, Input.BEGINS_INSIDE, work)
                return
            partition.append_fetched(
                records or b"", followed.asked_epoch, data.high_watermark, data.log_start_offset, now_ms
            )
        except (ApiError, StorageError) as error:
            self._not_taken(followed, error, now_s)
            return
        followed.failures = 0
        followed.last_error = ""
        followed.lag = max(0, data.high_watermark - partition.log.log_end_offset)
        self.bytes_fetched += size
        # A DeleteRecords request waits until all replicas report their log starts.
        has_news = size > 0 or partition.log.log_start_offset != log_start
        self.session.meet(followed, Input.RECORDS if has_news else Input.NOTHING_NEW)

    # # -- failures --------------------------------------------------------------------------------------------------

    def _failed(self, followed: FollowedPartition, code: ErrorCode, now_s: float) -> None:
        """The leader answered with an error for this partition."""
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._hold_for(followed, Input.OUT_OF_RANGE, self._settle_bounds(followed))
            return
        self.errors += 1
        if code in METADATA_IS_COMING:
            wait_s = retry_s(followed.failures, self._backoff_s())
            followed.failures += 1
            met = Input.METADATA_IS_COMING
        else:
            wait_s = self._backoff_s()
            self._say(followed, f"broker {self.leader_id} answers {code.name}")
            met = Input.REFUSED
        self.session.delay(followed, met, now_s + wait_s)

    def _not_taken(self, followed: FollowedPartition, error: ApiError | StorageError, now_s: float) -> None:
        """The records could not be appended: damaged in transit or at the leader, or the disk here failed."""
        self.errors += 1
        self._say(
            followed,
            f"cannot append the records of broker {self.leader_id} from offset {followed.asked_offset} on: {error}",
        )
        if isinstance(error, StorageError) and not isinstance(error, CorruptBatch):
            # A full or broken disk: producers must not wait until this replica counts as late.
            self.claims.disown(followed, followed.partition.claimed_offset())
        self.session.delay(followed, Input.NOT_APPENDED, now_s + self._backoff_s())

    def _not_fitted(self, followed: FollowedPartition, error: Exception) -> None:
        """The local log could not be made to agree with the leader's."""
        self.errors += 1
        self._say(followed, f"the log cannot be made to match the log of broker {self.leader_id}: {error}")
        self.session.delay(followed, Input.NOT_FITTED, self._clock.monotonic() + self._backoff_s())

    def _say(self, followed: FollowedPartition, what: str) -> None:
        """Logs each message once, however often the fetch is tried."""
        if what != followed.last_error:
            followed.last_error = what
            log.warning("%r cannot be replicated: %s; trying again", followed.partition, what)

    def _hold_for(self, followed: FollowedPartition, met: Input, work: Coroutine[Any, Any, None]) -> None:
        """Does not fetch the partition until `work` is done, which may take long; `met` is the reason."""
        self.session.meet(followed, met)

        async def run() -> None:
            try:
                await work
            except CorruptBatch as error:  # the local log is damaged: nothing was fetched here
                self._not_fitted(followed, error)
                self._follower.found_damage(followed.partition, error.path)
            except ApiError as error:
                self._not_fitted(followed, error)
            except (StorageError, OSError) as error:
                self._not_fitted(followed, error)
                self.claims.disown(followed, followed.partition.claimed_offset())
            finally:
                self.let_go(followed, Input.FITTED)

        task = self._loop.create_task(run())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _settle_bounds(self, followed: FollowedPartition) -> None:
        """Our log end is outside the leader's log: below its start, or above its end (Kafka's
        fetchOffsetAndTruncate).
        """
        partition = followed.partition
        epoch = partition.leader_epoch
        end_offset = await self.ask_offset(partition, LATEST)
        start_offset = await self.ask_offset(partition, EARLIEST)
        if partition.leader_epoch != epoch or partition.is_leader or partition.is_deleted:
            return
        before = partition.log.log_end_offset
        await self._recovering.fit_into(partition, LeaderLogRange(start_offset, end_offset))
        if partition.log.log_end_offset == before and partition.leader_epoch == epoch:
            # The same answer would come back for ever, as fast as we can ask.
            self.errors += 1
            self._say(
                followed,
                f"broker {self.leader_id} has offsets {start_offset} to {end_offset}, but does not continue from "
                f"offset {before} of leader epoch {partition.log.epochs.latest}: one of the two logs may be damaged",
            )
            self.session.delay(followed, Input.NOT_FITTED, self._clock.monotonic() + self._backoff_s())

    async def ask_offset(self, partition: Partition, which: int) -> int:
        self._is_parked = False  # any other request makes the leader answer a parked fetch
        return await ask_offset(self.link, self._follower.node_id, partition, which)

    async def ask_batches(self, partition: Partition, offset: int) -> bytes:
        """Committed batches of the leader's log, for inspection: nothing is appended, and no position is reported."""
        if self._is_parked and self.link.is_up:
            self._is_parked = False
            self.link.send_frame(WAKE_FRAME)  # answers come in order, and the leader has parked our fetch
        return await ask_batches(self.link, FETCH_VERSION, partition, offset)
