"""Reading as a member of a group: consumer instances, as in Confluent's v2 API.

POST   /consumers/{group}                                  create
DELETE /consumers/{group}/instances/{instance}             leave and delete
POST, GET, DELETE .../subscription                         topics, shared with the group
POST, GET         .../assignments                          partitions by hand
POST   .../positions, .../positions/beginning, .../positions/end
GET    .../records                                         long poll
POST, GET         .../offsets                              commit, and committed offsets

GET, POST /groups/{group}/offsets                          committed offsets; POST needs a group without members
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.gateway.http import shapes
from penstock.gateway.http.errors import Refused
from penstock.gateway.http.formats import BY_NAME, V2, Format, of_content_type, show_records
from penstock.gateway.http.instances import Instance, Instances, InstanceSettings
from penstock.gateway.http.operations import (
    JSON,
    Operation,
    Proxy,
    Query,
    answer,
    attended,
    decode,
    no_content,
    read_body,
)
from penstock.gateway.http.v2 import v2_type
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.aio.fetching import MAX_BYTES
from penstock.wire_client.aio.groups import commit, committed
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS

MAX_TIMEOUT_MS = 60_000
DEFAULT_TIMEOUT_MS = 1000
BODY_TYPES = (V2, JSON)
TIMEOUT = Query("timeout", "How long to wait for records, in ms.", 0, MAX_TIMEOUT_MS)
MAX_BYTES_QUERY = Query("max_bytes", "About how many bytes of records to read.", 1, 16 << 20)
# With true, Confluent's proxy answers before the commit is done. Here the answer always follows the commit.
ASYNC = Query("async", "Accepted for compatibility: the answer always follows the commit.", choices=("true", "false"))
_GROUP = re.compile(r"[^/\x00-\x1f\x7f]{1,249}")
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")


def group_name(request: Request) -> str:
    name: str = request.path_params["group"]
    if not _GROUP.fullmatch(name):
        raise Refused(42205, "a group's name must have at most 249 characters and no control characters")
    return name


def base_url(request: Request) -> str:
    """The address that the caller used. An invalid Host header is not repeated."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        address, port = request.scope.get("server") or ("localhost", 8082)
        host = f"{address}:{port}"
    return f"http://{host}"


async def json_body(proxy: Proxy, request: Request) -> bytes:
    """The body. Only a body needs a content type."""
    given = request.headers.get("content-type", "")
    if given:
        of_content_type(given)
    body = await read_body(proxy, request)
    if body:
        of_content_type(given)
    return body


def setting(value: str | int | None, default: int) -> int:
    return default if value is None else int(value)


