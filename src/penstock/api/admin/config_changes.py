"""The common part of AlterConfigs and IncrementalAlterConfigs: everything but their message classes.

Each resource succeeds or fails alone. The broker that received the request handles everything that needs no controller.
The rest goes to the controller in one request of the same kind, and the answers are merged in the order of the client's
request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar, cast

from penstock.api.admin.config_resources import ConfigResources
from penstock.api.context import RequestContext
from penstock.api.forwarding import Forwarding
from penstock.config.alter import Alteration
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.primitives import Message

ResourceKey: TypeAlias = tuple[int, str]


class Resource(Protocol):
    """The fields shared by requests and responses."""

    resource_type: int
    resource_name: str


Asked = TypeVar("Asked", bound=Resource)


class ChangeRequest(Protocol[Asked]):
    resources: list[Asked]
    validate_only: bool


class ChangeResponse(Protocol):
    @property
    def responses(self) -> Sequence[Resource]: ...


class ConfigChangeHandler(ABC, Generic[Asked]):
    accepts_forwarded: ClassVar = True
    replaces: ClassVar[bool]
    """Whether the request replaces all settings of a resource."""
    request_type: ClassVar[Callable[..., Message]]
    response_type: ClassVar[Callable[..., Message]]
    result_type: ClassVar[Callable[..., Message]]

    def __init__(self, resources: ConfigResources, forwarding: Forwarding | None = None) -> None:
        self._resources = resources
        self._forwarding = forwarding

    @abstractmethod
    def _alterations(self, asked: Asked) -> list[Alteration]: ...

    async def handle(self, ctx: RequestContext, request: ChangeRequest[Asked]) -> Message:
        if ctx.is_forwarded:
            return await self._change(ctx, request.resources, request.validate_only)
        results = await self._settle(ctx, request.resources)
        rest = [asked for asked in request.resources if _key(asked) not in results]
        if rest:
            response = await self._through_controller(ctx, rest, request.validate_only)
            for result in cast(ChangeResponse, response).responses:
                results[_key(result)] = result
        return self.response_type(responses=[results[_key(asked)] for asked in request.resources])

    async def _settle(self, ctx: RequestContext, resources: Sequence[Asked]) -> dict[ResourceKey, object]:
        """Handle everything that needs no controller: refusals that this broker must make, and its loggers."""
        mentions = await ctx.pace.counted(_key(asked) for asked in resources)
        settled: dict[ResourceKey, object] = {}
        async for asked in ctx.pace.each(resources):
            key = _key(asked)
            try:
                if mentions[key] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if self._resources.settle_here(*key, self._alterations(asked), replace=self.replaces):
                    settled[key] = self._result(asked)
            except ApiError as error:
                settled[key] = self._result(asked, error.code, str(error))
        return settled

    async def _through_controller(self, ctx: RequestContext, resources: list[Asked], validate_only: bool) -> Message:
        if self._forwarding is None:
            return await self._change(ctx, resources, validate_only)
        narrowed = self.request_type(resources=resources, validate_only=validate_only)
        return await self._forwarding.ask(ctx, narrowed, lambda: self._change(ctx, resources, validate_only))

    async def _change(self, ctx: RequestContext, resources: Sequence[Asked], validate_only: bool) -> Message:
        change = self._resources.replace if self.replaces else self._resources.alter
        results: list[Message] = []
        async for asked in ctx.pace.each(resources):
            try:
                await change(*_key(asked), self._alterations(asked), validate_only=validate_only)
                results.append(self._result(asked))
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    raise  # forwarded to the controller
                results.append(self._result(asked, error.code, str(error)))
        return self.response_type(responses=results)

    def refuse(self, request: ChangeRequest[Asked], code: ErrorCode, message: str | None) -> Message:
        return self.response_type(responses=[self._result(asked, code, message) for asked in request.resources])

    def _result(self, asked: Asked, code: ErrorCode = ErrorCode.NONE, message: str | None = None) -> Message:
        return self.result_type(
            error_code=code,
            error_message=message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )


def _key(resource: Resource) -> ResourceKey:
    return resource.resource_type, resource.resource_name
