"""The broker's configuration for the transaction coordinator, as plain values."""

from __future__ import annotations

from typing import NamedTuple

from penstock.config.broker import BrokerConfig


class TransactionSettings(NamedTuple):
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    expiration_check_interval_ms: int = 3_600_000
    allows_two_phase_commit: bool = True

    @classmethod
    def from_config(cls, config: BrokerConfig) -> TransactionSettings:
        return cls(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            expiration_check_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            allows_two_phase_commit=config.transaction_two_phase_commit_enable,
        )
