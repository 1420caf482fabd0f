"""Feature levels of the cluster: supported levels, finalized levels, permitted changes.

A record finalizes a level; without one the bootstrap default applies. One invalid update refuses the whole request
(UpdateFeatures). Must not know: what a level enables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import FeatureChanged, MetadataRecord
from penstock.core.metadata.requests import FeatureUpdate, UpgradeType
from penstock.model.errors import ApiError, ErrorCode

METADATA_VERSION: Final = "metadata.version"
GROUP_VERSION: Final = "group.version"
"""1: the consumer group protocol of KIP-848 is enabled."""
TRANSACTION_VERSION: Final = "transaction.version"
"""2: the epoch of a producer rises at each end of a transaction (KIP-890)."""

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    "eligible.leader.replicas.version": (1, 1),
    GROUP_VERSION: (0, 1),
    "kraft.version": (1, 1),
    METADATA_VERSION: (25, 25),  # 4.0-IV3
    TRANSACTION_VERSION: (0, 2),
}
"""Lowest and highest level this software supports, with Kafka's names and numbers."""

BOOTSTRAP: Final[Mapping[str, int]] = {
    "eligible.leader.replicas.version": 1,
    GROUP_VERSION: 1,
    "kraft.version": 1,
    METADATA_VERSION: 25,
    TRANSACTION_VERSION: 2,
}
"""Levels without a record. Fixed: newer software must not raise a level merely by starting."""


def finalized(image: MetadataImage) -> dict[str, int]:
    """Finalized levels by name, without levels of 0."""
    levels = {**BOOTSTRAP, **image.features}
    return {name: levels[name] for name in sorted(levels) if levels[name] > 0}


def level_of(image: MetadataImage, name: str) -> int:
    """The finalized level; 0 if the feature is off or unknown."""
    return image.features.get(name, BOOTSTRAP.get(name, 0))


def check_broker(image: MetadataImage, offered: Mapping[str, tuple[int, int]]) -> None:
    """Raise an error unless a broker with these levels may join. A broker that reports none may."""
    if not offered:
        return
    for name, level in finalized(image).items():
        low, high = offered.get(name, (0, 0))
        if not low <= level <= high:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )


def update(
    image: MetadataImage, updates: Sequence[FeatureUpdate], supported: Mapping[str, tuple[int, int]] = SUPPORTED
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    levels = {**BOOTSTRAP, **image.features}
    for each in updates:
        current = levels.get(each.name, 0)
        reason = _refusal(image, each, current, supported)
        if reason is not None:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {each.level} for feature {each.name}. {reason}",
            )
        if each.level != current:
            levels[each.name] = each.level
            records.append(FeatureChanged(each.name, each.level))
    return records


def _refusal(
    image: MetadataImage, update: FeatureUpdate, current: int, supported: Mapping[str, tuple[int, int]]
) -> str | None:
    if update.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if update.name not in supported:
        return "The controller does not support this feature."
    reason = _outside(update.level, "The controller", supported[update.name])
    for broker in image.brokers.values():
        if reason is None and broker.features:
            reason = _outside(update.level, f"Broker {broker.broker_id}", broker.features.get(update.name, (0, 0)))
    if reason is not None:
        return reason
    is_upgrade = update.upgrade_type == UpgradeType.UPGRADE
    if update.level < current and is_upgrade:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and not is_upgrade:
        return "Can't downgrade to a newer version."
    if update.level < current and update.name == METADATA_VERSION:
        if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE:
            return "Unsafe metadata downgrade is not supported in this version."
        return "Refusing to perform the requested downgrade because it might delete metadata information."
    return None


def _outside(level: int, who: str, levels: tuple[int, int]) -> str | None:
    low, high = levels
    if low <= level <= high:
        return None
    if high == 0:
        return f"{who} does not support this feature."
    return f"{who} only supports versions {low if low == high else f'{low}-{high}'}"
