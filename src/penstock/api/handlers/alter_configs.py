"""AlterConfigs (key 33), versions 0-2: the older call, which replaces all settings of a resource.

- Settings that are not named go back to their defaults. Each resource succeeds or fails alone; a resource named twice
  in a request is refused (Kafka 4.3.1 never responds to that).
- The controller makes the change, as with IncrementalAlterConfigs.
- An unknown broker setting is refused; Kafka stores it.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.admin.config_changes import ConfigChangeHandler
from penstock.api.bounds import WIDE
from penstock.config.alter import Alteration, Operation
from penstock.wire.apis import Api
from penstock.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


class AlterConfigsHandler(ConfigChangeHandler[AlterConfigsResource]):
    api: ClassVar = Api.ALTER_CONFIGS
    min_version: ClassVar = 0
    max_version: ClassVar = 2
    bounds: ClassVar = WIDE
    replaces: ClassVar = True
    request_type: ClassVar = AlterConfigsRequest
    response_type: ClassVar = AlterConfigsResponse
    result_type: ClassVar = AlterConfigsResourceResponse

    def _alterations(self, asked: AlterConfigsResource) -> list[Alteration]:
        return [Alteration(config.name, Operation.SET, config.value) for config in asked.configs]
