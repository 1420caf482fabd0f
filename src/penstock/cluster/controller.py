"""The controller: one decision at a time, each on the image that the last one left.

Every node has one; it is active on the node that leads the metadata quorum, once that has applied what was committed
before. `core.metadata` says what to do; this shell has the records agreed on and returns when they are applied here, so
what was answered is in this node's image. Elsewhere every method raises NOT_CONTROLLER.

Which brokers live is watched by `broker_watch`, which has the lost ones fenced here. Must not know: sockets,
the data of partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.cluster.turns import Turns
from penstock.config.settings import AGREED_ON
from penstock.config.topic import TopicConfig
from penstock.core.metadata import brokers, decisions, features, partitions, reassignment, scram
from penstock.core.metadata.image import NO_LEADER, RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionChanged,
    PeerAddressSet,
    ProducerIdsAllocated,
    TopicDeleted,
    encode_entry,
)
from penstock.core.metadata.requests import (
    ElectionKind,
    FeatureUpdate,
    HeartbeatAnswer,
    IsrAnswer,
    IsrChange,
    OngoingReassignment,
    PartitionAnswer,
    ProducerIdBlock,
    Reassignment,
    Registration,
)
from penstock.core.raft.core import Status
from penstock.core.raft.exchange import Change
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.ports.clock import Entropy

PRODUCER_ID_BLOCK = 1000
UNCLEAN = "unclean.leader.election.enable"
RETRY_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class MetadataQuorum(Protocol):
    """What the controller needs of `cluster.quorum.Quorum`."""

    @property
    def is_active(self) -> bool: ...

    @property
    def status(self) -> Status: ...

    async def propose(self, data: bytes) -> int: ...

    async def settled(self) -> None: ...

    async def change_membership(self, change: Change, node: int) -> None: ...


class Controller:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        quorum: MetadataQuorum,
        image: MetadataImage,
        running: RunningConfig,
        entropy: Entropy,
        watch: BrokerWatch,
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._quorum = quorum
        self.image = image
        self._running = running
        self._entropy = entropy
        self._watch = watch
        self._lock = Turns(quorum)
        self._registered_at: dict[int, int] = {}
        """By broker, the index of its registration if that was decided here."""
        self._activated_at = 0
        """The index of all that was decided elsewhere."""
        self._work: dict[asyncio.Task[None], None] = {}
        self.elections = 0
        self.unclean_elections = 0
        self.incarnation_id = b""
        """Of the broker in this process: nobody else may register under its id."""
        self.cluster_id_for_new = ""
        """What a cluster that has no id yet shall be called."""

    # -- being it -----------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._quorum.is_active

    @property
    def brokers(self) -> list[int]:
        """Those that serve. A broker that stands alone and is not registered yet counts."""
        return self.image.live_brokers() or [self._node_id]

    def activated(self) -> None:
        """This node leads the quorum now: silence counts from here on."""
        self._registered_at.clear()
        status = self._quorum.status
        self._activated_at = status.commit_index
        if not self.image.cluster_id:
            self.run(self._create_cluster())
        for broker in self.image.brokers:  # the controller before may have got no further than the registration
            if broker not in status.configuration.members:
                self.run(self._add_observer(broker))
        self._watch.start(self)

    def deactivated(self) -> None:
        self._watch.stop()

    async def _create_cluster(self) -> None:
        async with self._lock:
            if not self.image.cluster_id:
                records: list[MetadataRecord] = [ClusterCreated(self.cluster_id_for_new)]
                if not self._stands_alone:
                    records += self._agreed_settings()
                await self._commit(records)

    def _agreed_settings(self) -> list[MetadataRecord]:
        """Settings that must be the same on all nodes, whatever their files say, as they are here."""
        cluster_wide = self.image.configs.get((RESOURCE_BROKER, CLUSTER_WIDE), {})
        own = [
            (name, overrides)
            for (resource_type, name), overrides in self.image.configs.items()
            if resource_type == RESOURCE_BROKER and name != CLUSTER_WIDE and any(key in overrides for key in AGREED_ON)
        ]
        if all(key in cluster_wide for key in AGREED_ON) and not own:
            return []
        agreed = {key: str(self._running.current.settings.value(key)) for key in AGREED_ON}  # nothing changes here
        records = [ConfigChanged(RESOURCE_BROKER, CLUSTER_WIDE, {**cluster_wide, **agreed})]
        for name, overrides in own:
            others = {key: value for key, value in overrides.items() if key not in AGREED_ON}
            records.append(ConfigChanged(RESOURCE_BROKER, name, others))
        return list(records)

    @property
    def _voters(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.voters

    @property
    def _observers(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.observers

    @property
    def _members(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.members

    @property
    def _stands_alone(self) -> bool:
        return not any(broker != self._node_id for broker in self.image.brokers) and self._voters == (self._node_id,)

    def _check_active(self) -> None:
        if not self._quorum.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    async def _commit(self, records: Sequence[MetadataRecord]) -> int:
        self._check_active()
        if not records:
            return -1
        elections = list(self._elections(records))
        index = await self._quorum.propose(encode_entry(list(records)))
        self.elections += len(elections)
        self.unclean_elections += sum(elections)
        return index

    def _elections(self, records: Sequence[MetadataRecord]) -> Iterator[bool]:
        """For each new leader whether it may lack what was committed."""
        for record in records:
            if isinstance(record, PartitionChanged) and record.leader is not None and record.leader != NO_LEADER:
                before = self.image.topics_by_id[bytes.fromhex(record.topic_id)].partitions[record.index]
                if record.leader != before.leader:
                    yield record.leader not in before.isr and record.leader not in before.elr

    # -- topics -------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]],
        configs: dict[str, str],
        *,
        validate_only: bool = False,
    ) -> bytes:
        """The new topic's id. Raises ApiError."""
        async with self._lock:
            self._check_active()
            topic_id = self._new_topic_id()
            config = self._running.current
            records = decisions.create_topic(
                self.image,
                self.brokers,
                name,
                topic_id,
                config.num_partitions if partitions == -1 else partitions,
                config.default_replication_factor if replication_factor == -1 else replication_factor,
                assignments,
                configs,
            )
            if not validate_only:
                await self._commit(records)
            return topic_id

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None:
        async with self._lock:
            self._check_active()
            records = decisions.create_partitions(self.image, self.brokers, name, count, assignments)
            if not validate_only:
                await self._commit(records)

    async def delete_topic(self, topic_id: bytes) -> None:
        async with self._lock:
            self._check_active()
            if topic_id not in self.image.topics_by_id:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            await self._commit([TopicDeleted(topic_id.hex())])

    async def change_config(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None:
        """`decide` maps the current overrides to the new ones, or raises."""
        async with self._lock:
            self._check_active()
            current = self.image.configs.get((resource_type, name), {})
            overrides = decide(current)
            if not validate_only and overrides != current:
                records: list[MetadataRecord] = [ConfigChanged(resource_type, name, overrides)]
                records += self._after_config(resource_type, name, overrides)
                await self._commit(records)
                if overrides.get(UNCLEAN) != current.get(UNCLEAN):
                    await self._commit(partitions.elect_leaderless(self.image, self._min_isr, self._unclean_ok))

    def _after_config(self, resource_type: int, name: str, overrides: Mapping[str, str]) -> list[MetadataRecord]:
        """A new min.insync.replicas changes who is eligible, in the same entry."""
        image = self.image
        if resource_type == RESOURCE_TOPIC and name in image.topics:
            broker = self._running.current
            after = {name: TopicConfig.resolve(overrides, broker).min_insync_replicas}
        elif resource_type == RESOURCE_BROKER and name == CLUSTER_WIDE:
            broker = self._running.with_cluster_wide(overrides)
            after = {
                topic: TopicConfig.resolve(image.topic_overrides(topic), broker).min_insync_replicas
                for topic in image.topics
            }
        else:
            return []
        changed = [topic for topic, min_isr in after.items() if min_isr != self._min_isr(topic)]
        return partitions.min_isr_changed(image, changed, after.__getitem__, self._unclean_ok) if changed else []

    def _topic(self, name: str) -> TopicConfig:
        return TopicConfig.resolve(self.image.topic_overrides(name), self._running.current)

    def _min_isr(self, topic: str) -> int:
        return self._topic(topic).min_insync_replicas

    def _unclean_ok(self, topic: str) -> bool:
        return self._topic(topic).unclean_leader_election_enable

    def _is_durable(self, topic: str) -> bool:
        return self._topic(topic).flush_messages <= 1

    async def alter_scram_credentials(
        self, changes: Sequence[scram.Deletion | scram.Upsertion]
    ) -> dict[str, ApiError | None]:
        """By user, in the order of the request: None, or why it was refused."""
        async with self._lock:
            self._check_active()
            records, outcomes = scram.alter_credentials(self.image, changes)
            await self._commit(records)
            return outcomes

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        async with self._lock:
            self._check_active()
            brokers.check_epoch(self.image, broker_id, broker_epoch)
            first = self.image.next_producer_id
            await self._commit([ProducerIdsAllocated(first + PRODUCER_ID_BLOCK)])
            return ProducerIdBlock(first, PRODUCER_ID_BLOCK)

    def _new_topic_id(self) -> bytes:
        while True:
            topic_id = self._entropy.random_bytes(16)
            # Ids whose base64 form starts with a dash break command lines; Kafka avoids them too.
            if topic_id[0] >> 2 != 62 and topic_id not in self.image.topics_by_id and any(topic_id[:15]):
                return topic_id

    # -- brokers ------------------------------------------------------------------------

    async def register_broker(self, registration: Registration) -> int:
        """The broker's epoch. It is fenced until it has caught up, but for one that stands alone."""
        broker_id = registration.broker_id
        async with self._lock:
            self._check_active()
            if registration.cluster_id and self.image.cluster_id and registration.cluster_id != self.image.cluster_id:
                raise ApiError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"Expected cluster ID {self.image.cluster_id}, but got cluster ID {registration.cluster_id}",
                )
            self._check_is_gone(registration)
            if broker_id in self._observers and self._has_another_disk(registration):
                # What the quorum believes to be on its disk is not there: it begins anew.
                await self._quorum.change_membership(Change.REMOVE_OBSERVER, broker_id)
            records = brokers.register(
                self.image,
                broker_id,
                registration.incarnation_id,
                registration.endpoints,
                registration.rack,
                registration.previous_epoch,
                self._stopped_cleanly(registration),
                self._is_durable,
                self._min_isr,
                self._unclean_ok,
                directory_id=registration.directory_id,
                features=registration.features,
                is_alone=broker_id == self._node_id and self._stands_alone,
            )
            if records and any(one != broker_id for one in self.image.brokers):
                records += self._agreed_settings()  # a broker that stood alone had none
            index = await self._commit(records)
            self._watch.heard(broker_id)
            self._registered_at[broker_id] = index
            epoch = self.image.brokers[broker_id].epoch
        if broker_id not in self._members:
            self.run(self._add_observer(broker_id))
        return epoch

    def _has_another_disk(self, registration: Registration) -> bool:
        known = self.image.brokers.get(registration.broker_id)
        return known is not None and known.directory_id != registration.directory_id

    def _stopped_cleanly(self, registration: Registration) -> bool:
        known = self.image.brokers.get(registration.broker_id)
        return known is not None and known.epoch == registration.previous_epoch

    def _check_is_gone(self, registration: Registration) -> None:
        """Two running brokers of one id would take each other's place for ever."""
        if registration.broker_id == self._node_id:
            if self.incarnation_id and registration.incarnation_id != self.incarnation_id:
                raise _duplicate(registration.broker_id)
            return
        known = self.image.brokers.get(registration.broker_id)
        if known is None or known.is_fenced or known.incarnation_id == registration.incarnation_id:
            return
        if registration.directory_id and registration.directory_id == known.directory_id:
            return  # a data directory is locked as long as its process lives
        if self._watch.is_heard_of(registration.broker_id):
            raise _duplicate(registration.broker_id)

    async def _add_observer(self, node: int) -> None:
        """A node that is no member of the quorum hears of the metadata as an observer."""
        while self.is_active and node in self.image.brokers and node not in self._members:
            try:
                await self._quorum.change_membership(Change.ADD_OBSERVER, node)
            except ApiError as error:
                log.info("node %d is not an observer of the metadata yet: %s", node, error)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def heartbeat(
        self, broker_id: int, broker_epoch: int, current_metadata_offset: int, want_fence: bool, want_shut_down: bool
    ) -> HeartbeatAnswer:
        self._check_active()
        brokers.check_epoch(self.image, broker_id, broker_epoch)
        broker = brokers.find(self.image, broker_id)
        self._watch.heard(broker_id)
        is_caught_up = current_metadata_offset >= self._registered_at.get(broker_id, self._activated_at)
        leaves = want_shut_down and not broker.in_controlled_shutdown
        comes = broker.is_fenced and is_caught_up and not want_fence and not want_shut_down
        if leaves or comes:
            async with self._lock:
                # A next life of the broker may have registered meanwhile: this one has no say in that.
                self._check_active()
                brokers.check_epoch(self.image, broker_id, broker_epoch)
                broker = brokers.find(self.image, broker_id)
                change = brokers.begin_controlled_shutdown if leaves else brokers.unfence
                await self._commit(change(self.image, broker_id, self._min_isr, self._unclean_ok))
            if comes:
                log.info("broker %d is part of the cluster", broker_id)
        should_shut_down = want_shut_down and not brokers.awaits_successor(self.image, broker_id)
        return HeartbeatAnswer(is_caught_up, broker.is_fenced, should_shut_down)

    async def unregister_broker(self, broker_id: int) -> None:
        async with self._lock:
            self._check_active()
            if broker_id == self._node_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Broker {broker_id} is running, and is the active controller: stop it first, then unregister it.",
                )
            await self._commit(brokers.unregister(self.image, broker_id, self._min_isr, self._unclean_ok))
            self._watch.forget(broker_id)
        if broker_id in self._observers:
            await self._quorum.change_membership(Change.REMOVE_OBSERVER, broker_id)
            if broker_id in self.image.brokers:  # it runs, and has registered again
                self.run(self._add_observer(broker_id))

    async def fence(self, broker_id: int) -> None:
        """If it is still to be given up when its turn comes. Its leaders move; it comes back with a heartbeat."""
        async with self._lock:
            broker = self.image.brokers.get(broker_id)
            reason = self._watch.reason_to_fence(broker_id)
            if not self.is_active or broker is None or broker.is_fenced or reason is None:
                return
            log.warning("broker %d is fenced: %s", broker_id, reason)
            await self._commit(brokers.fence(self.image, broker_id, self._min_isr, self._unclean_ok))

    async def move_leaders_back(self) -> None:
        """To the preferred replicas, where too many are elsewhere."""
        async with self._lock:
            self._check_active()
            records = partitions.preferred_imbalance(self.image, self._min_isr)
            if records:
                log.info("leadership of %d partitions moves back to the preferred replicas", len(records))
                await self._commit(records)

    # -- partitions ---------------------------------------------------------------------

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        async with self._lock:
            self._check_active()
            brokers.check_epoch(self.image, broker_id, broker_epoch)
            refused: dict[int, ErrorCode] = {}
            records: list[MetadataRecord] = []
            seen: dict[tuple[bytes, int], None] = {}  # each is decided on the image as it is
            for at, change in enumerate(changes):
                if (change.topic_id, change.index) in seen:
                    refused[at] = ErrorCode.INVALID_UPDATE_VERSION
                    continue
                seen[change.topic_id, change.index] = None
                try:
                    records += partitions.alter_partition(
                        self.image,
                        change.topic_id,
                        change.index,
                        broker_id,
                        broker_epoch,
                        change.leader_epoch,
                        change.partition_epoch,
                        change.new_isr,
                        self._min_isr,
                        self._unclean_ok,
                    )
                except ApiError as error:
                    refused[at] = error.code
            await self._commit(records)
            return [
                IsrAnswer(change.topic_id, change.index, refused[at])
                if at in refused
                else self._altered(broker_id, change)
                for at, change in enumerate(changes)
            ]

    def _altered(self, broker_id: int, change: IsrChange) -> IsrAnswer:
        try:
            state = partitions.altered(self.image, change.topic_id, change.index, broker_id)
        except ApiError as error:
            return IsrAnswer(change.topic_id, change.index, error.code)
        return IsrAnswer(
            change.topic_id,
            change.index,
            ErrorCode.NONE,
            state.leader,
            state.leader_epoch,
            state.isr,
            state.partition_epoch,
        )

    async def elect_leaders(self, kind: ElectionKind, asked: Sequence[tuple[str, int]] | None) -> list[PartitionAnswer]:
        async with self._lock:
            self._check_active()
            every = [(topic.name, state.index) for topic, state in self.image.all_partitions()]
            answers: list[PartitionAnswer] = []
            records: list[MetadataRecord] = []
            for topic, index in every if asked is None else dict.fromkeys(asked):
                try:
                    records += partitions.elect(self.image, topic, index, kind, self._min_isr)
                except ApiError as error:
                    if asked is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                        continue
                    answers.append(PartitionAnswer(topic, index, error))
                else:
                    answers.append(PartitionAnswer(topic, index))
            await self._commit(records)
            return answers

    async def alter_reassignments(
        self, moves: Sequence[Reassignment], allow_factor_change: bool = True
    ) -> list[PartitionAnswer]:
        async with self._lock:
            self._check_active()
            answers: list[PartitionAnswer] = []
            records: list[MetadataRecord] = []
            seen: dict[tuple[str, int], None] = {}
            for move in moves:
                try:
                    if (move.topic, move.index) in seen:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "The partition is named twice in the request.")
                    seen[move.topic, move.index] = None
                    if move.replicas is None:
                        records += reassignment.cancel(
                            self.image, move.topic, move.index, self._min_isr, self._unclean_ok
                        )
                    else:
                        records += reassignment.begin(
                            self.image,
                            move.topic,
                            move.index,
                            move.replicas,
                            self._min_isr,
                            allow_replication_factor_change=allow_factor_change,
                        )
                except ApiError as error:
                    answers.append(PartitionAnswer(move.topic, move.index, error))
                else:
                    answers.append(PartitionAnswer(move.topic, move.index))
            await self._commit(records)
            return answers

    def list_reassignments(self, asked: Sequence[tuple[str, int]] | None) -> list[OngoingReassignment]:
        self._check_active()
        if asked is None:
            return reassignment.ongoing(self.image)
        topics: dict[str, list[int]] = {}
        for topic, index in asked:
            topics.setdefault(topic, []).append(index)
        return reassignment.ongoing(self.image, topics)

    # -- features and voters ------------------------------------------------------------

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        async with self._lock:
            self._check_active()
            records = features.update(self.image, updates)
            if not validate_only:
                await self._commit(records)

    async def add_voter(self, voter_id: int, directory_id: bytes, host: str, port: int) -> None:
        async with self._lock:
            self._check_active()
            if voter_id in self._voters:
                raise ApiError(ErrorCode.DUPLICATE_VOTER, f"node {voter_id} is a voter already")
            await self._commit([PeerAddressSet(voter_id, host, port)])
        if voter_id not in self._observers:
            await self._quorum.change_membership(Change.ADD_OBSERVER, voter_id)
        await self._quorum.change_membership(Change.ADD_VOTER, voter_id)

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        self._check_active()
        if voter_id not in self._voters:
            raise ApiError(ErrorCode.VOTER_NOT_FOUND, f"node {voter_id} is not a voter")
        await self._quorum.change_membership(Change.REMOVE_VOTER, voter_id)

    # -- work of its own ----------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside everything else; what goes wrong is logged."""
        task = self._loop.create_task(work)
        self._work[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.pop(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PenstockError):
            log.warning("the controller could not do what it wanted: %s", error)  # it looks again
        elif error is not None:
            self._loop.call_exception_handler({"message": "the controller failed", "exception": error, "task": task})

    async def stop(self) -> None:
        self.deactivated()
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)


def _duplicate(broker_id: int) -> ApiError:
    return ApiError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"Another broker is registered with that broker id: {broker_id}"
    )
