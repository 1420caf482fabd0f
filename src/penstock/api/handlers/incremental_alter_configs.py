"""IncrementalAlterConfigs (key 44), versions 0-1.

- SET, DELETE, APPEND and SUBTRACT for topics, brokers, groups and client-metrics subscriptions; settings that are not
  named stay. Each resource succeeds or fails alone; a resource named twice in a request is refused.
- The controller makes the change. This broker first checks a change of its own settings; a change of another broker's
  settings is refused: send it to that broker. A change is in force on this broker when the response leaves.
- An unknown broker setting is refused; Kafka stores it. A broker has no loggers that could be changed.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.admin.config_changes import ConfigChangeHandler
from penstock.api.bounds import WIDE
from penstock.config.alter import Alteration
from penstock.wire.apis import Api
from penstock.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class IncrementalAlterConfigsHandler(ConfigChangeHandler[AlterConfigsResource]):
    api: ClassVar = Api.INCREMENTAL_ALTER_CONFIGS
    min_version: ClassVar = 0
    max_version: ClassVar = 1
    bounds: ClassVar = WIDE
    replaces: ClassVar = False
    request_type: ClassVar = IncrementalAlterConfigsRequest
    response_type: ClassVar = IncrementalAlterConfigsResponse
    result_type: ClassVar = AlterConfigsResourceResponse

    def _alterations(self, asked: AlterConfigsResource) -> list[Alteration]:
        return [Alteration(config.name, config.config_operation, config.value) for config in asked.configs]