class Consumers:
    """The endpoints, and the instances that they share."""

    def __init__(self) -> None:
        self.instances = Instances()

    # -- life -------------------------------------------------------------------------------

    async def create(self, proxy: Proxy, request: Request) -> Response:
        body = await json_body(proxy, request)
        group = group_name(request)
        given = decode(body or b"{}", shapes.CreateInstance)
        timeout_ms = setting(given.consumer_request_timeout_ms, DEFAULT_TIMEOUT_MS)
        name = self.instances.free_name(group) if given.name is None else given.name
        settings = InstanceSettings(
            BY_NAME[given.format],
            reset=given.auto_offset_reset,
            auto_commit=given.auto_commit_enable in ("true", True),
            min_bytes=max(1, setting(given.fetch_min_bytes, 1)),
            timeout_ms=timeout_ms,
        )
        self.instances.add(Instance(proxy.cluster, group, name, settings))
        uri = f"{base_url(request)}/consumers/{quote(group, safe='')}/instances/{name}"
        return answer(shapes.InstanceCreated(name, uri), media_type=v2_type(request))

    async def delete(self, proxy: Proxy, request: Request) -> Response:
        await self.instances.remove(group_name(request), request.path_params["instance"])
        return no_content()

    async def _with(self, request: Request, work: Callable[[Instance], Awaitable[Response]]) -> Response:
        """Serves the requests to one instance one at a time."""
        instance = self.instances.find(group_name(request), request.path_params["instance"])
        async with instance.lock:
            return await work(instance)

    # -- subscription and assignment ----------------------------------------------------------------------

    async def subscribe(self, proxy: Proxy, request: Request) -> Response:
        given = decode(await json_body(proxy, request), shapes.Subscription)

        async def work(instance: Instance) -> Response:
            topics = list(given.topics)
            if given.topic_pattern is not None:
                topics += await matching_topics(proxy, given.topic_pattern)
            if not topics:
                raise Refused(42206, "give topics, or a topic_pattern that matches at least one")
            await instance.subscribe(topics)
            return no_content()

        return await self._with(request, work)

    async def subscription(self, proxy: Proxy, request: Request) -> Response:
        instance = self.instances.find(group_name(request), request.path_params["instance"])
        return answer(shapes.SubscriptionShape(list(instance.topics)), media_type=v2_type(request))

    async def unsubscribe(self, proxy: Proxy, request: Request) -> Response:
        async def work(instance: Instance) -> Response:
            await instance.unsubscribe()
            return no_content()

        return await self._with(request, work)

    async def assign(self, proxy: Proxy, request: Request) -> Response:
        given = decode(await json_body(proxy, request), shapes.Assignment)

        async def work(instance: Instance) -> Response:
            await refuse_unknown(proxy, references(given))
            instance.assign(references(given))
            return no_content()

        return await self._with(request, work)

    async def assignment(self, proxy: Proxy, request: Request) -> Response:
        instance = self.instances.find(group_name(request), request.path_params["instance"])
        partitions = [shapes.PartitionRef(key.topic, key.partition) for key in instance.assignment]
        return answer(shapes.Assignment(partitions), media_type=v2_type(request))

    async def seek(self, proxy: Proxy, request: Request) -> Response:
        given = decode(await json_body(proxy, request), shapes.Offsets)

        async def work(instance: Instance) -> Response:
            instance.seek({TopicPartition(entry.topic, entry.partition): entry.offset for entry in given.offsets})
            return no_content()

        return await self._with(request, work)

    async def seek_to_beginning(self, proxy: Proxy, request: Request) -> Response:
        return await self._seek_to(proxy, request, EARLIEST_MS)

    async def seek_to_end(self, proxy: Proxy, request: Request) -> Response:
        return await self._seek_to(proxy, request, LATEST_MS)

    async def _seek_to(self, proxy: Proxy, request: Request, timestamp_ms: int) -> Response:
        given = decode(await json_body(proxy, request), shapes.Assignment)

        async def work(instance: Instance) -> Response:
            await instance.seek_to_end(references(given), timestamp_ms)
            return no_content()

        return await self._with(request, work)

    # -- records and offsets ----------------------------------------------------------------

    async def records(self, proxy: Proxy, request: Request) -> Response:
        timeout_ms = TIMEOUT.read(request)
        max_bytes = MAX_BYTES_QUERY.read(request) or MAX_BYTES

        async def work(instance: Instance) -> Response:
            found = await instance.read(instance.settings.timeout_ms if timeout_ms is None else timeout_ms, max_bytes)
            shown = [
                entry
                for partition, fetched in found.items()
                for entry in show_records(partition, fetched.records, instance.settings.kind)
            ]
            response = answer(shown, media_type=instance.settings.kind.value)
            if await request.is_disconnected():
                raise ClientDisconnect
            if request.method != "HEAD":
                instance.hand_out(found)
            return response

        # A caller that hung up must not delay its next request, and must not lose the records.
        return await attended(proxy, request, self._with(request, work))

    async def commit(self, proxy: Proxy, request: Request) -> Response:
        """As in Confluent's v2 API, the caller gives the offset of the last record read: offset + 1 is committed."""
        ASYNC.choose(request)
        body = await json_body(proxy, request)
        given = decode(body, shapes.Offsets) if body.strip() else None

        async def work(instance: Instance) -> Response:
            done = await instance.commit(None if given is None else wanted_offsets(given, after=1))
            return answer(show_offsets(done), media_type=v2_type(request))

        return await self._with(request, work)

    async def committed(self, proxy: Proxy, request: Request) -> Response:
        """Confluent's clients send the partitions in the body of a GET. Without a body, the assigned partitions are
        used.
        """
        body = await json_body(proxy, request)
        given = decode(body, shapes.Assignment) if body.strip() else None

        async def work(instance: Instance) -> Response:
            wanted = instance.assignment if given is None else references(given)
            return answer(show_offsets(await instance.committed(wanted)), media_type=v2_type(request))

        return await self._with(request, work)


def references(given: shapes.Assignment) -> list[TopicPartition]:
    return [TopicPartition(entry.topic, entry.partition) for entry in given.partitions]


def wanted_offsets(given: shapes.Offsets, after: int = 0) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(entry.topic, entry.partition): OffsetAndMetadata(entry.offset + after, entry.metadata or "")
        for entry in given.offsets
    }


def show_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> shapes.CommittedOffsets:
    return shapes.CommittedOffsets(
        [
            shapes.CommittedOffset(key.topic, key.partition, entry.offset, entry.metadata)
            for key, entry in sorted(offsets.items())
        ]
    )


async def refuse_unknown(proxy: Proxy, partitions: Iterable[TopicPartition]) -> None:
    """Raises Refused(422) if the body names a partition that does not exist: 404 would refer to the path."""
    for partition in partitions:
        try:
            await proxy.cluster.leader(*partition)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise Refused(42201, str(error)) from error


async def matching_topics(proxy: Proxy, pattern: str) -> list[str]:
    """The topics that match now. Only *, ? and . have a meaning: a caller's regular expression is never run."""
    if len(pattern) > 249:
        raise Refused(422, "a topic_pattern must have at most 249 characters")
    text = re.escape(pattern.removeprefix("^").removesuffix("$"))
    expression = re.compile(text.replace(r"\.\*", ".*").replace(r"\*", ".*").replace(r"\?", "."))
    topics = (await proxy.cluster.describe()).topics
    return [topic.name for topic in topics if not topic.is_internal and expression.fullmatch(topic.name)]


# -- a group without members ------------------------------------------------------------------


