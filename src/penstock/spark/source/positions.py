"""The values of the options for topics and for the start and end of a read, and their text forms.

Spark's Kafka source defines the forms: earliest, latest, a timestamp, or JSON by topic and partition, with -2 for
earliest and -1 for latest. `group` (the committed offsets of a consumer group) is Penstock's own. Must not know:
clusters; `planning` turns these values into offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.known import InvalidOption

LATEST = -1
EARLIEST = -2


# -- what is read ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicNames:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    pattern: str

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches anywhere in the name, as in Spark. Anchors limit it to the whole name."""
        return re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    partitions: tuple[TopicPartition, ...]


Subscription = TopicNames | TopicPattern | AssignedPartitions


def topics_of(text: str) -> TopicNames:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidOption(f"option 'subscribe' is '{text}': give one or more topics, separated by commas")
    return TopicNames(names)


def pattern_of(text: str) -> TopicPattern:
    pattern = text.strip()
    if not pattern:
        raise InvalidOption("option 'subscribePattern' is empty: give a regular expression for topic names")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOption(f"option 'subscribePattern' is '{text}', not a regular expression: {error}") from None
    return TopicPattern(pattern)


def assigned_of(text: str) -> AssignedPartitions:
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    given = _json(text)
    if not isinstance(given, dict) or not given:
        raise InvalidOption(f"option 'assign' is '{text}': write partitions by topic, for example {example}")
    found: dict[TopicPartition, None] = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_number(p, 0) for p in partitions):
            raise InvalidOption(f"option 'assign' gives {json.dumps(partitions)} for '{topic}': write {example}")
        found.update((TopicPartition(topic, partition), None) for partition in partitions)
    return AssignedPartitions(tuple(sorted(found)))


# -- start and end ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The committed offsets of the consumer group; the earliest offset for partitions without one."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    option: str
    offsets: Mapping[TopicPartition, int]
    """Offsets; -1 means latest and -2 earliest."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    option: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    option: str
    timestamps_ms: Mapping[TopicPartition, int]


Position = Earliest | Latest | CommittedOffsets | AtOffsets | AtTimestamp | AtTimestamps


def at_timestamp(option: str, text: str) -> AtTimestamp:
    try:
        timestamp_ms = int(text.strip())
    except ValueError:
        raise InvalidOption(f"option '{option}' is '{text}': give milliseconds since 1970, one number") from None
    if not _is_number(timestamp_ms, 0):
        raise InvalidOption(f"option '{option}' is {timestamp_ms}: give milliseconds since 1970, not below 0")
    return AtTimestamp(option, timestamp_ms)


def at_timestamps(option: str, text: str) -> AtTimestamps:
    form = 'JSON, for example {"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
    return AtTimestamps(option, _by_partition(option, text, form, lowest=0))


def at_offsets(option: str, text: str) -> Position:
    word = text.strip().lower()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    if word == "group":
        return CommittedOffsets()
    words = "earliest, latest, group or" if option.startswith("starting") else "latest or"
    form = f'{words} JSON, for example {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}'
    return AtOffsets(option, _by_partition(option, text, form, lowest=EARLIEST))


def _by_partition(option: str, text: str, form: str, lowest: int) -> dict[TopicPartition, int]:
    given = _json(text)
    if not isinstance(given, dict) or not all(isinstance(partitions, dict) for partitions in given.values()):
        raise InvalidOption(f"option '{option}' is '{text}': write {form}")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in given.items():
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()) or not _is_number(number, lowest):
                raise InvalidOption(
                    f"option '{option}' gives {json.dumps(number)} for partition {partition} of '{topic}': write {form}"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except ValueError:
        return None
    return parsed


def _is_number(value: object, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 1 << 63
