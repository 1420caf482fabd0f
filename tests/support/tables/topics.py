"""A topic of a real broker, and followers that make a table of it within this process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.tables import Table
from penstock.topic_tables.follower import Audience, FollowedTopic, Follower, FollowOptions
from penstock.topic_tables.opening import Wanted, open_topic_table, topic_id_text
from penstock.topic_tables.progress import FollowProgress
from penstock.topic_tables.reading import TopicReader
from penstock.wire_client.blocking.cluster import BlockingCluster

_numbers = itertools.count(1)


def earliest(reader: TopicReader, partitions: range) -> Mapping[int, int]:
    return reader.starts(partitions)


def latest(reader: TopicReader, partitions: range) -> Mapping[int, int]:
    return reader.ends(partitions)


class FilledTopic:
    def __init__(self, bootstrap_servers: str, partitions: int = 2) -> None:
        self.servers = bootstrap_servers
        self.name = f"tabled-{next(_numbers)}"
        self.create(partitions)

    def create(self, partitions: int = 2) -> None:
        with BlockingAdmin(self.servers) as admin:
            admin.create_topic(self.name, partitions)

    def recreate(self) -> None:
        with BlockingAdmin(self.servers) as admin:
            admin.delete_topic(self.name)
            admin.create_topic(self.name, 2)

    def send(self, values: Sequence[str | bytes | None], **options: Any) -> None:
        """By turns to the partitions 0 and 1, unless one is given."""
        with BlockingProducer(self.servers) as producer:
            for number, value in enumerate(values):
                producer.submit(self.name, value, **{"partition": number % 2, **options})

    def numbers(self, first: int, end: int, **options: Any) -> None:
        self.send([str(number) for number in range(first, end)], **options)

    @contextmanager
    def follower(
        self, directory: Path, start: Callable[..., Any] = earliest, audience: Audience | None = None, **options: Any
    ) -> Iterator[Follower]:
        """`options`: of `Wanted` and of `FollowOptions`."""
        host, _, port = self.servers.rpartition(":")
        cluster = BlockingCluster([(host, int(port))], timeout_s=20.0)
        try:
            info = cluster.topic(self.name)
            asked = {
                name: options.pop(name)
                for name in ("mode", "schema", "partition_by", "key", "evolve")
                if name in options
            }
            wanted = Wanted(self.name, topic_id_text(info.topic_id), **asked)
            said: list[str] = []
            table, shape = open_topic_table(directory, wanted, lambda: None, said.append)
            settings = FollowOptions(**{"once": True, **options})
            heard = audience or Audience(threading.Event(), said.append)
            topic = FollowedTopic(self.name, info.topic_id)
            yield Follower(cluster, topic, table, shape, settings, heard)
        finally:
            cluster.close()

    def follow(self, directory: Path, start: Callable[..., Any] = earliest, **options: Any) -> FollowProgress:
        with self.follower(directory, **options) as follower:
            follower.run(start)
            return follower.progress


def values_of(directory: Path) -> list[int]:
    """The numbers in a table, by partition and offset."""
    rows = Table.open(directory).at().arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return [int(value) for value in rows.column("value").to_pylist()]


def offsets_of(directory: Path, partition: int = 0) -> list[int]:
    rows = Table.open(directory).at().arrow().to_pylist()
    return sorted(row["offset"] for row in rows if row["partition"] == partition)
