"""The topic settings that decide which replica may lead. `cluster.topic_policies` implements it."""

from __future__ import annotations

from typing import Protocol


class TopicPolicies(Protocol):
    """Lookups by topic name."""

    def min_isr(self, topic: str) -> int:
        """`min.insync.replicas`."""
        ...

    def unclean_ok(self, topic: str) -> bool:
        """`unclean.leader.election.enable`."""
        ...

    def is_durable(self, topic: str) -> bool:
        """Acknowledged records are on disk, so a crash loses none of them."""
        ...
