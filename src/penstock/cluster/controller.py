"""The controller: which brokers belong to the cluster, and, with its bases, every decision on the metadata.

Every node has one; it is active on the node that leads the metadata quorum, once that has applied what was committed
before. What all decisions have in common is in `cluster.deciding`; those on topics, on partitions and on voters are in
`cluster.topic_decisions`, `cluster.partition_decisions` and `cluster.voter_decisions`: one object for whoever asks, as
they take turns.

Which brokers live is watched by `broker_watch`, which has the lost ones fenced here. Must not know: sockets,
the data of partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.deciding import MetadataQuorum
from penstock.cluster.partition_decisions import PartitionDecisions
from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.cluster.topic_decisions import TopicDecisions
from penstock.cluster.voter_decisions import VoterDecisions
from penstock.config.settings import AGREED_ON
from penstock.core.metadata import brokers, features, partitions
from penstock.core.metadata.image import RESOURCE_BROKER, MetadataImage
from penstock.core.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
)
from penstock.core.metadata.requests import (
    FeatureUpdate,
    HeartbeatAnswer,
    Registration,
)
from penstock.core.raft.exchange import Change
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.ports.clock import Entropy

RETRY_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class Controller(TopicDecisions, PartitionDecisions, VoterDecisions):
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
        super().__init__(node_id, quorum, image, running, entropy)
        self._loop = loop
        self._watch = watch
        self._must_know: dict[int, int] = {}
        """By broker, the index of its registration or fencing if that was decided here: it comes back knowing of it."""
        self._shall_know: dict[int, int] = {}
        """By broker, what was committed when it was last heard: one that never gets there hears no decisions."""
        self._activated_at = 0
        """The index of all that was decided elsewhere."""
        self._work: dict[asyncio.Task[None], None] = {}
        self.incarnation_id = b""
        """Of the broker in this process: nobody else may register under its id."""
        self.cluster_id_for_new = ""
        """What a cluster that has no id yet shall be called."""

    # -- being it -----------------------------------------------------------------------

    def activated(self) -> None:
        """This node leads the quorum now: silence counts from here on."""
        self._must_know.clear()
        self._shall_know.clear()
        status = self._quorum.status
        self._activated_at = status.commit_index
        if not self.image.cluster_id:
            self.run(self._create_cluster())
        for broker in self.image.brokers:  # the controller before may have got no further than the registration
            if broker not in status.configuration.members:
                self.run(self._add_observer(broker))
        self.run(self._elect_leaderless())  # or no further than the setting that allows it
        self._watch.start(self)

    def deactivated(self) -> None:
        self._watch.stop()

    async def _create_cluster(self) -> None:
        async with self._lock:
            if not self.image.cluster_id:
                records: list[MetadataRecord] = [ClusterCreated(self.cluster_id_for_new)]
                if not self._stands_alone:
                    records += [*self._first_addresses(), *self._agreed_settings()]
                await self._commit(records)

    async def _elect_leaderless(self) -> None:
        async with self._lock:
            if self.is_active:
                await self._commit(partitions.elect_leaderless(self.image, self._min_isr, self._unclean_ok))

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
    def _members(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.members

    @property
    def _stands_alone(self) -> bool:
        return not any(broker != self._node_id for broker in self.image.brokers) and self._voters == (self._node_id,)

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
            self._check_is_same_voter(registration)
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
            self._must_know[broker_id] = max(index, self._must_know.get(broker_id, self._activated_at))
            self._shall_know.pop(broker_id, None)
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

    def _check_is_same_voter(self, registration: Registration) -> None:
        """A voter with another disk has forgotten its votes: it must not be taken for the one that the others mean."""
        broker_id = registration.broker_id
        if broker_id not in self._voters or broker_id == self._node_id or not self._has_another_disk(registration):
            return
        if registration.directory_id and self.image.brokers[broker_id].directory_id:
            raise ApiError(ErrorCode.INCONSISTENT_VOTER_SET, f"node {broker_id} is a voter with another disk")

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
        reads_on = current_metadata_offset >= self._shall_know.get(broker_id, 0)
        if reads_on:
            self._watch.heard(broker_id)
            self._shall_know[broker_id] = self._quorum.status.commit_index
        leaves = want_shut_down and not broker.in_controlled_shutdown
        wants_in = broker.is_fenced and not want_fence and not want_shut_down
        comes = wants_in and self._knows_its_standing(broker_id, current_metadata_offset)
        if leaves or comes:
            async with self._lock:
                # A next life of the broker may have registered meanwhile: this one has no say in that.
                self._check_active()
                brokers.check_epoch(self.image, broker_id, broker_epoch)
                broker = brokers.find(self.image, broker_id)
                comes = comes and self._knows_its_standing(broker_id, current_metadata_offset)
                if leaves or comes:
                    change = brokers.begin_controlled_shutdown if leaves else brokers.unfence
                    await self._commit(change(self.image, broker_id, self._min_isr, self._unclean_ok))
            if comes:
                log.info("broker %d is part of the cluster", broker_id)
        should_shut_down = want_shut_down and not brokers.awaits_successor(self.image, broker_id)
        is_caught_up = reads_on and (not wants_in or comes)
        return HeartbeatAnswer(is_caught_up, broker.is_fenced, should_shut_down)

    def _knows_its_standing(self, broker_id: int, metadata_offset: int) -> bool:
        """Whether it has read of its registration, and of who leads since it was fenced."""
        return metadata_offset >= self._must_know.get(broker_id, self._activated_at)

    async def unregister_broker(self, broker_id: int) -> None:
        async with self._lock:
            self._check_active()
            if broker_id == self._node_id or not brokers.find(self.image, broker_id).is_fenced:
                # It would register again at once, as one that has nothing: what it alone holds had no leader then.
                raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} is running: stop it first")
            if broker_id in self._voters:
                # The registration says which disk its votes are on: it would vote again with an empty one.
                raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} is a voter: remove its vote first")
            gone = brokers.unregister(self.image, broker_id, self._min_isr, self._unclean_ok)
            await self._commit([*gone, *self._address_removed(broker_id)])
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
            if broker.in_controlled_shutdown:
                log.info("broker %d has stopped", broker_id)
            else:
                log.warning("broker %d is fenced: %s", broker_id, reason)
            fencing = brokers.fence(self.image, broker_id, self._min_isr, self._unclean_ok)
            self._must_know[broker_id] = await self._commit(fencing)

    # -- features -----------------------------------------------------------------------

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        async with self._lock:
            self._check_active()
            records = features.update(self.image, updates)
            if not validate_only:
                await self._commit(records)

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
