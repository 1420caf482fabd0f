"""The options of the source: the names of Spark's Kafka options, validated once, as one frozen value.

Names are case-insensitive. An unknown option is refused by name. A Kafka consumer setting without an effect here is
accepted, so that existing queries need to change only their format name. Must not know: clusters, offsets.

Beyond Spark's own: `startingOffsets=group`, `groupId`, `maxBytesPerTrigger`, and a default for
`kafka.bootstrap.servers`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.cluster import (
    OF_ANY_CLIENT_WITHOUT_EFFECT,
    ClusterOptions,
    cluster_options,
)
from penstock.spark.options.known import FROM_SPARK, InvalidOption, KnownOptions, to_flag
from penstock.spark.source.positions import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTimestamps,
    CommittedOffsets,
    Earliest,
    Latest,
    Position,
    Subscription,
    assigned_of,
    at_offsets,
    at_timestamp,
    at_timestamps,
    pattern_of,
    topics_of,
)
from penstock.spark.source.value_options import VALUE_OPTIONS, ValueOptions, value_options

logger = logging.getLogger(__name__)

Numbers = Mapping[TopicPartition, int]

GROUP_ID_PREFIX = "spark-penstock"
FETCH_MAX_BYTES = 8 << 20

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
OTHERS = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "kafkaConsumer.pollTimeoutMs",
    "groupIdPrefix",
    "groupId",
    "filterPushdown",
    *VALUE_OPTIONS,
)
KNOWN = {name.lower(): name for name in (*SUBSCRIPTIONS, *STREAM_ONLY, *BATCH_ONLY, *OTHERS)}
OF_TABLES = "for a catalog table give the options by WITH (...): Spark does not pass the table's own options"
# Options of the sink: one set of options can serve both.
OF_THE_SINK = frozenset(("topic", "deliveryguarantee"))
SETTINGS = frozenset(
    ["bootstrap.servers", "client.id", "fetch.max.bytes", "group.id", "isolation.level", "max.partition.fetch.bytes"]
)
REFUSED_SETTINGS = {
    "auto.offset.reset": "use the option 'startingOffsets': a query resumes from its checkpoint, not from a group",
    "key.deserializer": "keys are binary: decode them with DataFrame operations",
    "value.deserializer": "values are binary: decode them with DataFrame operations",
    "enable.auto.commit": "offsets are committed to the group after each batch",
    "interceptor.classes": "there is no Java in the reader",
}
# Settings of Kafka's consumer.
WITHOUT_EFFECT = OF_ANY_CLIENT_WITHOUT_EFFECT | frozenset(
    [
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "request.timeout.ms",
        "retry.backoff.ms",
        "session.timeout.ms",
    ]
)
OF_THE_SOURCE = KnownOptions(
    of="source",
    client="consumer",
    options=tuple(sorted(KNOWN.values())),
    passed_over=FROM_SPARK | OF_THE_SINK,
    settings=SETTINGS,
    without_effect=WITHOUT_EFFECT,
    refused=REFUSED_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch. None: no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GroupOptions:
    group_id: str | None = None
    """The group that shows the query's progress. None: a generated name."""
    prefix: str = GROUP_ID_PREFIX
    start_from: str | None = None
    """The group of `startingOffsets=group`. The query commits to it only if it is also `group_id`."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    cluster: ClusterOptions
    subscription: Subscription
    starting: Position
    ending: Position
    group: GroupOptions = field(default_factory=GroupOptions)
    limits: TriggerLimits = field(default_factory=TriggerLimits)
    latest_when_no_match: bool = False
    """Start at the end if the starting timestamp is later than every record; otherwise that is an error."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    read_committed: bool = False
    offset_retries: int = 3
    offset_retry_ms: int = 10
    metadata_max_age_ms: int = 1000
    poll_timeout_s: float = 120.0
    fetch_max_bytes: int = FETCH_MAX_BYTES
    takes_filters: bool = False
    """Whether conditions limit what is read: see `pushdown`."""
    values: ValueOptions | None = None
    """None: values stay binary."""

    @classmethod
    def for_stream(cls, given: Mapping[str, str]) -> SourceOptions:
        return _parse(_Given(given), is_stream=True)

    @classmethod
    def for_batch(cls, given: Mapping[str, str]) -> SourceOptions:
        return _parse(_Given(given), is_stream=False)


