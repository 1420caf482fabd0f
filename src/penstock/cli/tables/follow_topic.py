"""One topic that is followed into a table, by what an option or a section of a file says of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.reach.connection import Target
from penstock.cli.reach.wire_admin import wire_cluster
from penstock.cli.tables.follow_output import Output
from penstock.cli.tables.options import StartAt, age_of
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.topic_tables.dead_letter_topic import DeadLetterTopic
    from penstock.topic_tables.progress import FollowProgress
    from penstock.topic_tables.reading import TopicReader
    from penstock.wire_client.blocking.cluster import BlockingCluster

LONGEST_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Named like the parameters of the command."""

    topic: str
    directory: Path
    mode: str | None
    schema_text: str | None
    evolve: bool
    partition_by: tuple[str, ...]
    key: tuple[str, ...]
    dead_letter_topic: str | None
    start: StartAt | None
    commit_interval: int
    allow_gaps: bool
    keep_ms: int


@dataclass(frozen=True, slots=True)
class FollowRun:
    """What followed topics of a process have in common."""

    target: Target
    stop: threading.Event
    once: bool
    topics: int = 1


def follow_topic(running: FollowRun, settings: TopicSettings, progress: FollowProgress, output: Output) -> str:
    """Until it is stopped, or has caught up. Returns the name of the group that shows the lag.

    Raises Stopped, and PenstockError for everything that following again may or may not help.
    """
    from penstock.arrow.values import parse_schema
    from penstock.topic_tables.follower import Audience, FollowedTopic, Follower, FollowOptions
    from penstock.topic_tables.opening import Wanted, open_topic_table, topic_id_text

    topic, name, stop = settings.topic, settings.dead_letter_topic, running.stop
    schema = None if settings.schema_text is None else parse_schema(settings.schema_text)
    with ExitStack() as opened:
        cluster = opened.enter_context(wire_cluster(running.target))
        info = cluster.topic(topic)
        dead_letters = None
        if name is not None:
            _check_dead_letter_topic(cluster, name, topic)
            sending = _dead_letter_topic(running.target, name, topic, stop, once=running.once)
            dead_letters = opened.enter_context(sending)
        options = FollowOptions(
            running.once,
            settings.commit_interval / 1000,
            settings.allow_gaps,
            age_of(settings.keep_ms),
            dead_letters,
            running.topics,
        )
        followed = FollowedTopic(topic, info.topic_id)
        wanted = Wanted(
            topic,
            topic_id_text(info.topic_id),
            settings.mode,
            schema,
            settings.partition_by,
            settings.key,
            settings.evolve,
        )
        begin = _ResolvedOnce(settings.start or StartAt("earliest"))

        def infer() -> Any:
            return _inferred(cluster, followed, begin, stop, running.once)

        table, shape = open_topic_table(settings.directory, wanted, infer, output.say)
        if table.positions and settings.start is not None:
            output.say(f"The table continues where it ended: --from {settings.start.text} counts for a new table only")
        audience = Audience(stop, output.warn, output.watch, progress)
        follower = Follower(cluster, followed, table, shape, options, audience)
        output.say(
            f"Following {topic} to {settings.directory} from version {table.version}; group {follower.group} shows the "
            "lag"
        )
        follower.run(begin)
    place = f"topic {name}" if name else f"{settings.directory}/_dead_letters"
    output.end(progress, place, is_stopped=stop.is_set())
    return follower.group


class _ResolvedOnce:
    """Records that a schema is inferred from are rows, too, also if `latest` is elsewhere by then."""

    def __init__(self, start: StartAt) -> None:
        self._start = start
        self._found: Mapping[int, int] = {}

    def __call__(self, reader: TopicReader, partitions: range) -> Mapping[int, int]:
        if not self._found:
            self._found = self._start(reader, partitions)
        elif len(self._found) < len(partitions):  # added meanwhile
            self._found = {**reader.starts(partitions), **self._found}
        return self._found


def _check_dead_letter_topic(cluster: BlockingCluster, name: str, of_topic: str) -> None:
    if name == of_topic:
        raise ConfigError(f"--dead-letter-topic {name} is the topic itself: its dead letters would come back for ever")
    if name not in cluster.topics([name]):
        raise ConfigError(f"--dead-letter-topic: there is no topic {name}: penstock topics create --name {name}")


@contextmanager
def _dead_letter_topic(
    target: Target, name: str, of_topic: str, stop: threading.Event, *, once: bool
) -> Iterator[DeadLetterTopic]:
    """While no broker answers, dead letters wait, as reading does; with `once` they fail."""
    from penstock.sdk import BlockingProducer
    from penstock.topic_tables.dead_letter_topic import DeadLetterTopic

    producer = BlockingProducer(
        target.servers,
        delivery_timeout_ms=int(target.timeout_s * 1000) if once else LONGEST_MS,
        client_id="penstock-cli",
        settings=target.settings,
    )
    try:
        yield DeadLetterTopic(producer, name, of_topic, stop)
    finally:
        # What counts was acknowledged. What was not is sent again, and the reason is that of the failure on its way.
        with suppress(PenstockError):
            producer.close(0.0)


class Stopped(PenstockError):
    """Before there was a record to infer a schema from."""


def _inferred(
    cluster: BlockingCluster, topic: tuple[str, bytes], start: _ResolvedOnce, stop: threading.Event, once: bool
) -> Any:
    from penstock.topic_tables.inference import infer
    from penstock.topic_tables.sampling import sample_values

    values = sample_values(cluster, topic, start, stop, waits=not once)
    if not values:
        if stop.is_set():
            raise Stopped("stopped before there was a record")
        raise ConfigError(f"topic {topic[0]} has no records there to infer a schema from: give one with --schema")
    return infer(values)
