"""UpdateFeatures (key 57), versions 0-2: finalized levels of features, all of a request or none.

- `allow_downgrade` in v0 is the safe downgrade of later versions' upgrade types.
- v0 and v1 repeat the outcome feature by feature.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import BrokerController
from penstock.core.metadata.requests import FeatureUpdate, UpgradeType
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class UpdateFeaturesHandler:
    api: ClassVar = Api.UPDATE_FEATURES
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    is_for_controller: ClassVar = True

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    async def handle(self, ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        updates = [
            FeatureUpdate(asked.feature, asked.max_version_level, _upgrade_type(asked))
            for asked in request.feature_updates
        ]
        try:
            await self._controller.update_features(updates, request.validate_only)
        except ApiError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise
            # The results of v0 and v1 are left out, as in Kafka: clients apply the error to every feature.
            return UpdateFeaturesResponse(
                error_code=error.code,
                error_message=f"The update failed for all features since the following feature had an error: {error}",
            )
        return UpdateFeaturesResponse(
            error_message=None,
            results=[
                UpdatableFeatureResult(feature=asked.feature, error_message=None) for asked in request.feature_updates
            ],
        )

    def refuse(self, request: UpdateFeaturesRequest, code: ErrorCode, message: str | None) -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(error_code=code, error_message=message)


def _upgrade_type(asked: FeatureUpdateKey) -> int:
    return int(UpgradeType.SAFE_DOWNGRADE) if asked.allow_downgrade else asked.upgrade_type
