"""The transaction coordinator of this broker: its shards on `__transaction_state`, and the markers of their
decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from penstock.config.broker import BrokerConfig
from penstock.coordination.hosted_shard import HostedShard, News
from penstock.coordination.markers import MarkerSender, MarkerTask
from penstock.coordination.shard_host import CoordinatorTopic, ShardHost, Surroundings
from penstock.core.metadata.features import TRANSACTION_VERSION, level_of
from penstock.core.metadata.image import TopicState
from penstock.core.txn.exchange import (
    AddReply,
    AddRequest,
    DescribeReply,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    ListFilter,
    ListReply,
    MarkersDue,
    NeedsProducerId,
    TimedOut,
    VerifyReply,
)
from penstock.core.txn.settings import TransactionSettings
from penstock.core.txn.shard import TRANSACTION_STATE_TOPIC, TransactionShard
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.partition import Partition

COMMIT_TIMEOUT_MS: Final = 5_000
"""How long a reply waits for the replicas. Kafka has no setting for it either."""

R = TypeVar("R")


class ProducerIds(Protocol):
    async def allocate_producer_id(self) -> int:
        """An unused id from this broker's block."""
        ...


class TransactionKind:
    """The parts that all transaction shards share."""

    noun = "transactional id"
    commit_timeout_ms = COMMIT_TIMEOUT_MS

    def __init__(self, around: Surroundings, send: Callable[[MarkersDue, HostedShard[TransactionShard]], None]) -> None:
        self._running = around.running
        self._image = around.controller.image
        self._send = send
        self.timed_out = 0
        """Transactions that were aborted because they were open for too long."""

    @property
    def settings(self) -> TransactionSettings:
        return TransactionSettings.from_config(self._running.current)

    def version(self) -> int:
        return level_of(self._image, TRANSACTION_VERSION)

    def make(self) -> TransactionShard:
        return TransactionShard(self.settings, self.version)

    def first_decisions(self) -> Sequence[News[TransactionShard]]:
        return (TransactionShard.loaded,)

    def carry_out(self, deed: Any, hosted: HostedShard[TransactionShard]) -> None:
        if isinstance(deed, TimedOut):
            self.timed_out += 1
        else:
            self._send(cast(MarkersDue, deed), hosted)


class TransactionCoordinator:
    def __init__(self, around: Surroundings, producer_ids: ProducerIds, markers: MarkerSender) -> None:
        self._producer_ids = producer_ids
        self._markers = markers
        self._kind = TransactionKind(around, self._send)
        self._host = ShardHost(around, TRANSACTION_STATE_TOPIC, _transactions_topic, self._kind)
        around.running.subscribe(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        settings = self._kind.settings
        for hosted in self._host:
            hosted.shard.configure(settings)

    # -- life ---------------------------------------------------------------------------

    def start(self) -> None:
        self._host.start()

    def stop(self) -> None:
        self._host.stop()
        self._markers.stop()

    def role_changed(self, partition: Partition) -> None:
        self._host.role_changed(partition)

    def topic_deleted(self, name: str) -> None:
        self._host.topic_deleted(name)

    def topic_created(self, topic: TopicState) -> None:
        self._host.topic_created(topic)

    async def ensure_topic(self) -> None:
        await self._host.ensure_topic()

    def leader_of(self, transactional_id: str) -> int | None:
        return self._host.leader_of(transactional_id)

    def shards(self) -> Iterator[HostedShard[TransactionShard]]:
        return iter(self._host)

    @property
    def timed_out(self) -> int:
        return self._kind.timed_out

    @property
    def waiting_markers(self) -> int:
        return self._markers.waiting

    # -- requests -----------------------------------------------------------------------

    async def init_producer_id(self, request: InitRequest) -> InitReply:
        def ask(shard: TransactionShard, request: InitRequest, token: int, now_ms: int) -> Any:
            return shard.init_producer_id(request, token, now_ms)

        return await self._with_spare(request.transactional_id, InitReply, request, ask)

    async def add_partitions(self, request: AddRequest) -> AddReply:
        return await self._host.call(
            request.transactional_id,
            AddReply,
            lambda shard, token, now_ms: shard.add_partitions(request, token, now_ms),
        )

    async def verify_partitions(self, request: AddRequest) -> VerifyReply:
        return await self._host.call(
            request.transactional_id,
            VerifyReply,
            lambda shard, token, now_ms: shard.verify_partitions(request, token, now_ms),
        )

    async def end(self, request: EndRequest) -> EndReply:
        def ask(shard: TransactionShard, request: EndRequest, token: int, now_ms: int) -> Any:
            return shard.end(request, token, now_ms)

        return await self._with_spare(request.transactional_id, EndReply, request, ask)

    async def describe(self, transactional_id: str) -> DescribeReply:
        return await self._host.call(
            transactional_id,
            DescribeReply,
            lambda shard, token, now_ms: shard.describe(transactional_id, token, now_ms),
        )

    async def list_transactions(self, which: ListFilter) -> list[ListReply]:
        return await self._host.call_all(
            ListReply, lambda shard, token, now_ms: shard.list_transactions(which, token, now_ms)
        )

    async def _with_spare(self, transactional_id: str, kind: type[R], request: Any, ask: Callable[..., Any]) -> R:
        """Most requests need no new producer id; a request that does is repeated with one."""
        reply = await self._host.submit(
            transactional_id, lambda shard, token, now_ms: ask(shard, request, token, now_ms)
        )
        if isinstance(reply, NeedsProducerId):
            try:
                spare = await self._producer_ids.allocate_producer_id()
            except ApiError as error:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            given = request._replace(spare_producer_id=spare)
            reply = await self._host.submit(
                transactional_id, lambda shard, token, now_ms: ask(shard, given, token, now_ms)
            )
        assert isinstance(reply, kind)
        return reply

    # -- markers ------------------------------------------------------------------------

    def _send(self, due: MarkersDue, hosted: HostedShard[TransactionShard]) -> None:
        life = hosted.life
        epoch = hosted.partition.leader_epoch

        def is_wanted() -> bool:
            return hosted.life == life

        def written(places: frozenset[Place]) -> None:
            if is_wanted():
                hosted.tell(lambda shard, now_ms: shard.markers_written(due, places, now_ms))

        self._markers.send(MarkerTask(due, epoch, is_wanted, written))


def _transactions_topic(config: BrokerConfig) -> CoordinatorTopic:
    return CoordinatorTopic(
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        config.transaction_state_log_segment_bytes,
        {
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        },
    )
