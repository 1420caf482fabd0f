"""Metadata: all, none, by id, and topics that come into being by being asked for."""

from __future__ import annotations

import time

import pytest
from wire_client import WireClient

from penstock.cluster.quorum import Quorum
from penstock.model.errors import StorageError
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.primitives import NULL_UUID


def ask(wire: WireClient, version: int, *names: str, create: bool = True) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    response: MetadataResponse = wire.call(
        Api.METADATA, version, MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    )
    return response


class TestAutoCreation:
    @pytest.mark.parametrize("version", range(14))
    def test_the_first_answer_is_unknown_and_a_later_one_has_it(self, wire: WireClient, version: int) -> None:
        name = f"auto-{version}"
        first = ask(wire, version, name).topics[0]
        assert (first.error_code, first.partitions) == (3, [])
        deadline = time.monotonic() + 5
        while (topic := ask(wire, version, name).topics[0]).error_code and time.monotonic() < deadline:
            time.sleep(0.01)
        assert topic.error_code == 0
        assert [partition.leader_id for partition in topic.partitions] == [1]

    @pytest.mark.parametrize("version", range(4, 14))
    def test_not_when_the_request_does_not_allow_it(self, wire: WireClient, version: int) -> None:
        name = f"not-{version}"
        for _ in range(2):
            assert ask(wire, version, name, create=False).topics[0].error_code == 3

    def test_not_when_the_broker_does_not_allow_it(self) -> None:
        with Broker({"auto.create.topics.enable": "false"}) as broker, WireClient(broker.port) as client:
            for _ in range(3):
                assert ask(client, 12, "never").topics[0].error_code == 3
                time.sleep(0.02)

    @pytest.mark.parametrize(
        ("setting", "code"), [({"default.replication.factor": "3"}, 38), ({"num.partitions": "100000"}, 44)]
    )
    def test_what_cannot_be_created_is_answered(
        self, setting: dict[str, str], code: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Broker(setting) as broker, WireClient(broker.port) as client:
            for version in (0, 3, 12):
                assert ask(client, version, "impossible").topics[0].error_code == code
            assert ask(client, 12, "impossible", create=False).topics[0].error_code == 3
        assert "exception was never retrieved" not in caplog.text

    def test_a_creation_that_fails_later_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        propose = Quorum.propose

        async def fail(self: Quorum, data: bytes) -> int:
            if b"unlucky" not in data:
                return await propose(self, data)  # what the controller does by itself at the same time
            raise StorageError("no space left")

        with Broker() as broker, WireClient(broker.port) as client:
            monkeypatch.setattr(Quorum, "propose", fail)
            assert ask(client, 12, "unlucky").topics[0].error_code == 3
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            "topic unlucky was not created for a client that asked for it: no space left"
        ]

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250])
    def test_bad_names(self, wire: WireClient, name: str) -> None:
        assert ask(wire, 12, name).topics[0].error_code == 17

    def test_many_clients_at_once(self, wire_broker: Broker) -> None:
        clients = [WireClient(wire_broker.port) for _ in range(10)]
        request = MetadataRequest(topics=[MetadataRequestTopic(name="auto-shared")])
        for client in clients:
            client.send(Api.METADATA, 12, request)
        assert {client.receive(Api.METADATA, 12)[1].topics[0].error_code for client in clients} <= {0, 3}
        time.sleep(0.1)
        ids = set()
        for client in clients:
            with client:
                topic = ask(client, 12, "auto-shared").topics[0]
                assert topic.error_code == 0
                ids.add(topic.topic_id)
        assert len(ids) == 1


class TestWhichTopics:
    @pytest.mark.parametrize("version", range(14))
    def test_all_and_none(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic()
        none = MetadataRequest(topics=[])
        everything = none if version == 0 else MetadataRequest(topics=None)
        assert topic in [found.name for found in wire.call(Api.METADATA, version, everything).topics]
        if version > 0:
            assert wire.call(Api.METADATA, version, none).topics == []

    @pytest.mark.parametrize("version", [12, 13])
    def test_by_id(self, wire: WireClient, version: int) -> None:
        topic = wire.create_topic(partitions=3)
        topic_id = wire.describe(topic).topic_id
        asked = [
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name=None, topic_id=b"?" * 16),
        ]
        known, unknown = wire.call(Api.METADATA, version, MetadataRequest(topics=asked)).topics
        assert (known.error_code, known.name, len(known.partitions)) == (0, topic, 3)
        assert (unknown.error_code, unknown.topic_id) == (100, b"?" * 16)

    @pytest.mark.parametrize("version", [12, 13])
    @pytest.mark.parametrize("name", ["", "another"])
    def test_an_id_goes_before_the_name_beside_it(self, wire: WireClient, version: int, name: str) -> None:
        # The Java client leaves the name as it is by default: empty, not null.
        topic = wire.create_topic()
        topic_id = wire.describe(topic).topic_id
        topics = [MetadataRequestTopic(name=name, topic_id=topic_id), MetadataRequestTopic(name="another")]
        response: MetadataResponse = wire.call(Api.METADATA, version, MetadataRequest(topics=topics))
        assert [(found.error_code, found.name, found.topic_id) for found in response.topics] == [(0, topic, topic_id)]
        unknown = [MetadataRequestTopic(name=name, topic_id=b"?" * 16)]
        response = wire.call(Api.METADATA, version, MetadataRequest(topics=unknown))
        assert [(found.error_code, found.name) for found in response.topics] == [(100, None)]

    def test_a_topic_that_is_named_twice_is_answered_once(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert [found.name for found in ask(wire, 12, topic, topic).topics] == [topic]
        twice = [MetadataRequestTopic(name=None, topic_id=wire.describe(topic).topic_id)] * 2
        response: MetadataResponse = wire.call(Api.METADATA, 12, MetadataRequest(topics=twice))
        assert [found.name for found in response.topics] == [topic]

    def test_the_cluster(self, wire: WireClient, wire_broker: Broker) -> None:
        response = ask(wire, 12)
        (broker,) = response.brokers
        assert (broker.host, broker.port) == ("127.0.0.1", wire_broker.port)
        assert response.controller_id == broker.node_id
        assert response.cluster_id
        assert response.cluster_id == ask(wire, 12).cluster_id

    def test_authorized_operations_only_when_asked(self, wire: WireClient) -> None:
        topic = wire.create_topic()
        assert wire.describe(topic).topic_authorized_operations == -(2**31)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], include_topic_authorized_operations=True)
        assert wire.call(Api.METADATA, 12, asked).topics[0].topic_authorized_operations > 0


def test_a_new_topic_is_there_at_once_with_an_id_of_its_own(wire: WireClient) -> None:
    ids = {wire.describe(wire.create_topic()).topic_id for _ in range(5)}
    assert len(ids) == 5
    assert NULL_UUID not in ids


def test_the_address_is_the_one_the_client_used() -> None:
    with Broker({"listeners": "PLAINTEXT://0.0.0.0:0"}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with WireClient(port) as client:
            found = ask(client, 12).brokers[0]
            assert (found.host, found.port) == ("127.0.0.1", port)