class _Given:
    """The given options, accessed by their documented names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.texts = {name.lower(): text for name, text in given.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self.texts

    def text(self, name: str, default: str = "") -> str:
        return self.texts.get(name.lower(), default)

    def flag(self, name: str, default: bool) -> bool:
        return to_flag(name, self.text(name, str(default)))

    def number(self, name: str, lowest: int = 1) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name).strip()
        try:
            number = int(text)
        except ValueError:
            raise InvalidOption(f"option '{name}' is '{text}': give a whole number") from None
        if number < lowest:
            raise InvalidOption(f"option '{name}' is {number}: it must be at least {lowest}")
        return number


def _parse(given: _Given, *, is_stream: bool) -> SourceOptions:
    OF_THE_SOURCE.refuse_others(given.texts)
    if is_stream:
        for name in BATCH_ONLY:
            if given.has(name):
                raise InvalidOption(f"option '{name}' is for batch queries: a streaming query has no end")
    else:
        for name in STREAM_ONLY:
            if given.has(name):
                logger.warning("option '%s' is ignored in batch queries", name)
    starting = _position(given, "starting", Latest() if is_stream else Earliest())
    ending = _position(given, "ending", Latest())
    group = _group(given)
    if isinstance(starting, CommittedOffsets) and group.start_from is None:
        raise InvalidOption("option 'startingOffsets' is 'group': name the group with the option 'kafka.group.id'")
    if not is_stream:
        _check_range(starting, ending)
    retries, retry_ms = given.number("fetchOffset.numRetries", 0), given.number("fetchOffset.retryIntervalMs", 0)
    metadata_ms = given.number("partition.metadata.cache.ttl.ms", -1)
    poll_ms = given.number("kafkaConsumer.pollTimeoutMs")
    return SourceOptions(
        cluster=cluster_options(given.texts),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        group=group,
        limits=_limits(given),
        latest_when_no_match=_latest_when_no_match(given),
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        read_committed=_read_committed(given),
        offset_retries=3 if retries is None else retries,
        offset_retry_ms=10 if retry_ms is None else retry_ms,
        metadata_max_age_ms=1000 if metadata_ms is None else max(metadata_ms, 0),
        poll_timeout_s=120.0 if poll_ms is None else poll_ms / 1000,
        fetch_max_bytes=_fetch_max_bytes(given),
        takes_filters=given.flag("filterPushdown", False),
        values=value_options(given.texts),
    )


def _subscription(given: _Given) -> Subscription:
    named = [name for name in SUBSCRIPTIONS if given.has(name)]
    if len(named) != 1:
        found = f"{' and '.join(named)} are given" if named else f"none is given; {OF_TABLES}"
        raise InvalidOption(f"give exactly one of the options {', '.join(SUBSCRIPTIONS)}: {found}")
    text = given.text(named[0])
    if named[0] == "subscribe":
        return topics_of(text)
    return pattern_of(text) if named[0] == "subscribePattern" else assigned_of(text)


def _position(given: _Given, edge: str, default: Position) -> Position:
    """The position by the first given option, in Spark's order."""
    if given.has(f"{edge}Timestamp"):
        return at_timestamp(f"{edge}Timestamp", given.text(f"{edge}Timestamp"))
    if given.has(f"{edge}OffsetsByTimestamp"):
        return at_timestamps(f"{edge}OffsetsByTimestamp", given.text(f"{edge}OffsetsByTimestamp"))
    if given.has(f"{edge}Offsets"):
        return at_offsets(f"{edge}Offsets", given.text(f"{edge}Offsets"))
    return default


def _check_range(starting: Position, ending: Position) -> None:
    if isinstance(starting, Latest):
        raise InvalidOption("option 'startingOffsets' cannot be latest in batch queries")
    if isinstance(ending, Earliest | CommittedOffsets):
        raise InvalidOption("option 'endingOffsets' must be latest or JSON in batch queries")
    _refuse_edge(starting, LATEST, "latest")
    _refuse_edge(ending, EARLIEST, "earliest")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_pair(starting.option, starting.offsets, ending.option, ending.offsets)
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        _check_pair(starting.option, starting.timestamps_ms, ending.option, ending.timestamps_ms)


def _refuse_edge(position: Position, edge: int, word: str) -> None:
    if isinstance(position, AtOffsets):
        for tp, offset in position.offsets.items():
            if offset == edge:
                raise InvalidOption(
                    f"option '{position.option}' for partition {tp.partition} of '{tp.topic}' cannot be {word} "
                    "in batch queries"
                )


def _check_pair(start_name: str, start: Numbers, end_name: str, end: Numbers) -> None:
    if start.keys() != end.keys():
        raise InvalidOption(f"options '{start_name}' and '{end_name}' name different partitions")
    for tp, first in start.items():
        if 0 <= end[tp] < first:
            raise InvalidOption(
                f"option '{start_name}' gives {first} for partition {tp.partition} of '{tp.topic}', "
                f"after {end[tp]} of '{end_name}'"
            )


def _group(given: _Given) -> GroupOptions:
    """As in Spark's source, `kafka.group.id` is another consumer's group: the query may read its offsets, but never
    commits to it."""
    own, read_as = given.text("groupId").strip() or None, given.text("kafka.group.id").strip() or None
    return GroupOptions(own, given.text("groupIdPrefix").strip() or GROUP_ID_PREFIX, read_as or own)


def _limits(given: _Given) -> TriggerLimits:
    most, least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidOption(f"option 'minOffsetsPerTrigger' is {least}, more than {most} of 'maxOffsetsPerTrigger'")
    delay_ms = duration_ms("maxTriggerDelay", given.text("maxTriggerDelay", "15m"))
    return TriggerLimits(most, least, delay_ms, given.number("maxBytesPerTrigger"))


def duration_ms(name: str, text: str) -> int:
    """Parses a duration in Spark's form: 500ms, 10s, 15m, 2h, 1d. A bare number is in milliseconds."""
    bare = text.strip().lower()
    digits = bare.rstrip("abcdefghijklmnopqrstuvwxyz")
    units = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    unit = units.get(bare[len(digits) :])
    if unit is None or not digits.strip().isdigit():
        raise InvalidOption(f"option '{name}' is '{text}': write a time with a unit, for example 500ms, 10s or 15m")
    return int(digits) * unit


def _latest_when_no_match(given: _Given) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    word = given.text(name, "error").strip().lower()
    if word not in ("error", "latest"):
        raise InvalidOption(f"option '{name}' is '{given.text(name)}': write error or latest")
    return word == "latest"


def _read_committed(given: _Given) -> bool:
    level = given.text("kafka.isolation.level", "read_uncommitted").strip().lower()
    if level not in ("read_committed", "read_uncommitted"):
        raise InvalidOption(f"option 'kafka.isolation.level' is '{level}': write read_committed or read_uncommitted")
    return level == "read_committed"


def _fetch_max_bytes(given: _Given) -> int:
    named = (given.number("kafka.max.partition.fetch.bytes"), given.number("kafka.fetch.max.bytes"))
    return min((size for size in named if size is not None), default=FETCH_MAX_BYTES)
