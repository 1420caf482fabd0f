"""Produce (key 0), versions 3-13 (0-2 are advertised for old librdkafka and refused).

- One valid v2 batch per partition. The checksum, sizes and counts in the header are checked; the framing of single
  records only if the topic needs records (null keys on a compacted topic, recompression). Kafka reads the records of
  every batch.
- A compacted topic refuses a batch of more than a million records: INVALID_RECORD. (Kafka has no such limit.)
- acks=0 gets no response; an error then closes the connection.
- acks=1 is acknowledged after the write, acks=all at the high watermark (see `replica.partition`).
- NOT_LEADER_OR_FOLLOWER names the current leader from version 10 on (KIP-951), except on the fast path
  (`api.produce.produce_lane`).
- `compression.type` other than `producer`: the batch is recompressed in another process before its order is fixed, and
  the connection waits for it.
- Only coordinators write to internal topics: INVALID_TOPIC_EXCEPTION. (Kafka allows its admin client to.)
- A partition that is named more than once in a request is INVALID_REQUEST, each time. (Kafka appends the last batch.)
- A request with many partitions is appended in steps, each in a turn of its own; the connection waits for it.
- A transactional batch that would begin its transaction in this partition is appended once the transaction coordinator
  has confirmed that the partition belongs to it (KIP-890); until then the connection waits. From version 12 on the
  broker adds the partition for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from penstock.api.bounds import RECORDS
from penstock.api.context import RequestContext
from penstock.api.leader_hints import EndpointOf, LeaderHints, nowhere
from penstock.api.produce.early_batches import EarlyBatches
from penstock.api.produce.produce_lane import ACKS_ALL, LaneReply, ProduceLane
from penstock.api.produce.produced_batch import (
    RecordsRefused,
    check_codec,
    check_keys,
    check_size,
    check_timestamps,
    is_small,
    preparation_of,
    prepare,
)
from penstock.api.request_times import RequestTimes
from penstock.api.traffic import Traffic
from penstock.api.turns import drained
from penstock.config.topic import TopicConfig
from penstock.coordination.verification import Verifier
from penstock.core.metadata.image import INTERNAL_TOPICS
from penstock.core.txn.exchange import AddRequest
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError
from penstock.ports.clock import Clock
from penstock.ports.disk import Buffer, FileSlice
from penstock.ports.workers import RecordWorkers
from penstock.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    validate_produced,
    with_append_time,
)
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.producers.verification import Guard
from penstock.wire.apis import Api
from penstock.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

Prepared: TypeAlias = Mapping[int, ApiError | StorageError | None]
NOTHING: Prepared = MappingProxyType({})
Verified: TypeAlias = Mapping[int, Guard | ApiError | None]
NO_GUARDS: Verified = MappingProxyType({})

FIRST_WITH_LEADER_HINTS = 10
FIRST_WITH_ABORTABLE = 11
FIRST_WITH_RISING_EPOCHS = 12
WILL_PASS = frozenset(
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
)
BATCHES_PER_STEP = 64
PASSING = frozenset((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER))
"""Errors after which a client sends the same batch again."""


class Unverified(NamedTuple):
    data: PartitionProduceData
    partition: Partition
    header: BatchHeader


class PendingProduce:
    """A request whose batches are written and whose answer waits for the high watermark."""

    __slots__ = ("_finish", "_is_written", "ctx", "deadline", "left", "response")

    def __init__(
        self,
        ctx: RequestContext,
        response: ProduceResponse,
        deadline: float,
        finish: Callable[[PendingProduce], object],
    ) -> None:
        self.ctx = ctx
        self.response = response
        self.deadline = deadline
        self.left: dict[int, PartitionProduceResponse] = {}
        self._is_written = False
        self._finish = finish

    def all_written(self) -> bool:
        """All batches are written. Returns whether there is nothing left to wait for."""
        self._is_written = True
        return not self.left

    def wait_for(self, partition: Partition, offset: int, entry: PartitionProduceResponse) -> None:
        self.left[id(entry)] = entry
        partition.when_committed(offset, partial(self._committed, entry))

    def _committed(self, entry: PartitionProduceResponse, code: ErrorCode) -> None:
        if self.left.pop(id(entry), None) is None:
            return  # already answered as timed out
        if code is not ErrorCode.NONE:
            _set_error(entry, code)
        if not self.left and self._is_written:
            self._finish(self)

    def expire(self) -> None:
        if not self._is_written:
            return  # checked again when it is
        for entry in self.left.values():
            _set_error(entry, ErrorCode.REQUEST_TIMED_OUT)
        self.left.clear()
        self._finish(self)


class ProduceHandler:
    api: ClassVar = Api.PRODUCE
    min_version: ClassVar = 3
    max_version: ClassVar = 13
    bounds: ClassVar = RECORDS

    def __init__(
        self,
        partitions: HostedPartitions,
        clock: Clock,
        records: RecordWorkers,
        traffic: Traffic,
        times: RequestTimes,
        verifier: Verifier,
        endpoint_of: EndpointOf = nowhere,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._records = records
        self._pending: dict[PendingProduce, None] = {}
        self._lane_pending: dict[LaneReply, None] = {}
        self._traffic = traffic
        self._times = times
        self._hints = LeaderHints(partitions, endpoint_of)
        self._early = EarlyBatches()
        self._verifier = verifier

    def handle(
        self, ctx: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
        if request.acks not in (ACKS_ALL, 1, 0):
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        jobs = self._preparation_jobs(request)
        unverified = () if request.transactional_id is None else self._unverified(request)
        if jobs or unverified:
            ctx.connection.hold()
            _keep_records(request)
            return self._keeping(ctx, self._prepare_first(ctx, request, jobs, unverified))
        if len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1:
            response = drained(self._append_all(ctx, request))
            self._offer_lane(ctx, request, response)
            return response
        if sum(len(topic.partition_data) for topic in request.topic_data) <= BATCHES_PER_STEP:
            return drained(self._append_all(ctx, request))
        ctx.connection.hold()
        _keep_records(request)
        return self._keeping(ctx, ctx.pace.finish(self._append_all(ctx, request)))

    def _keeping(
        self, ctx: RequestContext, work: Coroutine[Any, Any, ProduceResponse | None]
    ) -> Coroutine[Any, Any, ProduceResponse | None]:
        """Copied records count as request memory until they are written."""
        size = len(ctx.frame)

        async def keep() -> ProduceResponse | None:
            with ctx.connection.memory.charged(size):
                return await work

        return keep()

    def _offer_lane(self, ctx: RequestContext, request: ProduceRequest, response: ProduceResponse | None) -> None:
        """The client will probably send a similar request again: remember its meaning."""
        topic = request.topic_data[0]
        index = topic.partition_data[0].index
        partitions = self._partitions.by_name.get(topic.name) or self._partitions.by_id.get(topic.topic_id)
        if partitions is None or not 0 <= index < len(partitions):
            return
        if response is not None and response.responses[0].partition_responses[0].error_code:
            return
        partition = partitions[index]
        if partition is None:
            return
        lane = ctx.connection.shortcut
        if lane is None:
            lane = ctx.connection.shortcut = ProduceLane(self._clock, self._traffic, self._times, self._lane_pending)
        if isinstance(lane, ProduceLane):
            lane.learn(ctx.version, ctx.frame, request, partition)

    def _append_all(
        self,
        ctx: RequestContext,
        request: ProduceRequest,
        prepared: Prepared = NOTHING,
        verified: Verified = NO_GUARDS,
    ) -> Generator[None, None, ProduceResponse | None]:
        """In steps. Both mappings have the identity of a batch's data as key. `prepared`: the outcome of a batch that a
        worker has processed; `verified`: the coordinator's answer for a batch that may begin its transaction here.
        """
        acks = request.acks
        by_id = ctx.version >= 13
        now_ms = self._clock.now_ms()
        response = ProduceResponse()
        pending: PendingProduce | None = None
        is_elsewhere = False
        repeated = _repeated(request)
        batches = 0
        for topic in request.topic_data:
            if by_id:
                partitions = self._partitions.by_id.get(topic.topic_id)
                missing = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                partitions = self._partitions.by_name.get(topic.name)
                missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            named = topic.topic_id if by_id else topic.name
            entries: list[PartitionProduceResponse] = []
            response.responses.append(
                TopicProduceResponse(topic_id=topic.topic_id, name=topic.name, partition_responses=entries)
            )
            for data in topic.partition_data:
                entry = PartitionProduceResponse(index=data.index)
                entries.append(entry)
                batches += 1
                if not batches % BATCHES_PER_STEP:
                    yield
                if repeated and (topic.topic_id, topic.name, data.index) in repeated:
                    _set_error(entry, ErrorCode.INVALID_REQUEST, "the partition is named more than once")
                    continue
                if partitions is None or not 0 <= data.index < len(partitions):
                    _set_error(entry, missing if partitions is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    self._early.refuse(named, data.index, data.records, self._clock.monotonic())
                    continue
                partition = partitions[data.index]
                if partition is None or not partition.is_leader:
                    _set_error(entry, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self._early.refuse(named, data.index, data.records, self._clock.monotonic())
                    is_elsewhere = True
                    continue
                if partition.topic in INTERNAL_TOPICS:
                    _set_error(
                        entry, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}"
                    )
                    continue
                records = data.records
                if records is None or isinstance(records, FileSlice):
                    _set_error(entry, ErrorCode.INVALID_RECORD, "no record batch")
                    continue
                try:
                    is_prepared = id(data) in prepared
                    if is_prepared and (refusal := prepared[id(data)]) is not None:
                        raise refusal
                    guard = verified.get(id(data))
                    if isinstance(guard, ApiError):
                        raise guard
                    if self._early:
                        producers = partition.log.producers
                        self._early.check(named, data.index, records, producers, self._clock.monotonic())
                    end = self._append(
                        ctx.version, acks, partition, records, now_ms, entry, guard, is_prepared=is_prepared
                    )
                except (ApiError, StorageError) as error:
                    _set_error(entry, ErrorCode(error.code), str(error))
                    is_elsewhere |= error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
                    if error.code in PASSING:
                        partition.log.producers.refuse(read_header(records))
                    if isinstance(error, RecordsRefused):
                        entry.record_errors = error.record_errors()
                    continue
                if acks == ACKS_ALL and end > partition.high_watermark:
                    if pending is None:
                        pending = PendingProduce(
                            ctx, response, self._clock.monotonic() + request.timeout_ms / 1000, self._finish
                        )
                        self._pending[pending] = None
                    pending.wait_for(partition, end, entry)
        if pending is not None and not pending.all_written():
            return None
        if acks == 0:
            if any(entry.error_code for topic_ in response.responses for entry in topic_.partition_responses):
                ctx.connection.abort(ProtocolError("a produce request with acks=0 failed"))
            ctx.respond_nothing()
            return None
        if pending is not None:
            self._pending.pop(pending, None)  # everything was committed while the rest was written
        if is_elsewhere:
            self._add_leaders(ctx, response)
        return response

    def _finish(self, pending: PendingProduce) -> None:
        self._pending.pop(pending, None)
        self._add_leaders(pending.ctx, pending.response)
        pending.ctx.respond(pending.response)

    def _add_leaders(self, ctx: RequestContext, response: ProduceResponse) -> None:
        if ctx.version < FIRST_WITH_LEADER_HINTS:
            return
        leaders: list[int] = []
        for topic in response.responses:
            for entry in topic.partition_responses:
                if entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    leader, epoch = self._hints.leader_of(topic.topic_id, topic.name, entry.index)
                    entry.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                    leaders.append(leader)
        response.node_endpoints = [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in self._hints.nodes(leaders, ctx)
        ]

    def _append(
        self,
        version: int,
        acks: int,
        partition: Partition,
        records: Buffer,
        now_ms: int,
        entry: PartitionProduceResponse,
        guard: Guard | None,
        *,
        is_prepared: bool,
    ) -> int:
        """Append one batch and fill in its entry; returns the offset that acks=all waits for.

        A prepared batch was checked as the client sent it: its codec against the version, its keys.
        """
        header = validate_produced(records)
        config = partition.config
        if header.attributes & CONTROL_BIT:
            raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
        if header.attributes & 7 and not is_prepared:
            check_codec(header, version)
        check_size(records, config.max_message_bytes)
        if len(records) > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {len(records)} bytes is larger than segment.bytes={config.segment_bytes}",
            )
        if "compact" in config.cleanup_policy and not is_prepared:
            check_keys(header, records)
        if acks == ACKS_ALL:
            partition.check_min_isr()
        if config.log_append_time:
            records = with_append_time(records, now_ms)
            header = validate_produced(records)
            entry.log_append_time_ms = now_ms
        else:
            check_timestamps(header, config, now_ms)
        if header.attributes & TRANSACTIONAL_BIT:
            base_offset = partition.append_transactional(header, records, now_ms, guard)
        else:
            base_offset = partition.append(header, records, now_ms)
        entry.base_offset = base_offset
        entry.log_start_offset = partition.log.log_start_offset
        traffic = self._traffic.of(partition.topic)
        traffic.batches_in += 1
        traffic.bytes_in += len(records)
        traffic.records_in += header.record_count
        return base_offset + header.record_count

    # # -- work on records: compression.type, keys of a compacted topic -----------------------

    def _preparation_jobs(self, request: ProduceRequest) -> list[tuple[PartitionProduceData, TopicConfig]]:
        """Batches whose records must be read and are too many to do that on the loop."""
        jobs: list[tuple[PartitionProduceData, TopicConfig]] = []
        for topic in request.topic_data:
            partitions = self._partitions.by_name.get(topic.name) or self._partitions.by_id.get(topic.topic_id)
            hosted = next((one for one in partitions or () if one is not None), None)
            if hosted is None or hosted.topic in INTERNAL_TOPICS:
                continue
            config = hosted.config
            if config.compression_type != "producer":
                jobs += [(data, config) for data in topic.partition_data]
            elif "compact" in config.cleanup_policy:
                jobs += [(data, config) for data in topic.partition_data if not is_small(data.records)]
        return jobs

    async def _prepare_first(
        self,
        ctx: RequestContext,
        request: ProduceRequest,
        jobs: list[tuple[PartitionProduceData, TopicConfig]],
        unverified: Sequence[Unverified],
    ) -> ProduceResponse | None:
        """Stage zero: check keys, recompress batches into the topic's codec, ask the transaction coordinator. Then
        append as usual.
        """
        outcomes: dict[int, ApiError | StorageError | None] = {}
        for data, config in jobs:
            if not isinstance(data.records, bytes):
                continue  # null: refused later
            outcomes[id(data)] = None
            try:
                packed = await self._records.call(prepare, preparation_of(data.records, config, ctx.version))
            except (ApiError, StorageError) as error:
                outcomes[id(data)] = error
            else:
                data.records = data.records if packed is None else packed
        verified = await self._verify(ctx.version, request, unverified) if unverified else NO_GUARDS
        return await ctx.pace.finish(self._append_all(ctx, request, outcomes, verified))

    # -- transactions -------------------------------------------------------------------------

    def _unverified(self, request: ProduceRequest) -> list[Unverified]:
        """Batches that would begin a transaction in their partition. Invalid ones are refused later."""
        found: list[Unverified] = []
        for topic in request.topic_data:
            partitions = self._partitions.by_name.get(topic.name) or self._partitions.by_id.get(topic.topic_id)
            for data in topic.partition_data:
                records = data.records
                if partitions is None or not 0 <= data.index < len(partitions) or isinstance(records, FileSlice):
                    continue
                partition = partitions[data.index]
                if partition is None or not partition.is_leader or records is None or len(records) < HEADER_SIZE:
                    continue
                header = read_header(records)
                if partition.log.producers.needs_verification(header):
                    found.append(Unverified(data, partition, header))
        return found

    async def _verify(self, version: int, request: ProduceRequest, unverified: Sequence[Unverified]) -> Verified:
        raises_epoch = version >= FIRST_WITH_RISING_EPOCHS
        found: dict[int, Guard | ApiError | None] = {}
        asked: dict[tuple[int, int], dict[Place, tuple[int, Guard]]] = {}
        for data, partition, header in unverified:
            producer_id, epoch = header.producer_id, header.producer_epoch
            try:
                guard = partition.log.producers.begin_verification(
                    producer_id, header.base_sequence, epoch, raises_epoch=raises_epoch
                )
            except ApiError as error:
                found[id(data)] = error
                continue
            found[id(data)] = guard
            if guard is not None and (raises_epoch or self._verifier.is_on):
                places = asked.setdefault((producer_id, epoch), {})
                places[partition.topic, partition.index] = id(data), guard
        for (producer_id, epoch), places in asked.items():
            request_ = AddRequest(
                request.transactional_id or "", producer_id, epoch, frozenset(places), 2 if raises_epoch else 0
            )
            codes = await self._verifier.verify(request_, request.timeout_ms / 1000)
            for place, code in codes.items():
                if code is not ErrorCode.NONE:
                    found[places[place][0]] = _unverified_error(version, code)
        return found

    # -- time ---------------------------------------------------------------------------

    def expire(self) -> None:
        """Answer requests that have waited longer than their timeout. Called a few times a second."""
        now = self._clock.monotonic()
        for pending in [pending for pending in self._pending if pending.deadline <= now]:
            pending.expire()
        for reply in [reply for reply in self._lane_pending if reply.deadline <= now]:
            del self._lane_pending[reply]
            reply.expire()

    def refuse(self, request: ProduceRequest, code: ErrorCode, message: str | None) -> ProduceResponse:
        response = ProduceResponse()
        for topic in request.topic_data:
            entries = [PartitionProduceResponse(index=data.index) for data in topic.partition_data]
            for entry in entries:
                _set_error(entry, code, message)
            response.responses.append(
                TopicProduceResponse(topic_id=topic.topic_id, name=topic.name, partition_responses=entries)
            )
        return response


def _unverified_error(version: int, code: ErrorCode) -> ApiError:
    """The error for the producer, translated as in Kafka."""
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    elif code in WILL_PASS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_WITH_RISING_EPOCHS):
        code = ErrorCode.NOT_ENOUGH_REPLICAS  # every producer retries this
    return ApiError(code, "the transaction coordinator did not confirm this partition as part of the transaction")


def _keep_records(request: ProduceRequest) -> None:
    """The frame's memory is reused when the handler has returned."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if isinstance(data.records, memoryview):
                data.records = bytes(data.records)


def _repeated(request: ProduceRequest) -> set[tuple[bytes, str, int]]:
    """Partitions that are named more than once. Kafka keeps the last batch and silently drops the others."""
    seen: set[tuple[bytes, str, int]] = set()
    repeated: set[tuple[bytes, str, int]] = set()
    if len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1:
        return repeated
    for topic in request.topic_data:
        for data in topic.partition_data:
            place = topic.topic_id, topic.name, data.index
            (repeated if place in seen else seen).add(place)
    return repeated


def _set_error(entry: PartitionProduceResponse, code: ErrorCode, message: str | None = None) -> None:
    entry.error_code = code
    entry.base_offset = -1
    entry.log_append_time_ms = -1
    entry.log_start_offset = -1
    entry.error_message = message
