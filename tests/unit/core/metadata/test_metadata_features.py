"""Feature levels: UpdateFeatures' rules."""

from __future__ import annotations

import pytest
from small_cluster import FixedPolicies, SmallCluster

from penstock.core.metadata import brokers, features
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import FeatureChanged
from penstock.core.metadata.requests import FeatureUpdate, Registration, UpgradeType
from penstock.model.errors import ApiError, ErrorCode

WIDER = {**features.SUPPORTED, "group.version": (0, 3), features.METADATA_VERSION: (24, 27)}
UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


def test_what_is_finalized_from_the_start() -> None:
    levels = features.finalized(MetadataImage())
    assert levels[features.METADATA_VERSION] == 25
    assert levels[features.TRANSACTION_VERSION] == 2
    assert all(low <= levels.get(name, 0) <= high for name, (low, high) in features.SUPPORTED.items())


def test_a_level_is_raised_lowered_and_switched_off() -> None:
    image = MetadataImage()
    for update, level in (
        (FeatureUpdate("group.version", 2, UPGRADE), 2),
        (FeatureUpdate("group.version", 1, SAFE), 1),
        (FeatureUpdate("group.version", 0, UNSAFE), None),
    ):
        [record] = features.update(image, [update], WIDER)
        assert record == FeatureChanged("group.version", update.level)
        image.replay(record)
        assert features.finalized(image).get("group.version") == level
    copy = MetadataImage()
    for record in image.snapshot_records():
        copy.replay(record)
    assert features.finalized(copy) == features.finalized(image)


def test_the_level_it_has_changes_nothing() -> None:
    assert features.update(MetadataImage(), [FeatureUpdate(features.METADATA_VERSION, 25, UPGRADE)]) == []


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        (FeatureUpdate("group.version", 4, UPGRADE), "The controller only supports versions 0-3"),
        (FeatureUpdate("kraft.version", 0, SAFE), "The controller only supports versions 1"),
        (FeatureUpdate("transaction.version", 3, UPGRADE), "The controller only supports versions 0-2"),
        (FeatureUpdate("transaction.version", 1, UPGRADE), "Can't downgrade the version of this feature without"),
        (FeatureUpdate("no.such.version", 0, UPGRADE), "The controller does not support this feature."),
        (FeatureUpdate("group.version", -1, SAFE), "A feature version cannot be less than 0."),
        (FeatureUpdate("group.version", 0, UPGRADE), "Can't downgrade the version of this feature without"),
        (FeatureUpdate("group.version", 2, SAFE), "Can't downgrade to a newer version."),
        (FeatureUpdate("group.version", 2, 0), "The controller does not support the given upgrade type."),
        (FeatureUpdate(features.METADATA_VERSION, 24, SAFE), "Refusing to perform the requested downgrade"),
        (FeatureUpdate(features.METADATA_VERSION, 24, UNSAFE), "Unsafe metadata downgrade is not supported"),
    ],
)
def test_updates_that_are_refused(update: FeatureUpdate, sentence: str) -> None:
    good = FeatureUpdate("group.version", 3, UPGRADE)
    with pytest.raises(ApiError) as refused:
        features.update(MetadataImage(), [good, update] if update.name != good.name else [update], WIDER)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert f"Invalid update version {update.level} for feature {update.name}. {sentence}" in str(refused.value)


def test_every_broker_must_know_the_level() -> None:
    cluster = SmallCluster(1)
    cluster.image.brokers[1].features["group.version"] = (0, 2)
    features.update(cluster.image, [FeatureUpdate("group.version", 2, UPGRADE)], WIDER)
    with pytest.raises(ApiError, match="Broker 1 only supports versions 0-2"):
        features.update(cluster.image, [FeatureUpdate("group.version", 3, UPGRADE)], WIDER)


def test_a_broker_that_does_not_know_a_finalized_level_stays_out() -> None:
    image = MetadataImage()

    def register(offered: dict[str, tuple[int, int]]) -> None:
        brokers.register(
            image, Registration(1, "", bytes(16), {}, features=offered), FixedPolicies(durable=True), is_clean=True
        )

    register({})
    register(dict(features.SUPPORTED))
    with pytest.raises(ApiError, match=r"finalized version 25 of metadata\.version") as refused:
        register({**features.SUPPORTED, features.METADATA_VERSION: (7, 24)})
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
