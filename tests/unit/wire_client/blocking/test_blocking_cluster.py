"""The blocking view of the cluster: against a broker in this process, and scripted ones that make it try again."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.messages.fetch import FetchRequest
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.cluster import BlockingCluster, shared_cluster
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.blocking.security import ClientSecurity
from penstock.wire_client.requests.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NotKafka,
    RequestTimedOut,
    UnknownHost,
)
from support.scripted.broker import Reply, ScriptedBroker

_numbers = count()
TOPIC_ID = b"t" * 16


@pytest.fixture
def cluster(penstock_broker: Broker) -> Iterator[BlockingCluster]:
    cluster = BlockingCluster([("127.0.0.1", penstock_broker.port)], timeout_s=20.0)
    yield cluster
    cluster.close()


def create(cluster: BlockingCluster, partitions: int = 1) -> str:
    name = f"blocking-{next(_numbers)}"
    cluster.topics()
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)], timeout_ms=10_000
    )
    answer = cluster.connection(1, "control").call(Api.CREATE_TOPICS, request, CreateTopicsResponse)
    assert not answer.topics[0].error_code
    return name


def produce(cluster: BlockingCluster, tp: TopicPartition, *times_ms: int) -> None:
    """A batch of one record for each time."""
    for time_ms in times_ms:
        data = PartitionProduceData(index=tp.partition, records=build_batch([Record(None, b"v", (), time_ms)]))
        request = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])]
        )
        connection = cluster.connection(cluster.leader(tp).node_id, "produce")
        answer = connection.call(Api.PRODUCE, request, ProduceResponse)
        assert not answer.responses[0].partition_responses[0].error_code


# -- a real broker ----------------------------------------------------------------------------


def test_topics(cluster: BlockingCluster) -> None:
    name = create(cluster, 3)
    found = cluster.topics([name, "nobody-made-this"])
    assert list(found) == [name]
    assert [partition.partition for partition in found[name].partitions] == [0, 1, 2]
    assert len(found[name].topic_id) == 16
    assert cluster.topics()[name] == found[name]
    assert cluster.topics([]) == {}
    with pytest.raises(ApiError, match="'not/a/name' is not a topic name"):
        cluster.topics(["not/a/name"])


def test_leaders(cluster: BlockingCluster) -> None:
    name = create(cluster)
    assert cluster.leader(TopicPartition(name, 0)).node_id == 1
    for missing in (TopicPartition("nobody-made-this", 0), TopicPartition(name, 7), TopicPartition(name, -1)):
        with pytest.raises(ApiError) as refused:
            cluster.leader(missing)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_was_added_is_found(cluster: BlockingCluster) -> None:
    name = create(cluster)
    cluster.leader(TopicPartition(name, 0))
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=2, assignments=None)], timeout_ms=10_000
    )
    answer = cluster.connection(1, "control").call(Api.CREATE_PARTITIONS, request, CreatePartitionsResponse)
    assert not answer.results[0].error_code
    assert cluster.leader(TopicPartition(name, 1)).node_id == 1


def test_offsets(cluster: BlockingCluster) -> None:
    name = create(cluster, 2)
    full, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    produce(cluster, full, 1000, 2000, 3000)
    assert {tp: found.offset for tp, found in cluster.list_offsets({full: -1, empty: -1}).items()} == {
        full: 3,
        empty: 0,
    }
    assert cluster.list_offsets({full: -2})[full].offset == 0
    assert cluster.list_offsets({full: 1500}, read_committed=True)[full][:2] == (1, 2000)
    assert cluster.list_offsets({full: 3001})[full].offset == -1
    assert cluster.list_offsets({}) == {}
    with pytest.raises(ApiError, match="topic 'nobody-made-this' does not exist"):
        cluster.list_offsets({TopicPartition("nobody-made-this", 0): -1})


def test_commits(cluster: BlockingCluster) -> None:
    name = create(cluster, 2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    group = f"{name}-group"
    assert cluster.committed_offsets(group, [first, second]) == {}
    cluster.commit_offsets(group, {first: 5})
    cluster.commit_offsets(group, {first: 7, second: 0})
    assert cluster.committed_offsets(group, [first, second]) == {first: 7, second: 0}
    assert cluster.committed_offsets(group, [second]) == {second: 0}
    assert cluster.committed_offsets(group, []) == {}
    cluster.commit_offsets(group, {})
    cluster.commit_offsets(group, {second: 3}, "mine")
    assert cluster.commits_of(group, [first, second]) == {first: (7, ""), second: (3, "mine")}
    with pytest.raises(ApiError, match="topic 'nobody-made-this' has no partition 0"):
        cluster.commit_offsets(group, {TopicPartition("nobody-made-this", 0): 1})


def test_a_group_with_members_refuses(cluster: BlockingCluster) -> None:
    name = create(cluster)
    request = JoinGroupRequest(
        group_id=name,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    connection = cluster.connection(1, "member")
    answer = connection.call(Api.JOIN_GROUP, request, JoinGroupResponse)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = connection.call(Api.JOIN_GROUP, request, JoinGroupResponse)
    assert not answer.error_code
    with pytest.raises(ApiError, match=f"group '{name}' has members, and only they may commit"):
        cluster.commit_offsets(name, {TopicPartition(name, 0): 1})


def test_producer_ids(cluster: BlockingCluster) -> None:
    first, second = cluster.init_producer_id(), cluster.init_producer_id()
    assert first[1] == second[1] == 0
    assert 0 <= first[0] < second[0]


# -- connections ------------------------------------------------------------------------------


def test_connections_are_kept_by_purpose(cluster: BlockingCluster) -> None:
    cluster.topics()
    assert cluster.connection(1, "control") is cluster.connection(1, "control")
    assert cluster.connection(1, "control") is not cluster.connection(1, "produce")
    with pytest.raises(BrokerUnreachable, match="broker 99 is not known"):
        cluster.connection(99, "control")
    kept = cluster.connection(1, "produce")
    kept.close()
    assert cluster.connection(1, "produce").is_usable


def test_a_lease_is_for_one(cluster: BlockingCluster) -> None:
    cluster.topics()
    first, second = cluster.lease(1), cluster.lease(1)
    assert first is not second
    cluster.give_back(first)
    assert cluster.lease(1) is first
    second.send(Api.FETCH, FetchRequest(max_wait_ms=60_000, min_bytes=1))
    cluster.give_back(second)
    assert not second.is_usable, "an answer would have come to the next who leases it"
    leases = [cluster.lease(1) for _ in range(6)]
    for lease in leases:
        cluster.give_back(lease)
    assert [lease.is_usable for lease in leases] == [True] * 4 + [False] * 2
    first.close()


def test_one_cluster_for_the_same_arguments(penstock_broker: Broker) -> None:
    address = ("127.0.0.1", penstock_broker.port)
    one = shared_cluster([address], "kept", timeout_s=20.0)
    assert one.topics([]) == {}
    one.topics()
    assert shared_cluster([address], "kept", timeout_s=20.0) is one
    assert shared_cluster([address], "other", timeout_s=20.0) is not one
    secured = ClientSecurity("SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="u", password="p")
    assert shared_cluster([address], "kept", secured, 20.0) is not one
    elsewhere: list[BlockingCluster] = []
    thread = threading.Thread(target=lambda: elsewhere.append(shared_cluster([address], "kept", timeout_s=20.0)))
    thread.start()
    thread.join()
    assert elsewhere[0] is not one
    for number in range(20):
        shared_cluster([address], f"many-{number}")
    assert not one._shared, "the one that was not used for longest is closed"


def test_a_forked_child_opens_its_own(penstock_broker: Broker) -> None:
    arguments = ([("127.0.0.1", penstock_broker.port)], "forked")
    cluster = shared_cluster(*arguments)
    name = create(cluster)
    parents = cluster.connection(1, "control")
    lease = cluster.lease(1)
    cluster.give_back(lease)
    child = os.fork()
    if not child:
        try:
            mine = shared_cluster(*arguments)
            is_right = name in mine.topics([name]) and mine.connection(1, "control") is not parents
            os._exit(0 if is_right and mine.lease(1) is not lease else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cluster.connection(1, "control") is parents
    assert cluster.lease(1) is lease
    assert name in cluster.topics([name])
    lease.close()


# -- trying again -----------------------------------------------------------------------------


def test_nobody_there() -> None:
    with ScriptedBroker() as gone:
        address = gone.address
    begin = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=rf"cannot connect to 127.0.0.1:{address[1]}: .* \(tried for 0\.\d s\)"):
        BlockingCluster([address], timeout_s=0.3).topics()
    assert time.monotonic() - begin >= 0.3
    with pytest.raises(BrokerUnreachable, match="no broker address was given"):
        BlockingCluster([], timeout_s=0.0).topics()


def test_the_first_of_two_is_gone() -> None:
    with ScriptedBroker() as gone:
        address = gone.address
    with ScriptedBroker(topics={"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([address, broker.address], timeout_s=10.0)
        assert list(cluster.topics()) == ["t"]
        assert cluster.leader(TopicPartition("t", 0)).port == broker.port
        cluster.close()


@contextmanager
def web_server() -> Iterator[tuple[str, int]]:
    def answer() -> None:
        for _ in range(3):
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_what_is_no_broker_is_not_asked_again() -> None:
    with web_server() as address, pytest.raises(NotKafka, match=r"it speaks HTTP: .* 9092 by default \(tried for 0\."):
        BlockingCluster([address], timeout_s=600.0).topics()


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid"])
def test_a_host_that_nobody_knows_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if host != "a..b":
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnknownHost, match=rf"cannot connect to {host}:9092: .* \(tried for \d\.\d s\)"):
        BlockingCluster([(host, 9092)], timeout_s=5.0).topics()


def test_a_name_server_that_is_away_says_nothing_about_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedBroker(topics={"t": TOPIC_ID}) as broker:
        found = socket.getaddrinfo(*broker.address, type=socket.SOCK_STREAM)
        answers = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")] * 3

        def resolve(*_: object, **__: object) -> object:
            if answers:
                raise answers.pop()
            return found

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        # A tenth of this, the patience with unknown names, is less than three pauses.
        cluster = BlockingCluster([("broker", broker.port)], timeout_s=3.0)
        assert list(cluster.topics()) == ["t"]
        assert not answers
        cluster.close()


def test_one_that_may_come_back_is_waited_for_beside_one_that_is_none() -> None:
    with ScriptedBroker() as gone:
        address = gone.address
    with web_server() as other, pytest.raises(BrokerUnreachable, match="Connection refused") as raised:
        BlockingCluster([address, other], timeout_s=0.1).topics()
    assert type(raised.value) is BrokerUnreachable


def test_a_broker_whose_name_is_gone_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedBroker(topics={"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=10.0)
        assert list(cluster.topics()) == ["t"]
        broker.hang_up()
        opened, failures = cluster._open, [NotKafka("a proxy answers"), UnknownHost("its name is gone")]

        def open_later(address: Address, timeout_s: float | None = None) -> BlockingConnection:
            if failures:
                raise failures.pop()
            return opened(address, timeout_s)

        monkeypatch.setattr(cluster, "_open", open_later)
        assert list(cluster.topics()) == ["t"]
        assert not failures
        cluster.close()


def test_a_broker_that_hangs_up_is_asked_again() -> None:
    with ScriptedBroker(topics={"t": TOPIC_ID}) as broker:
        metadata = broker.scripts[Api.METADATA]
        replies: list[Reply] = [None, None]
        broker.scripts[Api.METADATA] = lambda request: replies.pop() if replies else metadata(request)
        cluster = BlockingCluster([broker.address], timeout_s=10.0)
        assert list(cluster.topics()) == ["t"]
        assert len(broker.asked(MetadataRequest)) == 3
        broker.hang_up()
        assert list(cluster.topics()) == ["t"], "the kept connection is gone, and that is noticed"
        cluster.close()


def test_an_address_that_hangs_leaves_time_for_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging, ScriptedBroker(topics={"t": TOPIC_ID}) as broker:
        address: Address = hanging.getsockname()[:2]  # the system accepts, and nobody answers
        cluster = BlockingCluster([address, broker.address], timeout_s=2.0)
        assert list(cluster.topics()) == ["t"]
        cluster.close()


def test_credentials_are_not_tried_again() -> None:
    secured = ClientSecurity("SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="u", password="p")
    with ScriptedBroker() as broker, pytest.raises(AuthenticationFailed):
        BlockingCluster([broker.address], security=secured, timeout_s=60.0).topics()


def offsets_answer(code: int, offset: int = -1) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 9999])
def test_a_leader_that_moved(code: int) -> None:
    replies = [offsets_answer(0, 42), offsets_answer(code)]
    with ScriptedBroker({Api.LIST_OFFSETS: lambda _: replies.pop()}, {"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=10.0)
        tp = TopicPartition("t", 0)
        assert cluster.list_offsets({tp: -1})[tp].offset == 42
        assert len(broker.asked(MetadataRequest)) == 2, "asked anew who leads"
        cluster.close()


def test_the_whole_time_is_told_when_nobody_answers_in_time() -> None:
    ended = threading.Event()

    def silent(_: Message) -> None:
        ended.wait(10)

    with ScriptedBroker({Api.LIST_OFFSETS: silent}, {"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=0.3)
        told = rf"^no answer to ListOffsets from 127.0.0.1:{broker.port} \(tried for \d\.\d s\)$"
        with pytest.raises(RequestTimedOut, match=told):
            cluster.list_offsets({TopicPartition("t", 0): -1})
        ended.set()
        cluster.close()


def test_a_refusal_is_not_tried_again() -> None:
    with ScriptedBroker({Api.LIST_OFFSETS: lambda _: offsets_answer(29)}, {"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=60.0)
        with pytest.raises(ApiError, match="offsets of t-0: TOPIC_AUTHORIZATION_FAILED"):
            cluster.list_offsets({TopicPartition("t", 0): -1})
        assert len(broker.asked(ListOffsetsRequest)) == 1
        cluster.close()


def test_an_election_that_takes_too_long() -> None:
    def no_leader(request: Message) -> Reply:
        answer = broker._metadata(request)
        assert isinstance(answer, MetadataResponse)
        for topic in answer.topics:
            topic.partitions[0].leader_id = -1
        return answer

    with ScriptedBroker({Api.METADATA: no_leader}, {"t": TOPIC_ID}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=0.3)
        with pytest.raises(ApiError, match=r"t-0 has no leader \(tried for"):
            cluster.leader(TopicPartition("t", 0))
        assert len(broker.asked(MetadataRequest)) > 2
        assert cluster.topics()["t"].partitions[0].leader_id == -1
        cluster.close()


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_is_not_ready(code: ErrorCode, version: int) -> None:
    def commit_answer(number: int) -> Reply:
        partition = OffsetCommitResponsePartition(partition_index=0, error_code=number)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])])

    finds: list[Reply] = [
        FindCoordinatorResponse(node_id=1, coordinators=[Coordinator(key="g", node_id=1)]),
        FindCoordinatorResponse(error_code=15, coordinators=[Coordinator(key="g", error_code=15)]),
        FindCoordinatorResponse(node_id=1, coordinators=[Coordinator(key="g", node_id=1)]),
    ]
    commits = [commit_answer(0), commit_answer(code)]
    scripts = {Api.FIND_COORDINATOR: lambda _: finds.pop(), Api.OFFSET_COMMIT: lambda _: commits.pop()}
    with ScriptedBroker(scripts, {"t": TOPIC_ID}, {Api.FIND_COORDINATOR: version}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=10.0)
        cluster.commit_offsets("g", {TopicPartition("t", 0): 1})
        assert len(broker.asked(FindCoordinatorRequest)) == 3
        assert len(broker.asked(OffsetCommitRequest)) == 2
        request = broker.asked(OffsetCommitRequest)[1]
        assert isinstance(request, OffsetCommitRequest)
        assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
        cluster.close()


def brokers(*entries: tuple[int, tuple[str, int]]) -> MetadataResponse:
    found = [MetadataResponseBroker(node_id=node_id, host=host, port=port) for node_id, (host, port) in entries]
    return MetadataResponse(brokers=found, topics=[])


def test_a_broker_whose_fellow_died_is_where_it_says() -> None:
    """Not at the address of the dead one, which was the way in."""
    with ScriptedBroker() as first, ScriptedBroker() as second:
        both = brokers((1, first.address), (2, second.address))
        first.scripts[Api.METADATA] = second.scripts[Api.METADATA] = lambda _: both
        cluster = BlockingCluster([first.address], timeout_s=10.0)
        cluster.topics()
        assert cluster.connection(2, "control").address == second.address
        alone = brokers((2, second.address))
        first.scripts[Api.METADATA] = second.scripts[Api.METADATA] = lambda _: alone
        cluster.topics()
        assert cluster.connection(2, "data").address == second.address
        leased = cluster.lease(2)
        assert leased.address == second.address
        cluster.give_back(leased)
        cluster.close()


def test_the_only_broker_is_where_it_was_found_else_where_it_says() -> None:
    with ScriptedBroker() as inside:
        with ScriptedBroker() as edge:
            edge.scripts[Api.METADATA] = lambda _: brokers((1, inside.address))
            cluster = BlockingCluster([edge.address], timeout_s=10.0)
            cluster.topics()
            assert cluster.connection(1, "control").address == edge.address
        assert cluster.connection(1, "data").address == inside.address
        leased = cluster.lease(1)
        assert leased.address == inside.address
        leased.close()
        cluster.close()


def test_a_producer_id_that_takes_a_while() -> None:
    replies = [InitProducerIdResponse(producer_id=7), InitProducerIdResponse(error_code=14)]
    with ScriptedBroker({Api.INIT_PRODUCER_ID: lambda _: replies.pop()}) as broker:
        cluster = BlockingCluster([broker.address], timeout_s=10.0)
        assert cluster.init_producer_id() == (7, 0)
        cluster.close()
