"""Where a read begins and ends, and which topics it covers, as the options say it. Values and their text forms.

Spark's Kafka source defines the spellings: earliest, latest, a timestamp, or JSON by topic and partition in which
-2 is earliest and -1 latest. `group` (the committed offsets of a consumer group) is ours. Must not know: clusters;
`planning` turns these into numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.errors import ConfigError
from penstock.model.topic_partition import TopicPartition

LATEST = -1
EARLIEST = -2


class InvalidOption(ConfigError):
    """An option of the reader or writer that cannot be used: names it, its value, and what to write instead."""


# -- what is read ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topics:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    pattern: str

    def matches(self, topic: str) -> bool:
        """Anywhere in the name, as Spark does it: anchor the pattern to mean the whole of it."""
        return re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    partitions: tuple[TopicPartition, ...]


Subscription = Topics | TopicPattern | AssignedPartitions


def topics_of(text: str) -> Topics:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidOption(f"option 'subscribe' is '{text}': give one or more topics, separated by commas")
    return Topics(names)


def pattern_of(text: str) -> TopicPattern:
    pattern = text.strip()
    if not pattern:
        raise InvalidOption("option 'subscribePattern' is empty: give a regular expression for topic names")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOption(f"option 'subscribePattern' is '{text}', no regular expression: {error}") from None
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


# -- from where to where ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class Committed:
    """What the consumer group has committed; the earliest offset where it has not."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    option: str
    offsets: Mapping[TopicPartition, int]
    """-1 and -2 stand for latest and earliest."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    option: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    option: str
    timestamps_ms: Mapping[TopicPartition, int]


Position = Earliest | Latest | Committed | AtOffsets | AtTimestamp | AtTimestamps


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
        return Committed()
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
