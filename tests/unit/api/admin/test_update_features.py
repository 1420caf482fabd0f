"""UpdateFeatures: all or nothing, with Kafka's sentence, in every version's own shape."""

from __future__ import annotations

import pytest
from controller_requests import FakeController, ask

from penstock.api.handlers.update_features import UpdateFeaturesHandler
from penstock.core.metadata.requests import FeatureUpdate, UpgradeType
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest


@pytest.mark.parametrize(("version", "named"), [(0, ["group.version"]), (1, ["group.version"]), (2, [])])
def test_results_by_feature_end_with_v1(version: int, named: list[str]) -> None:
    controller = FakeController()
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="group.version", max_version_level=1)])
    response = ask(UpdateFeaturesHandler(controller), request, version)
    assert controller.asked == (
        "update_features",
        [FeatureUpdate("group.version", 1, UpgradeType.UPGRADE)],
        False,
    )
    assert (response.error_code, response.error_message) == (0, None)
    assert [(each.feature, each.error_code) for each in response.results] == [(name, 0) for name in named]


def test_v0_asks_for_a_safe_downgrade_with_a_flag() -> None:
    controller = FakeController()
    asked = FeatureUpdateKey(feature="f", max_version_level=0, allow_downgrade=True)
    ask(UpdateFeaturesHandler(controller), UpdateFeaturesRequest(feature_updates=[asked]), 0)
    assert controller.asked[1] == [FeatureUpdate("f", 0, UpgradeType.SAFE_DOWNGRADE)]


def test_a_rehearsal_is_passed_on_as_one() -> None:
    controller = FakeController()
    asked = FeatureUpdateKey(feature="f", max_version_level=2, upgrade_type=3)
    ask(UpdateFeaturesHandler(controller), UpdateFeaturesRequest(feature_updates=[asked], validate_only=True))
    assert controller.asked == ("update_features", [FeatureUpdate("f", 2, UpgradeType.UNSAFE_DOWNGRADE)], True)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_that_fails_fails_all(version: int) -> None:
    why = "Invalid update version 99 for feature f. The controller only supports versions 0-1"
    controller = FakeController(update_features=ApiError(ErrorCode.INVALID_UPDATE_VERSION, why))
    asked = FeatureUpdateKey(feature="f", max_version_level=99)
    response = ask(UpdateFeaturesHandler(controller), UpdateFeaturesRequest(feature_updates=[asked]), version)
    assert response.error_code == 95
    assert response.error_message == (
        f"The update failed for all features since the following feature had an error: {why}"
    )
    assert response.results == []


def test_a_lost_controller_is_not_taken_for_a_feature_that_failed() -> None:
    controller = FakeController(update_features=ApiError(ErrorCode.NOT_CONTROLLER, "none"))
    response = ask(UpdateFeaturesHandler(controller), UpdateFeaturesRequest())
    assert (response.error_code, response.error_message) == (41, "none")
