"""What is configured for topics, as far as it decides who may lead. `cluster.topic_policies` knows it."""

from __future__ import annotations

from typing import Protocol


class TopicPolicies(Protocol):
    """By the name of a topic."""

    def min_isr(self, topic: str) -> int:
        """`min.insync.replicas`."""
        ...

    def unclean_ok(self, topic: str) -> bool:
        """`unclean.leader.election.enable`."""
        ...

    def is_durable(self, topic: str) -> bool:
        """What is acknowledged is on the disk, so a crash takes nothing of it."""
        ...
