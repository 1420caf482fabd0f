"""A broker's metadata, logs and admin handlers on a disk in memory, without sockets.

Requests and responses travel through the codec of the version asked for, so a test sees
what a client of that version would. `crash` is a power failure: what is there afterwards
was stable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from penstock.api.admin.config_resources import ConfigResources
from penstock.api.admin.topic_creation import TopicCreation
from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.handler import Handler
from penstock.api.handlers.alter_configs import AlterConfigsHandler
from penstock.api.handlers.create_partitions import CreatePartitionsHandler
from penstock.api.handlers.create_topics import CreateTopicsHandler
from penstock.api.handlers.delete_topics import DeleteTopicsHandler
from penstock.api.handlers.describe_cluster import DescribeClusterHandler
from penstock.api.handlers.describe_configs import DescribeConfigsHandler
from penstock.api.handlers.describe_log_dirs import DescribeLogDirsHandler
from penstock.api.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from penstock.api.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from penstock.api.handlers.list_config_resources import ListConfigResourcesHandler
from penstock.config.broker import BrokerConfig
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.net.connection import Connection
from penstock.ports.disk import File
from penstock.replica.hosting import HostedPartitions
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import GroupCommit
from penstock.wire.codec import RequestHeader, decode, encode
from penstock.wire.primitives import Message
from support.worlds.hosts import ALONE
from support.worlds.sole_controller import SoleController

A = TypeVar("A")
T = TypeVar("T")
DIRECTORY = "/data"
LOCAL = ("127.0.0.1", 9092)


class _Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 1.0


class _Entropy:
    def __init__(self, random: Random) -> None:
        self._random = random

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)


class _InlineFlusher:
    def __init__(self, disk: SimDisk, call_soon: Callable[..., object]) -> None:
        self._disk = disk
        self._call_soon = call_soon

    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        failure: OSError | None = None
        try:
            for file in files:
                file.sync()
            for directory in directories:
                self._disk.sync_directory(directory)
        except OSError as error:
            failure = error
        self._call_soon(on_stable, failure)


class _InlineWorkers:
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        async def done() -> T:
            return work()

        return done()

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        return map(work, items)


class _Listener:
    def __init__(self, partitions: HostedPartitions) -> None:
        self.topic_created = partitions.topic_created
        self.partitions_added = partitions.partitions_added
        self.partition_changed = partitions.partition_changed
        self.topic_deleted = partitions.topic_deleted
        self.config_changed = partitions.config_changed


class AdminBroker:
    def __init__(self, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.random = Random(7)
        self.disk = SimDisk(self.random)
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_directory("")
        self.loop = asyncio.new_event_loop()
        self._start()

    def _start(self) -> None:
        config, warnings = BrokerConfig.load(None, {"log.dirs": DIRECTORY, **self.settings})
        assert warnings == []
        entropy = _Entropy(self.random)
        commit = GroupCommit(self.loop.call_soon, _InlineFlusher(self.disk, self.loop.call_soon))
        workers = _InlineWorkers()
        self.sole = SoleController(self.loop, self.disk, DIRECTORY, config, commit, workers, _Clock(), entropy)
        self.image, self.running, self.controller = self.sole.image, self.sole.running, self.sole.controller
        self.partitions = HostedPartitions(
            self.disk, DIRECTORY, self.running.current, self.image, commit, workers, _Clock(), entropy, ALONE
        )
        self.partitions.open_all(lambda done, total: None, threads=1)
        self.running.subscribe(self.partitions.broker_config_changed)
        self.sole.machine.listen(_Listener(self.partitions), self.image)
        cluster = ClusterView(config.node_id, config.broker_rack, self.image, {})
        resources = ConfigResources(config.node_id, self.controller.topics, self.running)
        handlers: list[Handler] = [
            CreateTopicsHandler(
                self.controller.topics, TopicCreation(self.controller.topics, self.running), self.running
            ),
            DeleteTopicsHandler(self.controller.topics, self.running),
            CreatePartitionsHandler(self.controller.topics),
            DescribeTopicPartitionsHandler(cluster, max_partitions=config.max_request_partition_size_limit),
            DescribeConfigsHandler(resources, lambda group: ()),
            IncrementalAlterConfigsHandler(resources),
            AlterConfigsHandler(resources),
            ListConfigResourcesHandler(cluster),
            DescribeClusterHandler(cluster),
            DescribeLogDirsHandler(self.partitions),
        ]
        self.handlers = {type(handler).__name__.removesuffix("Handler"): handler for handler in handlers}

    def crash(self) -> None:
        self.disk.crash()
        self._start()

    def close(self) -> None:
        self.loop.run_until_complete(self.sole.machine.settle())
        self.loop.close()

    def ask(self, request: Message, version: int | None = None) -> Any:
        """The response of the newest version, or of the one given."""
        handler = self.handlers[type(request).__name__.removesuffix("Request")]
        version = handler.max_version if version is None else version
        assert handler.min_version <= version <= handler.max_version
        connection = SimpleNamespace(listener_name="PLAINTEXT", channel=SimpleNamespace(local=LOCAL))
        ctx = RequestContext(
            cast(Connection, connection),
            slot=0,
            frame=memoryview(b""),
            header=RequestHeader(int(handler.api), version, 1, "test", 0),
        )
        received = decode(type(request), version, encode(request, version))

        async def answer() -> Message:
            try:
                outcome = handler.handle(ctx, received)
                response = outcome if isinstance(outcome, Message | None) else await outcome
                assert response is not None
                return response
            except (ApiError, StorageError) as error:
                # As the dispatcher does.
                return handler.refuse(received, ErrorCode(error.code), str(error))

        response = self.loop.run_until_complete(answer())
        return decode(type(response), version, encode(response, version))