async def get_group_offsets(proxy: Proxy, request: Request) -> Response:
    return answer(show_offsets(await committed(proxy.cluster, group_name(request))))


async def set_group_offsets(proxy: Proxy, request: Request) -> Response:
    given = decode(await json_body(proxy, request), shapes.Offsets)
    group = group_name(request)
    offsets = wanted_offsets(given)
    await refuse_unknown(proxy, offsets)
    if offsets:
        await commit(proxy.cluster, group, offsets)
    return answer(show_offsets(offsets))


INSTANCE = "/consumers/{group}/instances/{instance}"
CHANGE_REFUSALS = (400, 404, 408, 409, 413, 415, 422)


def operations(consumers: Consumers) -> tuple[Operation, ...]:
    tag = "Consumers"
    types = (JSON, *(kind.value for kind in Format if kind is not Format.PLAIN))
    return (
        Operation(
            "POST",
            "/consumers/{group}",
            "createInstance",
            "Create a consumer instance in a group.",
            tag,
            consumers.create,
            {200: shapes.InstanceCreated},
            body=shapes.CreateInstance,
            body_types=BODY_TYPES,
            body_required=False,
            refusals=(400, 408, 409, 413, 415, 422, 429),
        ),
        Operation(
            "DELETE",
            INSTANCE,
            "deleteInstance",
            "Leave the group and delete the instance.",
            tag,
            consumers.delete,
            {204: None},
            refusals=(404, 409, 422),
        ),
        Operation(
            "POST",
            f"{INSTANCE}/subscription",
            "subscribe",
            "Subscribe to topics as a member of the group.",
            tag,
            consumers.subscribe,
            {204: None},
            body=shapes.Subscription,
            body_types=BODY_TYPES,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "GET",
            f"{INSTANCE}/subscription",
            "getSubscription",
            "Topics of the instance's subscription.",
            tag,
            consumers.subscription,
            {200: shapes.SubscriptionShape},
            refusals=(404, 422),
        ),
        Operation(
            "DELETE",
            f"{INSTANCE}/subscription",
            "unsubscribe",
            "Unsubscribe from all topics.",
            tag,
            consumers.unsubscribe,
            {204: None},
            refusals=(404, 409, 422),
        ),
        Operation(
            "POST",
            f"{INSTANCE}/assignments",
            "assign",
            "Assign partitions to the instance, without the group.",
            tag,
            consumers.assign,
            {204: None},
            body=shapes.Assignment,
            body_types=BODY_TYPES,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "GET",
            f"{INSTANCE}/assignments",
            "getAssignment",
            "Partitions assigned to the instance.",
            tag,
            consumers.assignment,
            {200: shapes.Assignment},
            refusals=(404, 422),
        ),
        Operation(
            "POST",
            f"{INSTANCE}/positions",
            "seek",
            "Seek to offsets.",
            tag,
            consumers.seek,
            {204: None},
            body=shapes.Offsets,
            body_types=BODY_TYPES,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "POST",
            f"{INSTANCE}/positions/beginning",
            "seekToBeginning",
            "Seek to the first offset.",
            tag,
            consumers.seek_to_beginning,
            {204: None},
            body=shapes.Assignment,
            body_types=BODY_TYPES,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "POST",
            f"{INSTANCE}/positions/end",
            "seekToEnd",
            "Seek to the end.",
            tag,
            consumers.seek_to_end,
            {204: None},
            body=shapes.Assignment,
            body_types=BODY_TYPES,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "GET",
            f"{INSTANCE}/records",
            "readAsMember",
            "Read records of the assigned partitions, and wait if there are none.",
            tag,
            consumers.records,
            {200: list[shapes.ConsumedRecord]},
            query=(TIMEOUT, MAX_BYTES_QUERY),
            answer_types=types,
            refusals=(400, 404, 409, 416, 422),
        ),
        Operation(
            "POST",
            f"{INSTANCE}/offsets",
            "commit",
            "Commit after these offsets. Without a body, commit all records read.",
            tag,
            consumers.commit,
            {200: shapes.CommittedOffsets},
            query=(ASYNC,),
            body=shapes.Offsets,
            body_types=BODY_TYPES,
            body_required=False,
            refusals=CHANGE_REFUSALS,
        ),
        Operation(
            "GET",
            f"{INSTANCE}/offsets",
            "getCommitted",
            "Committed offsets of the assigned partitions.",
            tag,
            consumers.committed,
            {200: shapes.CommittedOffsets},
            refusals=(400, 404, 408, 413, 415, 422),
        ),
        Operation(
            "GET",
            "/groups/{group}/offsets",
            "getGroupOffsets",
            "All committed offsets of a group.",
            "Groups",
            get_group_offsets,
            {200: shapes.CommittedOffsets},
            refusals=(422,),
        ),
        Operation(
            "POST",
            "/groups/{group}/offsets",
            "setGroupOffsets",
            "Commit offsets for a group without members.",
            "Groups",
            set_group_offsets,
            {200: shapes.CommittedOffsets},
            body=shapes.Offsets,
            refusals=CHANGE_REFUSALS,
        ),
    )
