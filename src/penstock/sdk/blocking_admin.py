"""`BlockingAdmin`: topics, groups, offsets and settings of a cluster. `Admin` calls it in threads.

Each call asks the cluster; nothing is cached. Threads may share one instance.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.model.topic_partition import TopicPartition
from penstock.sdk import answers
from penstock.sdk.cluster import (
    ClusterInfo,
    ConfigSetting,
    GroupInfo,
    GroupListing,
    OffsetChange,
    PartitionLag,
    ShiftBy,
    TopicInfo,
)
from penstock.sdk.errors import (
    BadSetting,
    ClientClosed,
    CommitFailed,
    GroupNotEmpty,
    Refused,
    TimedOut,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
)
from penstock.sdk.records import Position, checked_partitions
from penstock.sdk.settings import ClusterConnection

log = logging.getLogger(__name__)

Kind = Literal["topic", "broker", "group"]
R = TypeVar("R")

POLL_S = 0.2
RETRY_S = 0.1
LAST_TRY_S = 0.5
STALLED_S = 1.0
MOVED = frozenset(
    (
        "NOT_COORDINATOR",
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_CONTROLLER",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    )
)
"""Errors, by librdkafka's names, of a broker that is not the leader, coordinator or controller, or not ready yet."""
SOME_TOPIC = "__consumer_offsets"  # its metadata is a short answer, and no request creates it
MAX_PARTITIONS, MAX_REPLICAS = 100_000, 32_767  # librdkafka's limits
_RESOURCES: dict[Kind, ResourceType] = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "group": ResourceType.GROUP,
}


class AdminOptions(TypedDict, total=False):
    timeout_s: float
    """Timeout of one request; 30 by default."""
    client_id: str
    begin_with: str | None
    """A bootstrap server that is known to answer; the client learns the other brokers from it."""
    settings: Mapping[str, object]
    """Other settings, by librdkafka's names."""


