"""The brokers of the cluster: registrations, heartbeats, fencing. A part of the controller.

A registered broker is fenced until a heartbeat shows that it has read its registration. Brokers that do not vote
receive the metadata as observers. `broker_watch` detects silent brokers, and `cluster.agreement` has the code shared by
all decisions. Must not know: sockets, the data of partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.cluster.agreement import Agreement
from penstock.cluster.broker_watch import BrokerWatch
from penstock.cluster.own_work import OwnWork
from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.cluster.voter_decisions import QuorumMembers, VoterDecisions
from penstock.config.settings import AGREED_ON
from penstock.core.metadata import brokers, features
from penstock.core.metadata.image import RESOURCE_BROKER, MetadataImage
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import ConfigChanged, MetadataRecord
from penstock.core.metadata.requests import FeatureUpdate, HeartbeatAnswer, Registration
from penstock.core.raft.exchange import Change
from penstock.model.errors import ApiError, ErrorCode

RETRY_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class BrokerRegistry:
    def __init__(
        self,
        node_id: int,
        incarnation_id: bytes,
        agreement: Agreement,
        quorum: QuorumMembers,
        image: MetadataImage,
        running: RunningConfig,
        policies: TopicPolicies,
        voter_decisions: VoterDecisions,
        watch: BrokerWatch,
        work: OwnWork,
    ) -> None:
        """`incarnation_id`: of the broker in this process. No other process may register under its id."""
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._agreement = agreement
        self._quorum = quorum
        self._image = image
        self._running = running
        self._policies = policies
        self._voter_decisions = voter_decisions
        self._watch = watch
        self._work = work
        self._must_know: dict[int, int] = {}
        """By broker, the index of its registration or fencing if this controller decided it: the broker must have
        applied that entry to be unfenced.
        """
        self._shall_know: dict[int, int] = {}
        """By broker, the commit index at its last heartbeat: a broker that never reaches it receives no metadata."""
        self._activated_at = 0
        """The index that covers all decisions of earlier controllers."""

    def activated(self) -> None:
        """This node is the controller now."""
        self._must_know.clear()
        self._shall_know.clear()
        self._activated_at = self._quorum.status.commit_index

    async def register_broker(self, registration: Registration) -> int:
        """Return the broker's epoch. It is fenced until it has caught up, unless it is the only broker."""
        broker_id = registration.broker_id
        async with self._agreement.turn:
            self._agreement.check_active()
            if registration.cluster_id and self._image.cluster_id and registration.cluster_id != self._image.cluster_id:
                raise ApiError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"Expected cluster ID {self._image.cluster_id}, but got cluster ID {registration.cluster_id}",
                )
            self._check_is_gone(registration)
            self._check_is_same_voter(registration)
            if broker_id in self._observers and self._has_another_disk(registration):
                # The log that the quorum expects on its disk is missing: the observer starts from scratch.
                await self._quorum.change_membership(Change.REMOVE_OBSERVER, broker_id)
            records = brokers.register(
                self._image,
                registration,
                self._policies,
                is_clean=self._stopped_cleanly(registration),
                is_alone=broker_id == self._node_id and self.stands_alone,
            )
            if records and any(one != broker_id for one in self._image.brokers):
                records += self.agreed_settings()  # a sole broker had none
            index = await self._agreement.commit(records)
            self._watch.heard(broker_id)
            self._must_know[broker_id] = max(index, self._must_know.get(broker_id, self._activated_at))
            self._shall_know.pop(broker_id, None)
            epoch = self._image.brokers[broker_id].epoch
        if broker_id not in self.members:
            self._work.run(self.add_observer(broker_id))
        return epoch

    def _has_another_disk(self, registration: Registration) -> bool:
        known = self._image.brokers.get(registration.broker_id)
        return known is not None and known.directory_id != registration.directory_id

    def _stopped_cleanly(self, registration: Registration) -> bool:
        known = self._image.brokers.get(registration.broker_id)
        return known is not None and known.epoch == registration.previous_epoch

    def _check_is_gone(self, registration: Registration) -> None:
        """Two running brokers with one id would replace each other for ever."""
        if registration.broker_id == self._node_id:
            if self._incarnation_id and registration.incarnation_id != self._incarnation_id:
                raise _duplicate(registration.broker_id)
            return
        known = self._image.brokers.get(registration.broker_id)
        if known is None or known.is_fenced or known.incarnation_id == registration.incarnation_id:
            return
        if registration.directory_id and registration.directory_id == known.directory_id:
            return  # a data directory is locked while its process runs
        if self._watch.is_heard_of(registration.broker_id):
            raise _duplicate(registration.broker_id)

    def _check_is_same_voter(self, registration: Registration) -> None:
        """A voter with another disk has lost its votes: it must not be taken for the known voter."""
        broker_id = registration.broker_id
        if broker_id not in self._voters or broker_id == self._node_id or not self._has_another_disk(registration):
            return
        if registration.directory_id and self._image.brokers[broker_id].directory_id:
            raise ApiError(ErrorCode.INCONSISTENT_VOTER_SET, f"node {broker_id} is a voter with another disk")

    async def add_observer(self, node: int) -> None:
        """A node that is not a member of the quorum receives the metadata as an observer."""
        while self._agreement.is_active and node in self._image.brokers and node not in self.members:
            try:
                await self._quorum.change_membership(Change.ADD_OBSERVER, node)
            except ApiError as error:
                log.info("node %d is not an observer of the metadata yet: %s", node, error)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def heartbeat(
        self, broker_id: int, broker_epoch: int, current_metadata_offset: int, want_fence: bool, want_shut_down: bool
    ) -> HeartbeatAnswer:
        self._agreement.check_active()
        brokers.check_epoch(self._image, broker_id, broker_epoch)
        broker = brokers.find(self._image, broker_id)
        reads_on = current_metadata_offset >= self._shall_know.get(broker_id, 0)
        if reads_on:
            self._watch.heard(broker_id)
            self._shall_know[broker_id] = self._quorum.status.commit_index
        leaves = want_shut_down and not broker.in_controlled_shutdown
        wants_in = broker.is_fenced and not want_fence and not want_shut_down
        comes = wants_in and self._knows_its_standing(broker_id, current_metadata_offset)
        if leaves or comes:
            async with self._agreement.turn:
                # A later incarnation of the broker may have registered meanwhile; this heartbeat must not affect it.
                self._agreement.check_active()
                brokers.check_epoch(self._image, broker_id, broker_epoch)
                broker = brokers.find(self._image, broker_id)
                comes = comes and self._knows_its_standing(broker_id, current_metadata_offset)
                if leaves or comes:
                    change = brokers.begin_controlled_shutdown if leaves else brokers.unfence
                    await self._agreement.commit(change(self._image, broker_id, self._policies))
            if comes:
                log.info("broker %d is part of the cluster", broker_id)
        should_shut_down = want_shut_down and not brokers.awaits_successor(self._image, broker_id)
        is_caught_up = reads_on and (not wants_in or comes)
        return HeartbeatAnswer(is_caught_up, broker.is_fenced, should_shut_down)

    def _knows_its_standing(self, broker_id: int, metadata_offset: int) -> bool:
        """Whether the broker has applied its registration, and the leaders elected since it was fenced."""
        return metadata_offset >= self._must_know.get(broker_id, self._activated_at)

    async def unregister_broker(self, broker_id: int) -> None:
        async with self._agreement.turn:
            self._agreement.check_active()
            if broker_id == self._node_id or not brokers.find(self._image, broker_id).is_fenced:
                # It would register again at once as a new broker, and partitions with no other replica would have no
                # leader.
                raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} is running: stop it first")
            if broker_id in self._voters:
                # The registration identifies the disk of its votes: without it the node could vote again with an empty
                # disk.
                raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} is a voter: remove its vote first")
            gone = brokers.unregister(self._image, broker_id, self._policies)
            await self._agreement.commit([*gone, *self._voter_decisions.address_removed(broker_id)])
            self._watch.forget(broker_id)
        if broker_id in self._observers:
            await self._quorum.change_membership(Change.REMOVE_OBSERVER, broker_id)
            if broker_id in self._image.brokers:  # it is running, and has registered again
                self._work.run(self.add_observer(broker_id))

    async def fence(self, broker_id: int) -> None:
        """Fence the broker if there is still a reason when the turn comes. Its leaders move; a heartbeat
        unfences it.
        """
        async with self._agreement.turn:
            broker = self._image.brokers.get(broker_id)
            reason = self._watch.reason_to_fence(broker_id)
            if not self._agreement.is_active or broker is None or broker.is_fenced or reason is None:
                return
            if broker.in_controlled_shutdown:
                log.info("broker %d has stopped", broker_id)
            else:
                log.warning("broker %d is fenced: %s", broker_id, reason)
            fencing = brokers.fence(self._image, broker_id, self._policies)
            self._must_know[broker_id] = await self._agreement.commit(fencing)

    def agreed_settings(self) -> list[MetadataRecord]:
        """Settings that must be the same on all nodes, with this node's values, whatever the other nodes' files say."""
        cluster_wide = self._image.configs.get((RESOURCE_BROKER, CLUSTER_WIDE), {})
        own = [
            (name, overrides)
            for (resource_type, name), overrides in self._image.configs.items()
            if resource_type == RESOURCE_BROKER and name != CLUSTER_WIDE and any(key in overrides for key in AGREED_ON)
        ]
        if all(key in cluster_wide for key in AGREED_ON) and not own:
            return []
        agreed = {key: str(self._running.current.settings.value(key)) for key in AGREED_ON}  # unchanged on this node
        records = [ConfigChanged(RESOURCE_BROKER, CLUSTER_WIDE, {**cluster_wide, **agreed})]
        for name, overrides in own:
            others = {key: value for key, value in overrides.items() if key not in AGREED_ON}
            records.append(ConfigChanged(RESOURCE_BROKER, name, others))
        return list(records)

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        async with self._agreement.turn:
            self._agreement.check_active()
            records = features.update(self._image, updates)
            if not validate_only:
                await self._agreement.commit(records)

    @property
    def members(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.members

    @property
    def _voters(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.voters

    @property
    def _observers(self) -> tuple[int, ...]:
        return self._quorum.status.configuration.observers

    @property
    def stands_alone(self) -> bool:
        return not any(broker != self._node_id for broker in self._image.brokers) and self._voters == (self._node_id,)


def _duplicate(broker_id: int) -> ApiError:
    return ApiError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"Another broker is registered with that broker id: {broker_id}"
    )
