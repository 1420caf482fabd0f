"""Decisions on leaders and replicas of partitions: a part of the controller (see `cluster.agreement`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.cluster.agreement import Agreement
from penstock.core.metadata import brokers, partitions, reassignment
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import MetadataRecord
from penstock.core.metadata.requests import (
    ElectionKind,
    IsrAnswer,
    IsrChange,
    OngoingReassignment,
    PartitionAnswer,
    Reassignment,
)
from penstock.model.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


class PartitionDecisions:
    def __init__(self, agreement: Agreement, image: MetadataImage, policies: TopicPolicies) -> None:
        self._agreement = agreement
        self._image = image
        self._policies = policies

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]:
        async with self._agreement.turn:
            self._agreement.check_active()
            brokers.check_epoch(self._image, broker_id, broker_epoch)
            refused: dict[int, ErrorCode] = {}
            records: list[MetadataRecord] = []
            seen: dict[tuple[bytes, int], None] = {}  # each change is decided on the image as it is
            for at, change in enumerate(changes):
                if (change.topic_id, change.index) in seen:
                    refused[at] = ErrorCode.INVALID_UPDATE_VERSION
                    continue
                seen[change.topic_id, change.index] = None
                try:
                    records += partitions.alter_partition(self._image, broker_id, broker_epoch, change, self._policies)
                except ApiError as error:
                    refused[at] = error.code
            await self._agreement.commit(records)
            return [
                IsrAnswer(change.topic_id, change.index, refused[at])
                if at in refused
                else self._altered(broker_id, change)
                for at, change in enumerate(changes)
            ]

    def _altered(self, broker_id: int, change: IsrChange) -> IsrAnswer:
        try:
            state = partitions.altered(self._image, change.topic_id, change.index, broker_id)
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
        async with self._agreement.turn:
            self._agreement.check_active()
            every = [(topic.name, state.index) for topic, state in self._image.all_partitions()]
            answers: list[PartitionAnswer] = []
            records: list[MetadataRecord] = []
            for topic, index in every if asked is None else dict.fromkeys(asked):
                try:
                    records += partitions.elect(self._image, topic, index, kind, self._policies)
                except ApiError as error:
                    if asked is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                        continue
                    answers.append(PartitionAnswer(topic, index, error))
                else:
                    answers.append(PartitionAnswer(topic, index))
            await self._agreement.commit(records)
            return answers

    async def move_leaders_back(self) -> None:
        """Move leadership back to the preferred replicas, if too many leaders are elsewhere."""
        async with self._agreement.turn:
            self._agreement.check_active()
            records = partitions.preferred_imbalance(self._image, self._policies)
            if records:
                log.info("leadership of %d partitions moves back to the preferred replicas", len(records))
                await self._agreement.commit(records)

    async def elect_leaderless(self) -> None:
        """The previous controller may have stopped right after a setting that allows unclean elections."""
        async with self._agreement.turn:
            if self._agreement.is_active:
                await self._agreement.commit(partitions.elect_leaderless(self._image, self._policies))

    async def alter_reassignments(
        self, moves: Sequence[Reassignment], allow_factor_change: bool = True
    ) -> list[PartitionAnswer]:
        async with self._agreement.turn:
            self._agreement.check_active()
            answers: list[PartitionAnswer] = []
            records: list[MetadataRecord] = []
            seen: dict[tuple[str, int], None] = {}
            for move in moves:
                try:
                    if (move.topic, move.index) in seen:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "The partition is named twice in the request.")
                    seen[move.topic, move.index] = None
                    if move.replicas is None:
                        records += reassignment.cancel(self._image, move.topic, move.index, self._policies)
                    else:
                        records += reassignment.begin(
                            self._image,
                            move.topic,
                            move.index,
                            move.replicas,
                            self._policies,
                            allow_replication_factor_change=allow_factor_change,
                        )
                except ApiError as error:
                    answers.append(PartitionAnswer(move.topic, move.index, error))
                else:
                    answers.append(PartitionAnswer(move.topic, move.index))
            await self._agreement.commit(records)
            return answers

    def list_reassignments(self, asked: Sequence[tuple[str, int]] | None) -> list[OngoingReassignment]:
        self._agreement.check_active()
        if asked is None:
            return reassignment.ongoing(self._image)
        topics: dict[str, list[int]] = {}
        for topic, index in asked:
            topics.setdefault(topic, []).append(index)
        return reassignment.ongoing(self._image, topics)