class BlockingAdmin:
    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[AdminOptions]) -> None:
        self._timeout_s = options.get("timeout_s", 30.0)
        self._connection = ClusterConnection(
            bootstrap_servers,
            options.get("client_id", "penstock"),
            options.get("settings", {}),
            options.get("begin_with"),
        )
        try:
            self._client: AdminClient | None = AdminClient(self._connection.configuration({}))
        except (KafkaException, TypeError, ValueError) as error:
            raise self._connection.refused_setting(error, "cannot make an admin client") from error

    @property
    def bootstrap_servers(self) -> str:
        return self._connection.servers

    # -- cluster and topics ----------------------------------------------------------------------------------

    def cluster(self) -> ClusterInfo:
        found = self._ask(
            "cannot describe the cluster", lambda client, timeout: client.describe_cluster(request_timeout=timeout)
        )
        return answers.cluster(found)

    def topics(self) -> list[TopicInfo]:
        """All topics, sorted by name."""
        client = self._open()
        client.poll(0)  # connection errors since the last request
        self._connection.check()
        try:
            found = client.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            client.poll(0)
            raise self._connection.error(error, "cannot list topics", changes=False) from error
        self._connection.answered()
        return answers.listed_topics(found)

    def topic(self, name: str) -> TopicInfo:
        found = self._ask(
            f"topic {name}",
            lambda client, timeout: client.describe_topics(TopicCollection([name]), request_timeout=timeout)[name],
        )
        return answers.topic(name, found)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """None means the broker's default."""
        doing = f"cannot create topic {name}"
        settings = _texts(doing, configs)
        for what, number, most in (
            ("partitions", partitions, MAX_PARTITIONS),
            ("replication_factor", replication_factor, MAX_REPLICAS),
        ):
            if number is not None and (not isinstance(number, int) or not 0 < number <= most):
                raise BadSetting(f"{doing}: {what} must be a number from 1 to {most}, not {number!r}")
        self._change(
            doing,
            lambda client, timeout: client.create_topics(
                [NewTopic(name, partitions or -1, replication_factor or -1, config=settings)],
                request_timeout=timeout,
                operation_timeout=timeout,
            )[name],
        )

    def delete_topic(self, name: str) -> None:
        self._change(
            f"cannot delete topic {name}",
            lambda client, timeout: client.delete_topics([name], request_timeout=timeout, operation_timeout=timeout)[
                name
            ],
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Increases the number of partitions to `total`. It cannot be reduced again."""
        self._change(
            f"cannot increase topic {name} to {total} partitions",
            lambda client, timeout: client.create_partitions(
                [NewPartitions(name, total)], request_timeout=timeout, operation_timeout=timeout
            )[name],
        )

    # -- offsets ---------------------------------------------------------------------------------------------

    def offsets(
        self, partitions: Iterable[TopicPartition], at: Literal["earliest", "latest"] | datetime
    ) -> dict[TopicPartition, int]:
        """For a time: the offset of the first record at or after it, or the end offset if there is none."""
        found = self._offsets(partitions, at)
        for error in found.values():
            if not isinstance(error, int):
                raise error
        return {one: offset for one, offset in found.items() if isinstance(offset, int)}

    def _offsets(
        self, partitions: Iterable[TopicPartition], at: Literal["earliest", "latest"] | datetime
    ) -> dict[TopicPartition, int | UnknownTopic]:
        asked = checked_partitions(partitions)
        if not asked:
            return {}
        spec: Any
        if isinstance(at, datetime):
            spec = OffsetSpec.for_timestamp(int(at.timestamp() * 1000))
        elif at in ("earliest", "latest"):
            spec = OffsetSpec.earliest() if at == "earliest" else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        else:
            raise BadSetting(f"{at!r} is not a position in a log: give earliest, latest or a datetime")
        wanted = {LibrdkafkaPartition(*one): spec for one in asked}
        futures: dict[LibrdkafkaPartition, Future[Any]] = self._begin(
            "cannot read offsets",
            lambda client, timeout: client.list_offsets(wanted, request_timeout=timeout),
            self._timeout_s,
        )
        found: dict[TopicPartition, int | UnknownTopic] = {}
        for partition, future in futures.items():
            key = TopicPartition(partition.topic, partition.partition)
            doing = f"cannot read offsets of {key}"
            try:
                found[key] = self._wait(doing, future, self._timeout_s).offset
            except UnknownTopic as error:
                found[key] = error
            else:
                if found[key] == OFFSET_INVALID:  # only this partition's leader did not answer
                    raise TimedOut(f"{doing}: its leader does not answer", "TIMED_OUT")
        missing = [key for key, offset in found.items() if isinstance(offset, int) and offset < 0]
        if missing and isinstance(at, datetime):
            found.update(self._offsets(missing, "latest"))
        return found

    # -- groups ----------------------------------------------------------------------------------------------

    def groups(self) -> list[GroupListing]:
        """Asks all brokers, because each knows only the groups that it coordinates."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = self._ask(
                "cannot list groups", lambda client, timeout: client.list_consumer_groups(request_timeout=timeout)
            )
            if not found.errors:
                return answers.listed_groups(found)
            if time.monotonic() > deadline:  # an incomplete list is an error
                raise self._connection.error(found.errors[0], "cannot list groups", changes=False)
            time.sleep(RETRY_S)

    def group(self, group_id: str) -> GroupInfo:
        found = self._ask(
            f"group {group_id}",
            lambda client, timeout: client.describe_consumer_groups([group_id], request_timeout=timeout)[group_id],
        )
        group = answers.group(group_id, found)
        if group.state == answers.DEAD:
            raise UnknownGroup(f"group {group_id} does not exist", "GROUP_ID_NOT_FOUND")
        return group

    def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """The committed offsets of the group."""
        found = self._ask(
            f"cannot read the offsets of group {group_id}",
            lambda client, timeout: client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id)], request_timeout=timeout
            )[group_id],
        )
        return {
            TopicPartition(one.topic, one.partition): one.offset
            for one in found.topic_partitions
            if one.error is None and one.offset >= 0
        }

    def set_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Refused while the group has members."""
        wanted = [
            LibrdkafkaPartition(*one, offset)
            for one, offset in zip(checked_partitions(offsets), offsets.values(), strict=True)
        ]
        doing = f"cannot set offsets of group {group_id}"
        try:
            found = self._change(
                doing,
                lambda client, timeout: client.alter_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group_id, wanted)], request_timeout=timeout
                )[group_id],
            )
        except CommitFailed as error:
            raise _not_empty(doing) from error
        for one in found.topic_partitions:
            if one.error is not None:
                if one.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
                    raise _not_empty(doing)
                raise self._connection.error(one.error, f"{doing} in {one.topic}-{one.partition}")

    def delete_group(self, group_id: str) -> None:
        self._change(
            f"cannot delete group {group_id}",
            lambda client, timeout: client.delete_consumer_groups([group_id], request_timeout=timeout)[group_id],
        )

    def lag(self, group_id: str) -> list[PartitionLag]:
        """The lag of every partition with a committed offset or an assignment, sorted by topic and number.

        For partitions of a deleted topic, log offsets and lag are None.
        """
        group = self.group(group_id)
        committed = self.group_offsets(group_id)
        owners = {one: member.member_id for member in group.members for one in member.partitions}
        partitions = sorted({*committed, *owners})
        starts, ends = self._known_offsets(partitions, "earliest"), self._known_offsets(partitions, "latest")
        return [
            PartitionLag(*one, committed.get(one), starts.get(one), ends.get(one), owners.get(one))
            for one in partitions
        ]

    def _known_offsets(
        self, partitions: list[TopicPartition], at: Literal["earliest", "latest"]
    ) -> dict[TopicPartition, int]:
        """The offsets of the partitions that still exist."""
        return {one: found for one, found in self._offsets(partitions, at).items() if isinstance(found, int)}

    def reset_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], to: Position | ShiftBy, *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Returns old and new offsets. An offset outside the log is moved to the nearest end, as by Kafka's own tool.

        As with that tool, nothing is shifted if one of the partitions has no committed offset.
        """
        asked = sorted(checked_partitions(partitions))
        if not isinstance(to, int | datetime | ShiftBy) and to not in ("earliest", "latest", "committed"):
            raise BadSetting(
                f"{to!r} is not a position: give an offset, a datetime, earliest, latest, committed or ShiftBy"
            )
        try:
            group = self.group(group_id)
        except UnknownGroup:
            pass  # setting its offsets creates the group
        else:
            if group.members:
                raise GroupNotEmpty(
                    f"group {group_id} has {len(group.members)} active member{'s' * (len(group.members) > 1)}: "
                    "stop them first",
                    "NON_EMPTY_GROUP",
                )
        committed = self.group_offsets(group_id)
        homeless = [str(one) for one in asked if one not in committed] if isinstance(to, ShiftBy) else []
        if homeless:
            raise Refused(
                f"group {group_id} has committed nothing in {', '.join(homeless)}, so there is no offset to shift; "
                "nothing was changed",
                "NO_OFFSET",
            )
        starts, ends = self.offsets(asked, "earliest"), self.offsets(asked, "latest")
        times = self.offsets(asked, to) if isinstance(to, datetime) else {}

        def target(one: TopicPartition) -> int:
            match to:
                case "earliest":
                    return starts[one]
                case "latest":
                    return ends[one]
                case datetime():
                    return times[one]
                case ShiftBy():
                    return committed[one] + to.records
                case int():
                    return to
                case _:
                    return committed.get(one, starts[one])

        changes = [
            OffsetChange(*one, committed.get(one), min(max(target(one), starts[one]), ends[one])) for one in asked
        ]
        if changes and not dry_run:
            self.set_group_offsets(group_id, {TopicPartition(one.topic, one.partition): one.new for one in changes})
        return changes

    # -- settings --------------------------------------------------------------------------------------------

    def configs(self, kind: Kind, name: str) -> list[ConfigSetting]:
        self._check_resource(kind, name)
        resource = ConfigResource(_RESOURCES[kind], name)
        found = self._ask(
            f"cannot read the settings of {kind} {name}",
            lambda client, timeout: client.describe_configs([resource], request_timeout=timeout)[resource],
        )
        return answers.settings(found)

    def alter_configs(
        self, kind: Kind, name: str, *, set_: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Changes only the named settings. A deleted setting returns to its default."""
        doing = f"cannot change the settings of {kind} {name}"
        if isinstance(delete, str):
            raise BadSetting(f"{doing}: delete must be a list of names, not {delete!r}")
        wanted = _texts(doing, set_)
        self._check_resource(kind, name)
        entries = [
            *(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()),
            *(ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in delete),
        ]
        resource = ConfigResource(_RESOURCES[kind], name, incremental_configs=entries)
        self._change(
            doing,
            lambda client, timeout: client.incremental_alter_configs([resource], request_timeout=timeout)[resource],
        )

    def _check_resource(self, kind: Kind, name: str) -> None:
        """Checks the names. librdkafka sends the request to the named broker, and would wait for a broker that does not
        exist.
        """
        if kind not in _RESOURCES:
            raise BadSetting(f"there are settings of a {', a '.join(_RESOURCES)}, but not of a {kind!r}")
        if not isinstance(name, str) or not name:
            raise BadSetting(f"the name of a {kind} must be text, not {name!r}")
        if kind == "broker":
            known = [str(broker.id) for broker in self.cluster().brokers]
            if name not in known:
                raise Refused(
                    f"there is no broker {name}; the brokers are: {', '.join(known)}", "BROKER_ID_NOT_REGISTERED"
                )

    # -- asking ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> AdminClient:
        if self._client is None:
            raise ClientClosed("admin client")
        return self._client

    def _change(self, doing: str, request: Callable[[AdminClient, float], Future[Any]]) -> Any:
        return self._ask(doing, request, changes=True)

    def _ask(self, doing: str, request: Callable[[AdminClient, float], Future[Any]], *, changes: bool = False) -> Any:
        """Retries while a leader, coordinator or controller is being elected or loading. Nothing has happened then."""
        deadline = time.monotonic() + self._timeout_s
        left_s = self._timeout_s
        while True:
            try:
                return self._wait(doing, self._begin(doing, request, left_s), left_s, changes=changes)
            except Refused as error:
                left_s = deadline - time.monotonic() - RETRY_S
                if error.name not in MOVED or left_s < LAST_TRY_S:
                    raise
            time.sleep(RETRY_S)

    def _begin(self, doing: str, request: Callable[[AdminClient, float], R], timeout_s: float) -> R:
        client = self._open()
        client.poll(0)  # connection errors since the last request
        self._connection.check()
        try:
            return request(client, timeout_s)
        except (KafkaException, ValueError, TypeError) as error:
            raise self._connection.refused_setting(error, doing) from error

    def _wait(self, doing: str, future: Future[Any], timeout_s: float, *, changes: bool = False) -> Any:
        client = self._open()
        begin = time.monotonic()
        deadline = begin + timeout_s + 1  # librdkafka has its own deadline and a better error
        look_up_at = begin + STALLED_S
        while not wait([future], POLL_S).done:
            client.poll(0)  # log lines and connection errors
            now = time.monotonic()
            if now > look_up_at:
                self._look_up_controller(client)
                look_up_at = time.monotonic() + STALLED_S
            if now > deadline:
                if self._connection.is_down:
                    raise Unreachable(self._connection.servers)
                raise TimedOut(f"{doing}: no answer in time", "TIMED_OUT")
        client.poll(0)
        try:
            result = future.result()
        except KafkaException as error:
            raise self._connection.error(error, doing, changes=changes) from error
        self._connection.answered()
        return result

    def _look_up_controller(self, client: AdminClient) -> None:
        """librdkafka waits for the controller that it knows, also if it is dead, and asks for metadata every five
        minutes. Any answer with metadata names the present controller, so the request in hand goes there."""
        try:
            client.list_topics(SOME_TOPIC, timeout=STALLED_S)
        except KafkaException as error:
            log.debug("no broker named the controller: %s", error)


def _texts(doing: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    for name, value in (settings or {}).items():
        if not isinstance(value, str):
            raise BadSetting(f"{doing}: the value of {name} must be text: give {str(value)!r}, not {value!r}")
    return dict(settings or {})


def _not_empty(doing: str) -> GroupNotEmpty:
    return GroupNotEmpty(f"{doing}: the group has active members, stop them first", "NON_EMPTY_GROUP")
