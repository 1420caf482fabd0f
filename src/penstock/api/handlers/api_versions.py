"""ApiVersions (key 18), versions 0-4.

- An unknown version gets a response in v0 layout with UNSUPPORTED_VERSION and only the range of ApiVersions; clients
  retry from it. The response header is always v0.
- Produce is advertised from 0 although 0-2 are refused: librdkafka before 2.4 tests that range and silently stops
  compressing without it (KAFKA-18659).
- Features are those of the metadata; their epoch is the index up to which this broker has applied it. v3 omits features
  that may be at level 0, which clients of that time cannot read (KAFKA-17011), as in Kafka.
- APIs among brokers are not listed (`is_advertised`).
- Every listener lists the same APIs. Kafka's controller listener lists only those of a controller; here it serves all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.handler import Handler, is_advertised
from penstock.core.metadata import features
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode
from penstock.ports.channel import Part
from penstock.wire.apis import Api
from penstock.wire.codec import encode_response
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

MIN_VERSION, MAX_VERSION = 0, 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def unsupported_version(correlation_id: int) -> list[Part]:
    own = ApiVersion(api_key=Api.API_VERSIONS, min_version=MIN_VERSION, max_version=MAX_VERSION)
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    return encode_response(Api.API_VERSIONS, 0, correlation_id, response)[0]


class ApiVersionsHandler:
    api: ClassVar = Api.API_VERSIONS
    min_version: ClassVar = MIN_VERSION
    max_version: ClassVar = MAX_VERSION

    def __init__(self, image: MetadataImage, applied_index: Callable[[], int], served: Iterable[type[Handler]]) -> None:
        self._image = image
        self._applied_index = applied_index
        named = {int(handler.api): handler for handler in served if is_advertised(handler)}
        self._ranges = [
            ApiVersion(
                api_key=key,
                min_version=0 if key == Api.PRODUCE else handler.min_version,
                max_version=handler.max_version,
            )
            for key, handler in sorted(named.items())
        ]

    def handle(self, ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if ctx.version >= 3 and not all(
            _SOFTWARE.fullmatch(word) for word in (request.client_software_name, request.client_software_version)
        ):
            return self.refuse(request, ErrorCode.INVALID_REQUEST, None)
        return ApiVersionsResponse(
            api_keys=self._ranges,
            supported_features=[
                SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in features.SUPPORTED.items()
                if high > 0 and (low > 0 or ctx.version > 3)
            ],
            finalized_features_epoch=self._applied_index(),
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in features.finalized(self._image).items()
            ],
        )

    def refuse(self, request: ApiVersionsRequest, code: ErrorCode, message: str | None) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=code)
