"""Builds the response to a fetch from its findings.

A worker first reads and verifies data that this process has not checked, or that is not in the page cache. It also
locates offsets that could not be found in memory. The loop never waits for cold data. Must not know: how partitions are
read for consumers and followers, how a request waits.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from penstock.api.context import RequestContext
from penstock.api.fetch.consumer_fetch import ConsumerFetch
from penstock.api.fetch.fetch_findings import Found, error_data
from penstock.api.fetch.fetch_sessions import SessionPartition
from penstock.api.fetch.follower_fetch import FollowerFetch
from penstock.api.fetch.parked_request import in_steps
from penstock.api.leader_hints import LeaderHints
from penstock.model.errors import CorruptBatch, ErrorCode, StorageError
from penstock.ports.workers import Workers
from penstock.replica.partition import Partition
from penstock.storage.aborted_lookup import AbortedLookup
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.slices import LogSlice
from penstock.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

log = logging.getLogger(__name__)

Fetch: TypeAlias = ConsumerFetch | FollowerFetch

MAX_REPORTED = 1000
NOT_SERVED = "it is not served"  # also in the log line of a damaged batch
# Up to this size a read and a combined send are cheaper than two probes and sendfile.
INLINE_BYTES = 32 << 10
MAX_LOOKUPS = 3  # in workers, for one fetch: pages may be evicted again before the loop reads them
FIRST_WITH_LEADER_HINTS = 16
ELSEWHERE = frozenset({int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)})


class FetchAnswers:
    def __init__(self, workers: Workers, hints: LeaderHints) -> None:
        self._workers = workers
        self._hints = hints
        self._reported: dict[str, None] = {}
        self.cold_reads = 0
        self.cold_lookups = 0

    def answer(self, fetch: Fetch) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """At once, unless data must be read or located first."""
        return self._look_up_and_answer(fetch) if fetch.findings.cold else self._answer(fetch)

    async def answer_in_turns(self, fetch: Fetch) -> FetchResponse:
        """For a wide fetch."""
        if fetch.findings.cold:
            await self._look_up(fetch)
        cold: list[tuple[PartitionData, Partition]] = []
        async for _, data, partition in fetch.ctx.pace.each(fetch.findings.found.values()):
            if data.records and partition is not None and self._is_cold(fetch, data, partition):
                cold.append((data, partition))
        return await (self._warm_and_respond(fetch, cold) if cold else self._respond_in_turns(fetch))

    async def _look_up_and_answer(self, fetch: Fetch) -> FetchResponse:
        await self._look_up(fetch)
        answer = self._answer(fetch)
        return answer if isinstance(answer, FetchResponse) else await answer

    async def _look_up(self, fetch: Fetch) -> None:
        """Locate offsets in a worker. Partitions that stay cold wait for the next fetch."""
        findings = fetch.findings
        for _ in range(MAX_LOOKUPS):
            lookups = findings.take_cold(fetch.lookup)
            self.cold_lookups += len(lookups)
            aborted = [fetch.aborted_lookup(partition, asked) for asked, partition, _ in lookups]
            outcomes = await self._workers.run(partial(_run_all, [lookup for _, _, lookup in lookups], aborted))
            found: list[SessionPartition] = []
            for (asked, partition, lookup), of_aborted, failure in zip(lookups, aborted, outcomes, strict=True):
                if of_aborted is not None and partition.log.end_aborted_lookup(of_aborted):
                    fetch.keep_aborted(asked, of_aborted)
                if failure is None:
                    partition.log.reader.end_lookup(lookup)
                    found.append(asked)
                elif partition.log.reader.is_stale(lookup):
                    found.append(asked)  # cut or compacted meanwhile: the lookup is outdated
                else:
                    self._report(partition, failure)
                    findings.put_error(asked, partition, ErrorCode(failure.code))
            await fetch.ctx.pace.finish(in_steps(found, fetch.look_at))
            if not findings.cold:
                break
        if fetch.asked.watch is not None:
            for one in findings.cold:
                fetch.asked.watch.put_back(one)
        findings.cold = []

    def _answer(self, fetch: Fetch) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        found = fetch.findings.found
        cold = [
            (data, partition)
            for _, data, partition in found.values()
            if data.records and partition is not None and self._is_cold(fetch, data, partition)
        ]
        if cold:
            return self._warm_and_respond(fetch, cold)
        response = FetchResponse(session_id=fetch.asked.session_id)
        for one in found.values():
            self._tell(fetch, response, one)
        return self._end_response(fetch, response)

    async def _respond_in_turns(self, fetch: Fetch) -> FetchResponse:
        response = FetchResponse(session_id=fetch.asked.session_id)
        async for one in fetch.ctx.pace.each(fetch.findings.found.values()):
            self._tell(fetch, response, one)
        return self._end_response(fetch, response)

    def _is_cold(self, fetch: Fetch, data: PartitionData, partition: Partition) -> bool:
        """Whether a worker must read it first. Small cached data is read here."""
        piece = data.records
        if not isinstance(piece, LogSlice):
            return False
        if not piece.is_trusted():
            return True
        inline = piece.file.read_cached(piece.position, piece.size) if piece.size <= INLINE_BYTES else None
        if inline is not None:
            fetch.count(partition, piece)
            data.records = inline
            return False
        return not _is_unflushed(partition, piece) and not piece.file.is_cached(piece.position, piece.size)

    async def _warm_and_respond(self, fetch: Fetch, cold: list[tuple[PartitionData, Partition]]) -> FetchResponse:
        """Read and check the cold slices in a worker; the pages stay in the cache for sendfile."""
        self.cold_reads += 1
        slices = [
            # With other replicas to repair from, a wrong epoch counts as damage: followers would refuse it.
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
        """Logged once for each damaged batch; clients repeat the fetch."""
        if str(failure) not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported[str(failure)] = None
            if isinstance(failure, CorruptBatch):
                log.critical("%r: %s; %s", partition, failure, NOT_SERVED)
            else:  # out of descriptors, for example: may be temporary
                log.error("%r: %s; the fetch is answered with an error", partition, failure)
        if isinstance(failure, CorruptBatch):
            partition.report_damage(failure.path)

    def _tell(self, fetch: Fetch, response: FetchResponse, found: Found) -> None:
        asked, data, partition = found
        session = fetch.asked.session
        if partition is not None and isinstance(data.records, LogSlice):
            fetch.count(partition, data.records)
        if session is not None:
            if fetch.asked.is_incremental and not _is_news(asked, data):
                return
            asked.sent_high_watermark = data.high_watermark
            asked.sent_log_start_offset = data.log_start_offset
            asked.had_error = data.error_code != 0
            if data.records:
                session.move_to_end(asked)
                if fetch.asked.watch is not None:
                    fetch.asked.watch.move_to_end(asked)
        current = response.responses[-1] if response.responses else None
        if current is None or current.topic != asked.topic or current.topic_id != asked.topic_id:
            current = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id)
            response.responses.append(current)
        current.partitions.append(data)

    def _end_response(self, fetch: Fetch, response: FetchResponse) -> FetchResponse:
        if fetch.findings.is_urgent and fetch.ctx.version >= FIRST_WITH_LEADER_HINTS:
            self._add_leaders(fetch.ctx, response)
        return response

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


def _run_all(lookups: Sequence[Lookup], aborted: Sequence[AbortedLookup | None]) -> list[StorageError | None]:
    """Runs in a worker."""
    failures: list[StorageError | None] = []
    for lookup, of_aborted in zip(lookups, aborted, strict=True):
        try:
            piece = lookup.run()
            if of_aborted is not None and piece is not None:
                of_aborted.run_up_to(piece.next_offset)
            failures.append(None)
        except StorageError as error:
            failures.append(error)
        except OSError as error:
            failures.append(StorageError(f"cannot read at offset {lookup.offset}: {error}"))
    return failures


def _is_unflushed(partition: Partition, piece: LogSlice) -> bool:
    """Just written, and kept in memory until it is on the disk: followers that keep up read such data."""
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
