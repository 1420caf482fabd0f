"""What a job asks a cluster before it starts: are the topics there, and may they be made.

`Brokers` are the `kafka.` options of a source or sink, kept as text since that is what Spark takes. Must not know:
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.spark import options, sink_options
from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.known_options import SECURITY_PREFIXES
from penstock.spark.options import cluster_options
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import WireClientError, check
from penstock.wire_client.requests.metadata import TopicMetadata

R = TypeVar("R", bound=Message)

TIMEOUT_S = 15.0

# A file of client settings serves readers and writers, and each refuses what only the other knows.
_OF_SOURCES = frozenset(("isolation.level", "fetch.max.bytes", "max.partition.fetch.bytes")) | options.WITHOUT_EFFECT
_OF_SINKS = sink_options.SETTINGS | sink_options.WITHOUT_EFFECT


def _is_shared(name: str) -> bool:
    return name in ("bootstrap.servers", "client.id") or name.startswith(SECURITY_PREFIXES)


@dataclass(frozen=True, slots=True)
class Brokers:
    servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Client settings by their Kafka names: security and its kin."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.settings if not _is_shared(name) and name not in (*_OF_SOURCES, *_OF_SINKS)]
        if unknown:
            raise WrongJob(f"client setting {unknown[0]} is not known to the source or the sink: correct or drop it")

    @property
    def options(self) -> dict[str, str]:
        """What a source and a sink have in common: how to reach the cluster."""
        return self._options(frozenset())

    @property
    def source_options(self) -> dict[str, str]:
        return self._options(_OF_SOURCES)

    @property
    def sink_options(self) -> dict[str, str]:
        return self._options(_OF_SINKS)

    def _options(self, others: frozenset[str]) -> dict[str, str]:
        named = {name: value for name, value in self.settings.items() if _is_shared(name) or name in others}
        return {f"kafka.{name}": value for name, value in {**named, "bootstrap.servers": self.servers}.items()}

    def cluster_id(self) -> str:
        """By which a cluster is known whatever address leads to it; of one that has none, the addresses. Raises
        JobError."""
        try:
            answer = _ask_any(self, Api.METADATA, MetadataRequest(topics=[]), MetadataResponse)
        except WireClientError as error:
            raise self._unreachable(error) from error
        bootstrap = cluster_options(self.options).bootstrap
        return answer.cluster_id or ",".join(sorted({f"{host.lower()}:{port}" for host, port in bootstrap}))

    def _unreachable(self, error: WireClientError) -> JobError:
        return JobError(f"no broker answers at {self.servers} ({error}): is it running, and is that its address?")

    @contextmanager
    def cluster(self) -> Iterator[BlockingCluster]:
        reach = cluster_options(self.options)
        cluster = BlockingCluster(reach.bootstrap, reach.client_id, reach.security, TIMEOUT_S)
        try:
            yield cluster
        except WireClientError as error:
            raise self._unreachable(error) from error
        finally:
            cluster.close()


def existing_topics(brokers: Brokers, names: Iterable[str]) -> dict[str, TopicMetadata]:
    """All of them. Raises WrongJob with the command that makes the first that is missing."""
    wanted = list(dict.fromkeys(names))
    with brokers.cluster() as cluster:
        try:
            found = cluster.topics(wanted)
        except ApiError as error:
            raise WrongJob(f"{', '.join(wanted)}: {error}") from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise missing_topics(brokers, missing)
    return {name: found[name] for name in wanted}


def missing_topics(brokers: Brokers, missing: list[str], partitions: int | None = None) -> WrongJob:
    what = f"topic {missing[0]}" if len(missing) == 1 else f"topics {', '.join(missing)}"
    count = "" if partitions is None else f" --partitions {partitions}"
    return WrongJob(
        f"{what} not found at {brokers.servers}. To make {'it' if len(missing) == 1 else 'the first'}: "
        f"penstock topics create --name {missing[0]}{count} --bootstrap-server {brokers.servers}"
    )


def create_missing(brokers: Brokers, wanted: Mapping[str, int]) -> list[str]:
    """Topics by name and number of partitions; those that were made. Raises WrongJob for one with too few."""
    with brokers.cluster() as cluster:
        found = cluster.topics(wanted)
    for name, info in found.items():
        if len(info.partitions) < wanted[name]:
            raise WrongJob(
                f"topic {name} at {brokers.servers} has {len(info.partitions)} partitions, not {wanted[name]}. "
                f"To add them: penstock topics alter --name {name} --partitions {wanted[name]} "
                f"--bootstrap-server {brokers.servers}"
            )
    made = [name for name in wanted if name not in found]
    for name in made:
        _create(brokers, name, wanted[name])
    return made


def _create(brokers: Brokers, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=round(TIMEOUT_S * 1000))
    answer = _ask_any(brokers, Api.CREATE_TOPICS, request, CreateTopicsResponse).topics[0]
    if answer.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        check(answer.error_code, f"topic {name} cannot be made: {answer.error_message or answer.error_code}")


def _ask_any(brokers: Brokers, key: Api, request: Message, kind: type[R]) -> R:
    """The first that answers. Raises WireClientError."""
    reach = cluster_options(brokers.options)
    failure = WireClientError("no address of a broker was given")
    for address in reach.bootstrap:
        try:
            with BlockingConnection.open(*address, reach.client_id, reach.security) as connection:
                return connection.call(key, request, kind)
        except WireClientError as error:
            failure = error
    raise failure
