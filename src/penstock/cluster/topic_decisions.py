"""Decisions on topics, settings, credentials and producer ids: a part of the controller (see `cluster.agreement`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.cluster.agreement import Agreement
from penstock.cluster.running_config import CLUSTER_WIDE, RunningConfig
from penstock.cluster.topic_policies import is_durable
from penstock.config.topic import TopicConfig, validate_topic_overrides
from penstock.core.metadata import brokers, decisions, partitions, scram
from penstock.core.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import ConfigChanged, MetadataRecord, ProducerIdsAllocated, TopicDeleted
from penstock.core.metadata.requests import ProducerIdBlock
from penstock.model.errors import ApiError, ConfigError, ErrorCode
from penstock.model.new_topic import BROKER_DEFAULT, NewTopic
from penstock.ports.clock import Entropy

PRODUCER_ID_BLOCK = 1000
UNCLEAN = "unclean.leader.election.enable"


class TopicDecisions:
    def __init__(
        self,
        node_id: int,
        agreement: Agreement,
        image: MetadataImage,
        running: RunningConfig,
        policies: TopicPolicies,
        entropy: Entropy,
    ) -> None:
        self._node_id = node_id
        self._agreement = agreement
        self.image = image
        self._running = running
        self._policies = policies
        self._entropy = entropy

    @property
    def brokers(self) -> list[int]:
        """The live brokers. A sole broker that is not registered yet counts."""
        return self.image.live_brokers() or [self._node_id]

    async def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> bytes:
        """The new topic's id. Raises ApiError."""
        async with self._agreement.turn:
            self._agreement.check_active()
            _check_configs(topic.configs)
            topic_id = self._new_topic_id()
            records = decisions.create_topic(self.image, self.brokers, self._with_defaults(topic), topic_id)
            if not validate_only:
                await self._agreement.commit(records)
            return topic_id

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None:
        async with self._agreement.turn:
            self._agreement.check_active()
            records = decisions.create_partitions(self.image, self.brokers, name, count, assignments)
            if not validate_only:
                await self._agreement.commit(records)

    async def delete_topic(self, topic_id: bytes) -> None:
        async with self._agreement.turn:
            self._agreement.check_active()
            if topic_id not in self.image.topics_by_id:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            await self._agreement.commit([TopicDeleted(topic_id.hex())])

    async def change_config(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None:
        """`decide` maps the current overrides to the new ones, or raises."""
        async with self._agreement.turn:
            self._agreement.check_active()
            current = self.image.configs.get((resource_type, name), {})
            overrides = decide(current)
            if not validate_only and overrides != current:
                await self._agreement.commit(self._config_records(resource_type, name, overrides))
                if overrides.get(UNCLEAN) != current.get(UNCLEAN):
                    await self._agreement.commit(partitions.elect_leaderless(self.image, self._policies))

    def _config_records(self, resource_type: int, name: str, overrides: dict[str, str]) -> list[MetadataRecord]:
        """The change and its effects: a new min.insync.replicas or flush.messages changes the eligible replicas, in the
        same entry.
        """
        image, policies = self.image, self._policies
        if resource_type == RESOURCE_TOPIC and name in image.topics:
            after = {name: TopicConfig.resolve(overrides, self._running.current)}
        elif resource_type == RESOURCE_BROKER and name == CLUSTER_WIDE:
            broker = self._running.with_cluster_wide(overrides)
            after = {topic: TopicConfig.resolve(image.topic_overrides(topic), broker) for topic in image.topics}
        else:
            return [ConfigChanged(resource_type, name, overrides)]

        now_durable = tuple(topic for topic, new in after.items() if is_durable(new) and not policies.is_durable(topic))
        changed = {
            *now_durable,
            *(topic for topic in after if after[topic].min_insync_replicas != policies.min_isr(topic)),
        }
        records: list[MetadataRecord] = [ConfigChanged(resource_type, name, overrides, now_durable)]
        if changed:
            records += partitions.settings_changed(image, changed, _ChangedMinimum(policies, after), now_durable)
        return records

    async def alter_scram_credentials(
        self, changes: Sequence[scram.Deletion | scram.Upsertion]
    ) -> dict[str, ApiError | None]:
        """By user, in the order of the request: None, or the reason for the refusal."""
        async with self._agreement.turn:
            self._agreement.check_active()
            records, outcomes = scram.alter_credentials(self.image, changes)
            await self._agreement.commit(records)
            return outcomes

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        async with self._agreement.turn:
            self._agreement.check_active()
            brokers.check_epoch(self.image, broker_id, broker_epoch)
            first = self.image.next_producer_id
            await self._agreement.commit([ProducerIdsAllocated(first + PRODUCER_ID_BLOCK)])
            return ProducerIdBlock(first, PRODUCER_ID_BLOCK)

    def _with_defaults(self, topic: NewTopic) -> NewTopic:
        config = self._running.current
        partitions, replication_factor = topic.partitions, topic.replication_factor
        if partitions == BROKER_DEFAULT:
            partitions = config.num_partitions
        if replication_factor == BROKER_DEFAULT:
            replication_factor = config.default_replication_factor
        return replace(topic, partitions=partitions, replication_factor=replication_factor)

    def _new_topic_id(self) -> bytes:
        while True:
            topic_id = self._entropy.random_bytes(16)
            # Ids whose base64 form starts with a dash break command lines; Kafka avoids them too.
            if topic_id[0] >> 2 != 62 and topic_id not in self.image.topics_by_id and any(topic_id[:15]):
                return topic_id


class _ChangedMinimum:
    """The current policies, with the future `min.insync.replicas` of the topics."""

    def __init__(self, policies: TopicPolicies, after: Mapping[str, TopicConfig]) -> None:
        self.unclean_ok = policies.unclean_ok
        self.is_durable = policies.is_durable
        self._after = after

    def min_isr(self, topic: str) -> int:
        return self._after[topic].min_insync_replicas


def _check_configs(configs: Mapping[str, str]) -> None:
    """For all callers, brokers included: a committed record that cannot be applied would stop every node."""
    try:
        validate_topic_overrides(configs)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
