"""Checks of a cluster before a job starts: whether topics exist, and creating missing ones.

`Brokers` has the `kafka.` options of a source or sink as text, as Spark takes them. Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.options.cluster import cluster_options
from penstock.spark.options.known import SECURITY_PREFIXES
from penstock.spark.sink import options as sink_options
from penstock.spark.source import options as source_options
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import WireClientError, check
from penstock.wire_client.requests.metadata import TopicMetadata, metadata_request
from penstock.wire_client.requests.topics import create_topic_request

R = TypeVar("R", bound=Message)

TIMEOUT_S = 15.0

# One file of client settings serves readers and writers, but each refuses settings that only the other knows.
_OF_SOURCES = (
    frozenset(("isolation.level", "fetch.max.bytes", "max.partition.fetch.bytes")) | source_options.WITHOUT_EFFECT
)
_OF_SINKS = sink_options.SETTINGS | sink_options.WITHOUT_EFFECT


def _is_shared(name: str) -> bool:
    return name in ("bootstrap.servers", "client.id") or name.startswith(SECURITY_PREFIXES)


COMMITTED_ONLY = {"kafka.isolation.level": "read_committed"}
"""The default of jobs that follow topics: what a producer has aborted must not come back as records."""


@dataclass(frozen=True, slots=True)
class Brokers:
    servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Client settings by their Kafka names, such as security settings."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.settings if not _is_shared(name) and name not in (*_OF_SOURCES, *_OF_SINKS)]
        if unknown:
            raise WrongJob(f"client setting {unknown[0]} is not known to the source or the sink: correct or remove it")

    @property
    def options(self) -> dict[str, str]:
        """The common options of source and sink: the connection to the cluster."""
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
        """The cluster's id, whatever the address; the addresses for a cluster without an id. Raises JobError."""
        try:
            answer = _ask_any(self, Api.METADATA, metadata_request(()), MetadataResponse)
        except WireClientError as error:
            raise self._unreachable(error) from error
        bootstrap = cluster_options(self.options).bootstrap
        return answer.cluster_id or ",".join(sorted({f"{host.lower()}:{port}" for host, port in bootstrap}))

    def _unreachable(self, error: WireClientError) -> JobError:
        return JobError(f"no broker answers at {self.servers} ({error}): check that it runs, and the address")

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
    """The metadata of all topics. Raises WrongJob with the command that creates the first missing topic."""
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
        f"{what} not found at {brokers.servers}. Create {'it' if len(missing) == 1 else 'the first'}: "
        f"penstock topics create --name {missing[0]}{count} --bootstrap-server {brokers.servers}"
    )


def create_missing(brokers: Brokers, wanted: Mapping[str, int]) -> list[str]:
    """Creates missing topics, by name and number of partitions, and returns their names.

    Raises WrongJob for a topic with too few partitions.
    """
    with brokers.cluster() as cluster:
        found = cluster.topics(wanted)
    for name, info in found.items():
        if len(info.partitions) < wanted[name]:
            raise WrongJob(
                f"topic {name} at {brokers.servers} has fewer partitions ({len(info.partitions)}) than the source "
                f"({wanted[name]}). Add partitions: penstock topics alter --name {name} --partitions {wanted[name]} "
                f"--bootstrap-server {brokers.servers}"
            )
    made = [name for name in wanted if name not in found]
    for name in made:
        _create(brokers, name, wanted[name])
    return made


def _create(brokers: Brokers, name: str, partitions: int) -> None:
    request = create_topic_request(NewTopic(name, partitions), round(TIMEOUT_S * 1000))
    answer = _ask_any(brokers, Api.CREATE_TOPICS, request, CreateTopicsResponse).topics[0]
    if answer.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        check(answer.error_code, f"cannot create topic {name}: {answer.error_message or answer.error_code}")


def _ask_any(brokers: Brokers, key: Api, request: Message, kind: type[R]) -> R:
    """The answer of the first broker that answers. Raises WireClientError."""
    reach = cluster_options(brokers.options)
    failure = WireClientError("no broker address was given")
    for address in reach.bootstrap:
        try:
            with BlockingConnection.open(*address, reach.client_id, reach.security) as connection:
                return connection.call(key, request, kind)
        except WireClientError as error:
            failure = error
    raise failure
