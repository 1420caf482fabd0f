"""Every served API in every advertised version is answered with something its schema can read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from wire_client import WireClient, batch, fetch_request, produce_request

from penstock.testing import Broker
from penstock.wire.apis import Api, api
from penstock.wire.codec import decode, read_response_header
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.wire.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.primitives import Message

# What a Kafka 4.3 broker advertises for the APIs served here. Produce says 0 and refuses 0-2. InitProducerId 6 is
# unstable in Kafka: a broker offers it only if unstable.api.versions.enable is true.
ADVERTISED = {
    Api.PRODUCE: (0, 13),
    Api.FETCH: (4, 18),
    Api.LIST_OFFSETS: (1, 11),
    Api.METADATA: (0, 13),
    Api.FIND_COORDINATOR: (0, 6),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 6),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.ALTER_CONFIGS: (0, 2),
    Api.DESCRIBE_LOG_DIRS: (1, 5),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.DESCRIBE_CLUSTER: (0, 2),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    Api.LIST_CONFIG_RESOURCES: (0, 1),
    Api.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    Api.ELECT_LEADERS: (0, 2),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    Api.DESCRIBE_QUORUM: (0, 2),
    Api.UPDATE_FEATURES: (0, 2),
    Api.CREATE_ACLS: (1, 3),
    Api.DELETE_ACLS: (1, 3),
    Api.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 2),
    Api.WRITE_TXN_MARKERS: (1, 2),
}
# What is asked of a transactional id is answered in `test_wire_transactions`; here nobody has one.
TRANSACTIONS = {
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.TXN_OFFSET_COMMIT: (0, 5),
}
# What is asked of a group is answered in `test_group_wire` and `test_consumer_group_wire`; here nobody has one.
GROUPS = {
    Api.OFFSET_COMMIT: (2, 10),
    Api.OFFSET_FETCH: (1, 10),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 6),
    Api.LIST_GROUPS: (0, 5),
    Api.DELETE_GROUPS: (0, 2),
    Api.OFFSET_DELETE: (0, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    Api.CONSUMER_GROUP_DESCRIBE: (0, 1),
}
# Changes of the cluster itself, which a broker that is all of it refuses; ACLs without an authorizer.
REFUSED = {
    Api.UNREGISTER_BROKER: (0, 0),
    Api.ADD_RAFT_VOTER: (0, 1),
    Api.REMOVE_RAFT_VOTER: (0, 0),
    Api.DESCRIBE_ACLS: (1, 3),
}
# What brokers say to each other, once the cluster's secret was shown: not advertised, as on Kafka.
AMONG_BROKERS = {
    Api.ALTER_PARTITION: (2, 3),
    Api.BROKER_REGISTRATION: (0, 4),
    Api.BROKER_HEARTBEAT: (0, 2),
    Api.ALLOCATE_PRODUCER_IDS: (0, 0),
    Api.UPDATE_RAFT_VOTER: (0, 0),
}
EVERY_VERSION = [
    (key, version)
    for key, (first, last) in ADVERTISED.items()
    for version in range(3 if key is Api.PRODUCE else first, last + 1)
]
EVERY_REFUSED_VERSION = [(key, version) for key, (first, last) in REFUSED.items() for version in range(first, last + 1)]
EVERY_VERSION_AMONG_BROKERS = [
    (key, version) for key, (first, last) in AMONG_BROKERS.items() for version in range(first, last + 1)
]
EVERY_COORDINATED_VERSION = [
    (key, version) for key, (first, last) in (GROUPS | TRANSACTIONS).items() for version in range(first, last + 1)
]


class Sample:
    """Requests that make the broker do something, not only say no."""

    def __init__(self, topic: str, topic_id: bytes, new_topic: str) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.new_topic = new_topic

    def request(self, key: Api, version: int) -> Message:
        build: dict[Api, Callable[[], Message]] = {
            Api.PRODUCE: lambda: produce_request(self.topic, batch(b"v"), topic_id=self.topic_id),
            Api.FETCH: lambda: fetch_request(
                self.topic, topic_id=self.topic_id, max_wait_ms=0, session_epoch=0 if version >= 7 else -1
            ),
            Api.LIST_OFFSETS: lambda: ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsTopic(name=self.topic, partitions=[ListOffsetsPartition(timestamp=-1)])],
            ),
            Api.METADATA: lambda: MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)]),
            Api.API_VERSIONS: lambda: ApiVersionsRequest(client_software_name="wire", client_software_version="1"),
            Api.CREATE_TOPICS: lambda: CreateTopicsRequest(
                topics=[CreatableTopic(name=self.new_topic, num_partitions=1, replication_factor=1)]
            ),
            Api.DELETE_TOPICS: lambda: DeleteTopicsRequest(topic_names=["no-such-topic"]),
            Api.DELETE_RECORDS: lambda: DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=self.topic, partitions=[DeleteRecordsPartition(offset=0)])]
            ),
            Api.INIT_PRODUCER_ID: lambda: InitProducerIdRequest(transactional_id=None),
            Api.OFFSET_FOR_LEADER_EPOCH: lambda: OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=self.topic, partitions=[OffsetForLeaderPartition()])]
            ),
            Api.DESCRIBE_CONFIGS: lambda: DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name=self.topic, configuration_keys=None)],
                include_synonyms=True,
                include_documentation=True,
            ),
            Api.CREATE_PARTITIONS: lambda: CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=self.topic, count=2, assignments=None)], validate_only=True
            ),
            Api.ELECT_LEADERS: lambda: ElectLeadersRequest(
                topic_partitions=[TopicPartitions(topic=self.topic, partitions=[0])]
            ),
            Api.ALTER_PARTITION_REASSIGNMENTS: lambda: AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name=self.topic, partitions=[ReassignablePartition(replicas=None)])]
            ),
            Api.DESCRIBE_QUORUM: lambda: DescribeQuorumRequest(
                topics=[RequestTopicData(topic_name="__cluster_metadata", partitions=[RequestPartitionData()])]
            ),
            Api.DESCRIBE_PRODUCERS: lambda: DescribeProducersRequest(
                topics=[TopicRequest(name=self.topic, partition_indexes=[0])]
            ),
        }
        return build[key]() if key in build else api(key).request()


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_is_answered(wire: WireClient, key: Api, version: int) -> None:
    topic = wire.create_topic()
    sample = Sample(topic, wire.describe(topic).topic_id, f"{topic}-new")
    response = wire.call(key, version, sample.request(key, version))
    assert isinstance(response, api(key).response)
    assert getattr(response, "error_code", 0) == 0


@pytest.mark.parametrize(
    ("key", "version"), EVERY_VERSION + EVERY_COORDINATED_VERSION, ids=lambda value: getattr(value, "name", str(value))
)
def test_an_empty_request_is_answered_too(wire: WireClient, key: Api, version: int) -> None:
    request = api(key).request()
    if key is Api.PRODUCE:
        request.acks = 1  # type: ignore[attr-defined]  # the default, 0, asks for silence
    assert isinstance(wire.call(key, version, request), api(key).response)


@pytest.mark.parametrize(
    ("key", "version"), EVERY_REFUSED_VERSION, ids=lambda value: getattr(value, "name", str(value))
)
def test_a_request_that_names_nobody_is_refused(wire: WireClient, key: Api, version: int) -> None:
    response = wire.call(key, version, api(key).request())
    assert isinstance(response, api(key).response)
    assert response.error_code != 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "version"), EVERY_VERSION_AMONG_BROKERS, ids=lambda value: getattr(value, "name", str(value))
)
def test_what_brokers_say_to_each_other_is_taken_from_no_client(wire: WireClient, key: Api, version: int) -> None:
    wire.send(key, version, api(key).request())
    assert wire.is_closed_by_broker()


@pytest.mark.parametrize("version", range(5))
def test_what_is_advertised(wire: WireClient, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="wire", client_software_version="1")
    response: ApiVersionsResponse = wire.call(Api.API_VERSIONS, version, request)
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert ranges == ADVERTISED | GROUPS | TRANSACTIONS | REFUSED
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    if version < 3:
        assert (response.finalized_features_epoch, levels, response.supported_features) == (-1, {}, [])
    else:
        assert response.finalized_features_epoch > 0
        assert (levels["metadata.version"], levels["transaction.version"]) == (25, 2)
        # v3 leaves them out: KAFKA-17011
        can_be_off = {"group.version", "transaction.version"} if version == 3 else set()
        assert {each.name for each in response.supported_features} == set(levels) - can_be_off


class TestApiVersionsOfTheFuture:
    @pytest.mark.parametrize("version", [5, 6, 99, 32767, -1])
    def test_is_answered_in_the_oldest_layout(self, wire: WireClient, version: int) -> None:
        wire.send_frame(struct.pack(">hhih", Api.API_VERSIONS, version, 7, 4) + b"kcat" + b"\x00what ever comes")
        body = wire.receive_frame()
        correlation_id, offset = read_response_header(Api.API_VERSIONS, 0, body)
        response = decode(ApiVersionsResponse, 0, body, offset)
        assert correlation_id == 7
        assert response.error_code == 35
        assert [(entry.api_key, entry.min_version, entry.max_version) for entry in response.api_keys] == [(18, 0, 4)]
        # The client falls back on the same connection.
        again = wire.call(Api.API_VERSIONS, 0, ApiVersionsRequest())
        assert again.error_code == 0


class TestClientSoftware:
    @pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "naïve", "a/b", "."])
    def test_a_bad_name_is_an_invalid_request(self, wire: WireClient, name: str) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        assert wire.call(Api.API_VERSIONS, 3, request).error_code == 42

    @pytest.mark.parametrize("name", ["x", "librdkafka", "apache-kafka-java", "a.b-c", "1"])
    def test_a_good_name_is_none(self, wire: WireClient, name: str) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version="v1.2.3-rc1")
        assert wire.call(Api.API_VERSIONS, 3, request).error_code == 0


class TestTheUnknownClosesTheConnection:
    @pytest.mark.parametrize(
        ("key", "version"),
        [
            (Api.METADATA, 14),
            (Api.METADATA, -1),
            (Api.PRODUCE, 0),
            (Api.PRODUCE, 2),
            (Api.PRODUCE, 14),
            (Api.FETCH, 3),
            (Api.FETCH, 19),
            (Api.LIST_OFFSETS, 0),
            (1234, 0),
            (-7, 0),
            (4, 0),
            (Api.OFFSET_COMMIT, 1),
            (Api.WRITE_TXN_MARKERS, 0),
        ],
    )
    def test_without_a_word(self, wire: WireClient, wire_broker: Broker, key: int, version: int) -> None:
        wire.send_frame(struct.pack(">hhih", key, version, 1, -1) + b"\0" * 32)
        assert wire.is_closed_by_broker()
        with WireClient(wire_broker.port) as other:
            assert other.call(Api.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0

    def test_a_request_cut_short(self, wire: WireClient) -> None:
        wire.send_frame(struct.pack(">hhih", Api.METADATA, 1, 1, -1) + b"\0\0")
        assert wire.is_closed_by_broker()

    @pytest.mark.parametrize("size", [-1, 0, 7, 2**31 - 1])
    def test_an_impossible_frame_size(self, wire: WireClient, size: int) -> None:
        wire.socket.sendall(struct.pack(">i", size) + b"\0" * 16)
        assert wire.is_closed_by_broker()
