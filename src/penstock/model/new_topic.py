"""A topic to be created, as the request describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import ApiError, ErrorCode

BROKER_DEFAULT: Final = -1
"""The number of partitions or replicas comes from the broker's settings."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The replicas of each partition. If given, they determine partitions and replication factor."""
    configs: Mapping[str, str] = field(default_factory=dict)


def without_nulls(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The settings of a new topic. Raises ApiError for null: it would reset a setting, and a new topic has none yet."""
    missing = [name for name, value in configs if value is None]
    if missing:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    return {name: value for name, value in configs if value is not None}
