"""Brokers and partitions as clients see them: Metadata, DescribeCluster, DescribeTopicPartitions and the view."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from controller_requests import LOCAL, as_sent, ask, context

from penstock.api.admin.topic_creation import TopicCreation
from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.handlers.describe_cluster import DescribeClusterHandler
from penstock.api.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from penstock.api.handlers.list_config_resources import ListConfigResourcesHandler
from penstock.api.handlers.metadata import MetadataHandler
from penstock.api.metadata_answers import PARTITIONS_PER_STEP, VARIANTS_KEPT, WHOLES_KEPT
from penstock.api.turns import Turns
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterCreated,
    PartitionChanged,
    TopicCreated,
)
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_cluster import DescribeClusterRequest
from penstock.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.wire.messages.list_config_resources import ListConfigResourcesRequest
from penstock.wire.messages.metadata import MetadataRequest
from penstock.wire.primitives import Message

TOPIC_ID = "ab" * 16
VOTERS = {1: ("h1", 9093), 2: ("h2", 9093), 3: ("h3", 9093)}


def register(image: MetadataImage, broker_id: int, *listeners: str, is_fenced: bool = False) -> None:
    endpoints = {name: (f"{name.lower()}{broker_id}", 9090 + broker_id) for name in listeners or ("PLAINTEXT",)}
    rack = f"r{broker_id}"
    image.replay(BrokerRegistered(broker_id, 10 + broker_id, "00" * 16, endpoints, rack, is_fenced))


@pytest.fixture
def image() -> MetadataImage:
    """Three brokers, the third fenced; a topic of three partitions."""
    made = MetadataImage()
    made.replay(ClusterCreated("c" * 22))
    for broker_id in (3, 1, 2):
        register(made, broker_id, is_fenced=broker_id == 3)
    made.replay(TopicCreated("t", TOPIC_ID, ((1, 2, 3), (2, 3, 1), (3, 1, 2))))
    return made


def view(image: MetadataImage, active: int | None = 2, **options: Any) -> ClusterView:
    return ClusterView(1, "own rack", image, {}, lambda: active, lambda: VOTERS, ["CONTROLLER"], **options)


def metadata(cluster: ClusterView, version: int = 12, listener_name: str = "PLAINTEXT") -> Any:
    creation = cast(TopicCreation, SimpleNamespace())
    return ask(
        MetadataHandler(cluster, creation), MetadataRequest(topics=None if version else []), version, listener_name
    )


def named(response: Any) -> list[tuple[int, str, int, str | None]]:
    return [(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers]


class TestOneBroker:
    def test_without_a_registration_names_where_it_was_found(self) -> None:
        assert named(metadata(view(MetadataImage(), None))) == [(1, *LOCAL, "own rack")]

    def test_registered_it_still_does(self) -> None:
        image = MetadataImage()
        register(image, 1)
        response = metadata(view(image, 1))
        assert named(response) == [(1, *LOCAL, "own rack")]
        assert response.controller_id == 1

    def test_an_advertised_listener_wins(self) -> None:
        cluster = ClusterView(1, None, MetadataImage(), {"OUT": ("public", 1234)})
        assert named(metadata(cluster, listener_name="OUT")) == [(1, "public", 1234, None)]
        assert named(metadata(cluster, listener_name="IN")) == [(1, *LOCAL, None)]

    def test_leads_although_it_is_not_registered(self) -> None:
        image = MetadataImage()
        image.replay(TopicCreated("t", TOPIC_ID, ((1,),)))
        (partition,) = metadata(view(image, None)).topics[0].partitions
        assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (0, 1, [])


class TestSeveralBrokers:
    def test_live_ones_are_named_by_what_they_registered(self, image: MetadataImage) -> None:
        assert named(metadata(view(image))) == [(1, "plaintext1", 9091, "r1"), (2, "plaintext2", 9092, "r2")]

    def test_every_broker_says_the_same(self, image: MetadataImage) -> None:
        other = ClusterView(2, None, image, {"PLAINTEXT": ("elsewhere", 1)}, lambda: 2)
        assert metadata(other).brokers == metadata(view(image)).brokers

    def test_addresses_are_those_of_the_clients_listener(self) -> None:
        image = MetadataImage()
        register(image, 1, "INSIDE", "OUTSIDE")
        register(image, 2, "OUTSIDE", "INSIDE")
        register(image, 3, "INSIDE")
        hosts = {
            name: [broker.host for broker in metadata(view(image), listener_name=name).brokers]
            for name in ("INSIDE", "OUTSIDE", "NEITHER")
        }
        assert hosts == {
            "INSIDE": ["inside1", "inside2", "inside3"],
            "OUTSIDE": ["outside1", "outside2", "inside3"],
            "NEITHER": ["inside1", "outside2", "inside3"],
        }

    def test_endpoint_of_knows_live_brokers_only(self, image: MetadataImage) -> None:
        cluster = view(image)
        ctx = context(DescribeClusterHandler(cluster), 0)
        assert [cluster.endpoint_of(broker_id, ctx) for broker_id in (1, 2, 3, 4, -1)] == [
            ("plaintext1", 9091),
            ("plaintext2", 9092),
            None,
            None,
            None,
        ]

    @pytest.mark.parametrize(("active", "told"), [(2, 2), (3, 1), (9, 1), (None, 1)])
    def test_the_controller_is_one_that_clients_can_reach(
        self, image: MetadataImage, active: int | None, told: int
    ) -> None:
        assert metadata(view(image, active)).controller_id == told

    def test_a_fenced_broker_names_another_controller(self, image: MetadataImage) -> None:
        image.replay(BrokerChanged(1, is_fenced=True))
        assert metadata(view(image, 1)).controller_id == 2
        image.replay(BrokerChanged(2, is_fenced=True))
        assert metadata(view(image, 1)).controller_id == -1

    def test_resources_with_settings_are_the_live_brokers(self, image: MetadataImage) -> None:
        response = ask(ListConfigResourcesHandler(view(image)), ListConfigResourcesRequest(resource_types=[4]))
        assert [found.resource_name for found in response.config_resources] == ["1", "2"]


class TestPartitions:
    def test_one_led_by_a_fenced_broker_has_no_leader(self, image: MetadataImage) -> None:
        partitions = metadata(view(image)).topics[0].partitions
        assert [(p.error_code, p.leader_id, p.offline_replicas) for p in partitions] == [
            (0, 1, [3]),
            (0, 2, [3]),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1, [3]),
        ]
        assert [p.replica_nodes for p in partitions] == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]

    def test_v0_names_no_replica_that_is_not_there(self, image: MetadataImage) -> None:
        image.replay(PartitionChanged(TOPIC_ID, 0, isr=(1, 2)))
        partitions = metadata(view(image), version=0).topics[0].partitions
        assert [(p.error_code, p.replica_nodes, p.isr_nodes) for p in partitions] == [
            (ErrorCode.REPLICA_NOT_AVAILABLE, [1, 2], [1, 2]),
            (ErrorCode.REPLICA_NOT_AVAILABLE, [2, 1], [2, 1]),
            (ErrorCode.LEADER_NOT_AVAILABLE, [1, 2], [1, 2]),
        ]

    def test_nobody_leads(self, image: MetadataImage) -> None:
        image.replay(PartitionChanged(TOPIC_ID, 0, leader=-1, isr=(), elr=(1,), last_known_elr=(2,)))
        (partition, *_) = metadata(view(image)).topics[0].partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 1)

    def test_eligible_leaders_are_described(self, image: MetadataImage) -> None:
        image.replay(PartitionChanged(TOPIC_ID, 0, leader=-1, isr=(), elr=(1, 2), last_known_elr=(3,)))
        handler = DescribeTopicPartitionsHandler(view(image), max_partitions=100)
        (topic,) = ask(handler, DescribeTopicPartitionsRequest()).topics
        assert [
            (p.leader_id, p.isr_nodes, p.eligible_leader_replicas, p.last_known_elr, p.offline_replicas)
            for p in topic.partitions
        ] == [(-1, [], [1, 2], [3], [3]), (2, [2, 3, 1], [], [], [3]), (-1, [3, 1, 2], [], [], [3])]


class TestLeaderThatHasJustGone:
    """Broker 2 leads, and its connections broke a moment ago."""

    async def begin(self, image: MetadataImage) -> tuple[asyncio.Future[Any], list[None]]:
        self.suspects = [2]
        cluster = view(image, suspects=lambda: self.suspects)
        answers: list[None] = []
        named_brokers = cluster.brokers

        def counting(*asked: Any, **options: Any) -> Any:
            answers.append(None)
            return named_brokers(*asked, **options)

        cluster.brokers = counting  # type: ignore[method-assign]
        handler = MetadataHandler(cluster, cast(TopicCreation, SimpleNamespace()))
        pending = handler.handle(context(handler, 12), MetadataRequest(topics=None))
        assert asyncio.iscoroutine(pending)
        answer = asyncio.ensure_future(pending)
        await asyncio.sleep(0.05)
        assert not answer.done()
        return answer, answers

    async def test_the_answer_names_the_next_one_and_is_put_together_when_that_is_there(
        self, image: MetadataImage
    ) -> None:
        answer, answers = await self.begin(image)
        assert len(answers) == 1, "nothing has changed"
        image.replay(PartitionChanged(TOPIC_ID, 1, leader=1, isr=(1,)))
        assert as_sent(Api.METADATA, 12, await answer).topics[0].partitions[1].leader_id == 1
        assert len(answers) == 2

    async def test_one_that_is_back_is_named(self, image: MetadataImage) -> None:
        answer, answers = await self.begin(image)
        self.suspects = []
        assert as_sent(Api.METADATA, 12, await answer).topics[0].partitions[1].leader_id == 2
        assert len(answers) == 1


class TestManyClientsWhenALeaderFalls:
    TOPICS, CLIENTS = 600, 40

    async def test_the_answer_is_put_together_once_and_a_step_at_a_time(self, image: MetadataImage) -> None:
        for at in range(self.TOPICS - 1):
            image.replay(TopicCreated(f"t{at:04}", f"{at:032x}", ((2, 1, 3), (1, 2, 3), (2, 1, 3))))
        suspects = [2]
        handler = MetadataHandler(view(image, suspects=lambda: suspects), cast(TopicCreation, SimpleNamespace()))
        turns = Turns()
        waiting = [asyncio.ensure_future(self.ask_for_all(handler, turns)) for _ in range(self.CLIENTS)]
        for _ in range(2000):
            await asyncio.sleep(0)
            if handler.answers.encoded_wholes and not turns._waiting:
                break
        await asyncio.sleep(0.05)
        described, wholes = handler.answers.described, handler.answers.encoded_wholes
        assert (described, wholes) == (self.TOPICS, 1), "they began together, too"
        for at in range(self.TOPICS - 1):
            for partition in (0, 2):
                image.replay(PartitionChanged(f"{at:032x}", partition, leader=1, isr=(1,)))
        image.replay(PartitionChanged(TOPIC_ID, 1, leader=1, isr=(1,)))
        most, seen = 0, described
        while not all(one.done() for one in waiting):
            await asyncio.sleep(0)
            most, seen = max(most, handler.answers.described - seen), handler.answers.described
        assert handler.answers.encoded_wholes == wholes + 1
        assert handler.answers.described == described + self.TOPICS
        assert most <= 2 * PARTITIONS_PER_STEP, "topics described in one turn of the loop"
        answers = {id(one.result()): one.result() for one in waiting}
        (answer,) = answers.values()
        leaders = {part.leader_id for topic in as_sent(Api.METADATA, 12, answer).topics for part in topic.partitions}
        assert leaders == {1, -1}

    async def test_who_asks_later_is_not_kept_waiting_by_an_answer_that_is_out_of_date(
        self, image: MetadataImage
    ) -> None:
        for at in range(self.TOPICS):
            image.replay(TopicCreated(f"t{at:04}", f"{at:032x}", ((2, 1, 3),)))
        handler = MetadataHandler(view(image), cast(TopicCreation, SimpleNamespace()))
        turns = Turns()
        early = asyncio.ensure_future(self.ask_for_all(handler, turns))
        await asyncio.sleep(0)
        assert not early.done()
        image.replay(PartitionChanged(TOPIC_ID, 1, leader=1, isr=(1,)))
        late = asyncio.ensure_future(self.ask_for_all(handler, turns))
        for answer in await asyncio.gather(early, late):
            (topic,) = [one for one in as_sent(Api.METADATA, 12, answer).topics if one.name == "t"]
            assert topic.partitions[1].leader_id == 1
        assert not handler.answers._under_way

    async def ask_for_all(self, handler: MetadataHandler, turns: Turns) -> Message:
        ctx = cast(RequestContext, context(handler, 12))
        ctx.turns = turns
        answer = handler.handle(ctx, MetadataRequest(topics=None))
        assert answer is not None
        return answer if isinstance(answer, Message) else await answer


def test_only_bytes_are_kept_of_an_answer(image: MetadataImage) -> None:
    handler = MetadataHandler(view(image), cast(TopicCreation, SimpleNamespace()))
    for version in range(1, 14):
        for operations in (False, True):
            asked = MetadataRequest(topics=None, include_topic_authorized_operations=operations)
            assert ask(handler, asked, version).topics
    answers = handler.answers
    assert len(answers._topics) == VARIANTS_KEPT
    assert len(answers._wholes) == WHOLES_KEPT
    assert not any(whole.topics or whole.brokers for _, whole in answers._wholes.values())
    assert not any(isinstance(topic, Message) for known in answers._topics.values() for topic in known.values())


class TestDescribeCluster:
    def describe(self, image: MetadataImage, version: int, listener_name: str = "PLAINTEXT", **asked: Any) -> Any:
        handler = DescribeClusterHandler(view(image))
        return ask(handler, DescribeClusterRequest(**asked), version, listener_name)

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_live_brokers(self, image: MetadataImage, version: int) -> None:
        response = self.describe(image, version)
        assert response.controller_id == 2
        assert [(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in response.brokers] == [
            (1, "plaintext1", 9091, "r1", False),
            (2, "plaintext2", 9092, "r2", False),
        ]

    def test_fenced_ones_if_asked_for(self, image: MetadataImage) -> None:
        response = self.describe(image, 2, include_fenced_brokers=True)
        assert [(b.broker_id, b.is_fenced) for b in response.brokers] == [(1, False), (2, False), (3, True)]

    def test_controllers_on_their_listener(self, image: MetadataImage) -> None:
        response = self.describe(image, 1, "CONTROLLER", endpoint_type=2)
        assert (response.error_code, response.endpoint_type, response.controller_id) == (0, 2, 2)
        assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [
            (voter, host, port) for voter, (host, port) in VOTERS.items()
        ]

    def test_no_controllers_on_a_brokers_listener(self, image: MetadataImage) -> None:
        response = self.describe(image, 1, endpoint_type=2)
        assert response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        assert "endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER" in response.error_message

    def test_an_unknown_endpoint_type(self, image: MetadataImage) -> None:
        response = self.describe(image, 1, endpoint_type=3)
        assert response.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
