"""Settings of the group coordinator, as plain values."""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.broker import BrokerConfig


class GroupSettings(NamedTuple):
    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    new_member_join_timeout_ms: int = 300_000
    """Time after which a new member that waits for its first generation is removed. Fixed in Kafka too."""
    settle_ms: int = 0
    """Once all members have joined, a rebalance waits until no member has come or gone for this long."""
    heartbeat_hold_ms: int = 3_000
    """Maximum time a heartbeat of a stable group is parked; 0 answers at once."""
    offset_metadata_max_bytes: int = 4_096
    offsets_commit_timeout_ms: int = 5_000
    """Maximum time a reply waits for the replicas."""
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000

    @classmethod
    def from_config(cls, config: BrokerConfig) -> GroupSettings:
        return cls(
            initial_rebalance_delay_ms=max(config.group_initial_rebalance_delay_ms, 0),
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            settle_ms=config.penstock_group_rebalance_settle_ms,
            heartbeat_hold_ms=config.penstock_group_heartbeat_hold_ms,
            offsets_commit_timeout_ms=config.offsets_commit_timeout_ms,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )
