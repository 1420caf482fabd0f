"""The cluster for blocking code: leaders, offsets, commits, and pooled connections.

Every call retries, with growing pauses, until it succeeds or its time is up. Permanent errors (a missing topic, a
refusal by a group, wrong credentials) are raised at once. Must not know: records.
Invariants: every request is harmless when it is sent twice. A connection that waits for data is leased, never shared.
Not thread safe: `shared_cluster` has one instance per thread. After a fork the child opens its own connections, because
the parent's are unusable there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from penstock.wire.messages.offset_commit import OffsetCommitResponse
from penstock.wire.messages.offset_fetch import OffsetFetchResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking import leader_calls
from penstock.wire_client.blocking.connection import CONNECT_TIMEOUT_S, BlockingConnection
from penstock.wire_client.blocking.fetch_stream import FetchedChunk, FetchStream
from penstock.wire_client.blocking.leader_calls import Leader
from penstock.wire_client.blocking.retrying import Pauses, until_done
from penstock.wire_client.blocking.security import PLAINTEXT, ClientSecurity
from penstock.wire_client.requests.errors import (
    BrokerUnreachable,
    NoSuchTopic,
    NotKafka,
    UnknownHost,
    WireClientError,
    check,
    error_code,
)
from penstock.wire_client.requests.groups import (
    GROUP_KEY,
    TRANSACTION_KEY,
    CoordinatorKey,
    OffsetAndMetadata,
    check_commit,
    commit_request,
    committed_request,
    coordinator_request,
    read_committed,
    read_coordinator,
)
from penstock.wire_client.requests.leader_epochs import EpochEnd, KnownEpochs
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.metadata import (
    METADATA_MAX_AGE_S,
    BrokerMetadata,
    TopicMetadata,
    metadata_request,
    read_brokers,
    read_topic,
)
from penstock.wire_client.requests.offsets import OffsetAndTimestamp
from penstock.wire_client.requests.producer_ids import producer_id_request, read_producer_id
from penstock.wire_client.requests.retriable import LOST, Again, may
from penstock.wire_client.requests.sentences import (
    leader_superseded,
    no_leader,
    no_such_partition,
    no_such_topic,
    not_a_topic_name,
)

logger = logging.getLogger(__name__)

__all__ = ["BlockingCluster", "FetchStream", "FetchedChunk", "shared_cluster"]

T = TypeVar("T")
R = TypeVar("R", bound=Message)

# Not every broker knows a new topic yet.
UNKNOWN_TOPIC_GRACE_S = 1.0
# The share of a call's time for an unknown host name: it may belong to a broker that is being started.
UNKNOWN_HOST_SHARE = 0.1
MAX_IDLE = 4
MAX_TOGETHER = 50
MAX_KEPT = 16


@dataclass(frozen=True, slots=True)
class Question(Generic[R, T]):
    """A question to coordinators of transactional ids."""

    key: Api
    kind: type[R]
    read: Callable[[str, R], T]
    """Extracts the result of an id, or raises ApiError. Errors that may pass are retried."""
    cap: int | None = None
    """The last version that may be used."""


class BlockingCluster:
    def __init__(
        self,
        bootstrap: Sequence[Address],
        client_id: str = "penstock",
        security: ClientSecurity = PLAINTEXT,
        timeout_s: float = 60.0,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._security = security
        self._timeout_s = timeout_s
        self._brokers: dict[int, BrokerMetadata] = {}
        self._topics: dict[str, tuple[float, TopicMetadata]] = {}
        self._epochs = KnownEpochs()
        self._coordinators: dict[CoordinatorKey, int] = {}
        self._shared: dict[tuple[Address, str], BlockingConnection] = {}
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._lost_at: dict[Address, float] = {}
        self.cluster_id = ""
        """The id of the cluster, as the last metadata says. Empty before that, and for brokers that do not say."""
        self._seen: set[int] = set()
        """Every broker that this client has ever known."""

    # -- topics -------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None, timeout_s: float | None = None) -> dict[str, TopicMetadata]:
        """All topics, or those of `names` that exist, requested now. Raises ApiError for an invalid name."""
        asked = None if names is None else sorted(set(names))
        if asked is not None and not asked:
            return {}

        def ask(deadline: float) -> dict[str, TopicMetadata]:
            answer = self._metadata(asked, deadline)
            return {entry.name or "": self._learn(entry) for entry in answer.topics if _exists(entry)}

        return self.until_done(ask, timeout_s)

    def topic(self, name: str, timeout_s: float | None = None) -> TopicMetadata:
        """A topic's metadata, at most 30 s old. Raises ApiError(UNKNOWN_TOPIC_OR_PARTITION)."""
        return self.until_done(lambda deadline: self._topic(name, deadline), timeout_s)

    def leader(self, tp: TopicPartition, timeout_s: float | None = None) -> BrokerMetadata:
        """The partition's leader. Waits for an election. Raises ApiError(UNKNOWN_TOPIC_OR_PARTITION)."""
        return self.until_done(lambda deadline: self._leader(tp, deadline), timeout_s)

    def find_leader(self, tp: TopicPartition, deadline: float) -> Leader:
        """The partition's leader. One attempt: raises ApiError, also during an election."""
        return Leader(self._leader(tp, deadline).node_id, self.leader_epoch(tp))

    def known_leaders(
        self, partitions: Collection[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, Leader]:
        """The leaders by the metadata, without waiting for an election: a partition without a leader is left out.

        Metadata that is missing or old is requested for all topics at once.
        """
        self.topics({tp.topic for tp in partitions if self.known_topic(tp.topic) is None}, timeout_s)
        infos = {topic: self.known_topic(topic) for topic in {tp.topic for tp in partitions}}
        found: dict[TopicPartition, Leader] = {}
        for tp in partitions:
            info = infos[tp.topic]
            if info is None or tp.partition >= len(info.partitions):
                continue
            one = info.partitions[tp.partition]
            if one.leader_id in self._brokers and not self._epochs.is_behind(tp, one.leader_epoch):
                found[tp] = Leader(one.leader_id, one.leader_epoch)
        return found

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch by the cached metadata; -1 if there is none."""
        known = self._topics.get(tp.topic)
        partitions = known[1].partitions if known is not None else ()
        return partitions[tp.partition].leader_epoch if tp.partition < len(partitions) else -1

    def _leader(self, tp: TopicPartition, deadline: float) -> BrokerMetadata:
        partitions = self._topic(tp.topic, deadline).partitions
        if tp.partition >= len(partitions):
            self.forget(tp.topic)  # the partition may be new
            partitions = self._topic(tp.topic, deadline).partitions
        if not 0 <= tp.partition < len(partitions):
            raise NoSuchTopic(no_such_partition(*tp))
        broker = self._brokers.get(partitions[tp.partition].leader_id)
        if broker is None:
            self.forget(tp.topic)
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, no_leader(*tp))
        if self._epochs.is_behind(tp, self.leader_epoch(tp)):
            # The broker that was asked is behind: the leader that it knows is not the leader any more.
            self.forget(tp.topic)
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, leader_superseded(*tp))
        return broker

    def known_topic(self, name: str, max_age_s: float = METADATA_MAX_AGE_S) -> TopicMetadata | None:
        """A topic's cached metadata, if it is no older."""
        known = self._topics.get(name)
        return known[1] if known is not None and time.monotonic() - known[0] < max_age_s else None

    def _topic(self, name: str, deadline: float) -> TopicMetadata:
        """The cached metadata of a topic, or a new request if there is none or it is old."""
        known = self.known_topic(name)
        if known is not None:
            return known
        patience = min(deadline, time.monotonic() + UNKNOWN_TOPIC_GRACE_S)
        pauses = Pauses()
        while True:
            entry = self._metadata([name], deadline).topics[0]
            if _exists(entry):
                return self._learn(entry)
            if time.monotonic() > patience:
                raise NoSuchTopic(no_such_topic(name))
            pauses.sleep(patience)

    def _learn(self, entry: MetadataResponseTopic) -> TopicMetadata:
        info = read_topic(entry)
        self._topics[info.name] = (time.monotonic(), info)
        self._epochs.learn(info)
        return info

    def forget(self, topic: str) -> None:
        """Drops the metadata of a topic, after a broker reported that it is wrong."""
        self._topics.pop(topic, None)

    def _metadata(self, names: Sequence[str] | None, deadline: float) -> MetadataResponse:
        answer = self._call_any(Api.METADATA, metadata_request(names), MetadataResponse, deadline)
        self._brokers = read_brokers(answer)
        self.cluster_id = answer.cluster_id or ""
        self._seen |= self._brokers.keys()
        return answer

    # -- offsets ------------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after each time in ms; -2 is the start of the log, -1 its end. Raises ApiError.

        An offset of -1 means that all records are older.
        """
        return leader_calls.list_offsets(self, wanted, read_committed=read_committed)

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """Where the records up to these leader epochs end in the present logs. Raises ApiError."""
        return leader_calls.epoch_ends(self, epochs, timeout_s)

    def first_batches(
        self, positions: Mapping[TopicPartition, int], partition_bytes: int
    ) -> dict[TopicPartition, Buffer]:
        """A sample of the records at these positions, without a retry. Raises ApiError, WireClientError."""
        return leader_calls.first_batches(self, positions, partition_bytes, self._timeout_s)

    # -- groups and producers -----------------------------------------------------------

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets. Partitions without one are left out. Raises ApiError."""
        return {tp: found.offset for tp, found in self.commits_of(group, partitions).items()}

    def commits_of(
        self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets with their metadata. `require_stable`: waits for transactions that commit offsets."""
        request = committed_request(group, partitions, require_stable=require_stable)
        if not request.topics:
            return {}

        def ask(connection: BlockingConnection, timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
            answer = connection.call(Api.OFFSET_FETCH, request, OffsetFetchResponse, timeout_s)
            return read_committed(group, answer)

        return self.at_coordinator(CoordinatorKey(GROUP_KEY, group), ask)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commits without being a member. A group accepts that only while it has no members. Raises ApiError."""
        request = commit_request(group, {tp: OffsetAndMetadata(offset, metadata) for tp, offset in offsets.items()})

        def ask(connection: BlockingConnection, timeout_s: float) -> None:
            check_commit(group, connection.call(Api.OFFSET_COMMIT, request, OffsetCommitResponse, timeout_s))

        if request.topics:
            self.at_coordinator(CoordinatorKey(GROUP_KEY, group), ask)

    def init_producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch. Raises ApiError."""
        request = producer_id_request(round(REQUEST_TIMEOUT_S * 1000))

        def ask(deadline: float) -> tuple[int, int]:
            return read_producer_id(self._call_any(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, deadline))

        return self.until_done(ask)

    def ask_coordinator(
        self, transactional_id: str, key: Api, request: Message, kind: type[R], read: Callable[[R, int], T]
    ) -> T:
        """Asks the coordinator of a transactional id; `read` as for `ask`, with the coordinator's node id."""
        coordinated = CoordinatorKey(TRANSACTION_KEY, transactional_id)

        def ask(connection: BlockingConnection, timeout_s: float) -> T:
            return read(connection.call(key, request, kind, timeout_s), self._coordinators[coordinated])

        return self.at_coordinator(coordinated, ask)

    def _coordinator(self, key: CoordinatorKey, deadline: float) -> int:
        node_id = self._coordinators.get(key)
        if node_id is None:
            request = coordinator_request(key.name, key.kind)
            answer = self._call_any(Api.FIND_COORDINATOR, request, FindCoordinatorResponse, deadline)
            node_id = self._coordinators[key] = read_coordinator(answer)
            if node_id not in self._brokers:
                self._metadata([], deadline)
        return node_id

    def at_coordinator(self, key: CoordinatorKey, ask: Callable[[BlockingConnection, float], T]) -> T:
        """Calls `ask` with a connection to the coordinator and a timeout; again after errors that may pass."""

        def attempt(deadline: float) -> T:
            try:
                return ask(self.connection(self._coordinator(key, deadline), "control"), _left(deadline))
            except LOST:
                # Its address is looked up again, too.
                self._brokers.pop(self._coordinators.pop(key, -1), None)
                raise
            except (ApiError, WireClientError):
                self._coordinators.pop(key, None)
                raise

        return self.until_done(attempt)

    def coordinator_of(self, transactional_id: str) -> int:
        """The node id of the coordinator."""
        return self.until_done(
            lambda deadline: self._coordinator(CoordinatorKey(TRANSACTION_KEY, transactional_id), deadline)
        )

    def ask_coordinators(self, asked: Mapping[str, Message], question: Question[R, T]) -> dict[str, T]:
        """Asks the coordinators of several transactional ids. Requests to the same broker are sent together."""
        found: dict[str, T] = {}

        def ask(deadline: float) -> dict[str, T]:
            by_node: dict[int, list[str]] = {}
            for name in asked:
                if name not in found:
                    node_id = self._coordinator(CoordinatorKey(TRANSACTION_KEY, name), deadline)
                    by_node.setdefault(node_id, []).append(name)
            refused: ApiError | None = None
            for node_id, names in by_node.items():
                for at in range(0, len(names), MAX_TOGETHER):
                    some = names[at : at + MAX_TOGETHER]
                    try:
                        wanted = {name: asked[name] for name in some}
                        refused = self._ask_together(node_id, wanted, question, found, deadline) or refused
                    except LOST:
                        self._brokers.pop(node_id, None)
                        for name in names:
                            self._coordinators.pop(CoordinatorKey(TRANSACTION_KEY, name), None)
                        raise
            if refused is not None:
                raise refused
            return found

        return self.until_done(ask) if asked else {}

    def _ask_together(
        self,
        node_id: int,
        asked: Mapping[str, Message],
        question: Question[R, T],
        found: dict[str, T],
        deadline: float,
    ) -> ApiError | None:
        """One round of `ask_coordinators` at one broker. Returns an error that may pass. Raises other errors."""
        connection = self.connection(node_id, "control")
        version = connection.newest(question.key, question.cap)
        for request in asked.values():
            connection.send(question.key, request, version=version)
        passing: ApiError | None = None
        final: ApiError | None = None
        # All answers are received before any is read: an error must not leave some behind on the shared connection.
        answers = [connection.receive(question.kind, _left(deadline)) for _ in asked]
        for name, answer in zip(asked, answers, strict=True):
            try:
                found[name] = question.read(name, answer)
            except ApiError as error:
                self._coordinators.pop(CoordinatorKey(TRANSACTION_KEY, name), None)
                if may(Again.ASK, error.code):
                    passing = error
                else:
                    final = final or error
        if final is not None:
            raise final
        return passing

    # -- asking ---------------------------------------------------------------------------

    def ask(self, key: Api, request: Message, kind: type[R], read: Callable[[R], T]) -> T:
        """Asks any broker. `read` extracts the result from the answer, or raises ApiError."""
        return self.until_done(lambda deadline: read(self._call_any(key, request, kind, deadline)))

    def ask_broker(self, node_id: int, key: Api, request: Message, kind: type[R], read: Callable[[R], T]) -> T:
        """Asks this broker; `read` as for `ask`."""
        return self.until_done(
            lambda deadline: read(self.connection(node_id, "control").call(key, request, kind, _left(deadline)))
        )

    def ask_leader(
        self,
        tp: TopicPartition,
        key: Api,
        request: Message,
        kind: type[R],
        read: Callable[[R], T],
        cap: int | None = None,
    ) -> T:
        """Asks the leader of a partition, in a version not above `cap`; `read` as for `ask`."""

        def ask(deadline: float) -> T:
            connection = self.connection(self._leader(tp, deadline).node_id, "control")
            try:
                return read(connection.call(key, request, kind, _left(deadline), cap))
            except ApiError:
                self.forget(tp.topic)
                raise

        return self.until_done(ask)

    def brokers(self) -> list[BrokerMetadata]:
        """The brokers that are up, requested now."""
        self.until_done(lambda deadline: self._metadata([], deadline))
        return sorted(self._brokers.values())

    # -- connections --------------------------------------------------------------------

    def connection(self, node_id: int, purpose: str) -> BlockingConnection:
        """A shared connection, which the caller must not close. One attempt: raises BrokerUnreachable."""
        return self._first_of(node_id, lambda address: self._shared_connection(address, purpose))

    def lease(self, node_id: int) -> BlockingConnection:
        """A connection that no other caller uses until `give_back`. One attempt: raises BrokerUnreachable."""
        return self._first_of(node_id, self._leased)

    def _leased(self, address: Address) -> BlockingConnection:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return self._open(address)

    def give_back(self, connection: BlockingConnection) -> None:
        """Ends a lease. The connection is closed if requests are still open or enough connections are idle."""
        idle = self._idle.setdefault(connection.address, [])
        if connection.outstanding or not connection.is_usable or len(idle) >= MAX_IDLE:
            connection.close()
        else:
            idle.append(connection)

    def _shared_connection(self, address: Address, purpose: str, timeout_s: float | None = None) -> BlockingConnection:
        key = (address, purpose)
        connection = self._shared.get(key)
        if connection is None or not connection.is_usable:
            if connection is not None:
                self._shared.pop(key).close()
            connection = self._shared[key] = self._open(address, timeout_s)
        return connection

    def _open(self, address: Address, timeout_s: float | None = None) -> BlockingConnection:
        timeout_s = min(CONNECT_TIMEOUT_S, self._timeout_s if timeout_s is None else timeout_s)
        return BlockingConnection.open(*address, self._client_id, self._security, timeout_s)

    def _first_of(self, node_id: int, connect: Callable[[Address], BlockingConnection]) -> BlockingConnection:
        """A connection to the first of the broker's addresses that answers. Raises BrokerUnreachable."""
        *others, last = self._addresses(node_id)
        for address in others:
            try:
                return connect(address)
            except BrokerUnreachable as error:
                logger.debug("broker %d is not at %s:%d: %s", node_id, *address, error)
        return connect(last)

    def _addresses(self, node_id: int) -> list[Address]:
        broker = self._brokers.get(node_id)
        if broker is None:
            raise BrokerUnreachable(f"broker {node_id} is not known to the cluster")
        advertised = broker.host, broker.port
        if len(self._seen) == len(self._bootstrap) == 1 and self._bootstrap[0] != advertised:
            # The only broker of the cluster is at the bootstrap address. The address that it advertises may be meant
            # for another network.
            return [self._bootstrap[0], advertised]
        return [advertised]

    def close(self) -> None:
        for connection in (*self._shared.values(), *(entry for idle in self._idle.values() for entry in idle)):
            connection.close()
        self._shared.clear()
        self._idle.clear()

    # -- retries ------------------------------------------------------------------------

    def _call_any(self, key: Api, request: Message, kind: type[R], deadline: float) -> R:
        """The answer of the first broker that answers: connected ones first, brokers that failed recently come last.

        While there are other brokers to ask, no broker gets all of the remaining time.
        """
        failures: list[WireClientError] = []
        known = dict.fromkeys((*self._bootstrap, *((broker.host, broker.port) for broker in self._brokers.values())))
        order = sorted(known, key=lambda at: (self._lost_at.get(at, 0.0), (at, "control") not in self._shared))
        for count, address in enumerate(order, 1):
            timeout_s = _left(deadline) if count == len(order) else _left(deadline) / 2
            try:
                begin = time.monotonic()
                connection = self._shared_connection(address, "control", timeout_s)
                answer = connection.call(key, request, kind, max(0.05, timeout_s - (time.monotonic() - begin)))
            except LOST as error:
                self._lost_at[address] = time.monotonic()
                failures.append(error)
            else:
                self._lost_at.pop(address, None)
                return answer
            if time.monotonic() > deadline:
                break
        if not failures:
            raise BrokerUnreachable("no broker address was given")
        # An error of an address that may be a broker matters more than that of a wrong address.
        raise min(reversed(failures), key=lambda failure: isinstance(failure, NotKafka | UnknownHost))

    def until_done(self, ask: Callable[[float], T], timeout_s: float | None = None) -> T:
        """Calls `ask` with its deadline until it succeeds; see `retrying`."""
        return until_done(ask, self._timeout_s if timeout_s is None else timeout_s, self._when_lost)

    def _when_lost(self, failure: WireClientError) -> float:
        """The share of the time to retry. An address that was never a broker's is unlikely to become one. A known
        broker may be away for a while, and so may its host name."""
        self._topics.clear()  # the lost broker may have led any partition
        if self._seen:
            return 1.0
        return 0.0 if isinstance(failure, NotKafka) else UNKNOWN_HOST_SHARE if isinstance(failure, UnknownHost) else 1.0


def _left(deadline: float) -> float:
    """The timeout of one request: only part of the remaining time, so that another broker can be asked."""
    return max(0.05, min(REQUEST_TIMEOUT_S, deadline - time.monotonic()))


def _exists(entry: MetadataResponseTopic) -> bool:
    """Whether the topic exists. Raises ApiError for other errors."""
    code = error_code(entry.error_code)
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise ApiError(code, not_a_topic_name(entry.name or ""))
    check(entry.error_code, f"topic '{entry.name}': {code.name}")
    return True


# -- shared within a thread -------------------------------------------------------------


class _Kept(threading.local):
    def __init__(self) -> None:
        self.clusters: dict[tuple[object, ...], BlockingCluster] = {}


_kept = _Kept()


def shared_cluster(
    bootstrap: Sequence[Address],
    client_id: str = "penstock",
    security: ClientSecurity = PLAINTEXT,
    timeout_s: float = 60.0,
) -> BlockingCluster:
    """One instance per thread for the same arguments, so that a worker keeps its connections across tasks.

    The caller must not close it. A forked child gets its parent's instance, which opens its own connections there.
    """
    key = (tuple(bootstrap), client_id, security, timeout_s)
    cluster = _kept.clusters.pop(key, None) or BlockingCluster(bootstrap, client_id, security, timeout_s)
    _kept.clusters[key] = cluster  # last used, last in order
    if len(_kept.clusters) > MAX_KEPT:
        _kept.clusters.pop(next(iter(_kept.clusters))).close()
    return cluster
