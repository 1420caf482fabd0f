from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer

from penstock.model.topic_partition import TopicPartition
from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.spark.options.cluster import cluster_options
from penstock.spark.pipeline.lag import LagMeter, PositionLag
from penstock.spark.source.offsets import SourceOffset
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import AuthenticationFailed, ConnectionLost, NotKafka, UnknownHost

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def read(
    positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] = {}, **fields: Any
) -> list[SourceOffset]:
    return [SourceOffset("g", topic_ids, positions, **fields)]


def test_behind_and_caught_up() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("clicks", 2)
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.submit("clicks", "x", partition=1)
        with LagMeter({"kafka.bootstrap.servers": broker.bootstrap_servers}) as meter:
            assert meter.is_answered()
            assert meter.missing_topics(["clicks", "nope", "clicks"]) == ["nope"]
            assert meter.total(read({FIRST: 0, SECOND: 1})) == 2
            assert not meter.is_caught_up(read({FIRST: 0, SECOND: 1}))
            assert meter.is_caught_up(read({FIRST: 0, SECOND: 3}))
            assert not meter.is_caught_up(read({SECOND: 3})), "a partition that nobody has read"
            admin.add_partitions("clicks", 3)
            assert not meter.is_caught_up(read({FIRST: 0, SECOND: 3})), "a partition that is new"
            admin.delete_topic("clicks")
            assert not meter.is_caught_up(read({FIRST: 0, SECOND: 3}))
            assert meter.total(read({FIRST: 0})) is None


def test_a_topic_created_anew_is_never_caught_up() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        admin.create_topic("clicks", 1)
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.submit("clicks", "x")
        with LagMeter(options) as meter, closing(BlockingCluster(cluster_options(options).bootstrap)) as cluster:
            ids = {"clicks": cluster.topics(["clicks"])["clicks"].topic_id}
            assert meter.is_caught_up(read({FIRST: 3}, ids))
            assert meter.lags(read({FIRST: 3}, ids)) == [PositionLag("clicks", 0, 3, 3)]
            admin.delete_topic("clicks")
            admin.create_topic("clicks", 1)
            assert not meter.is_caught_up(read({FIRST: 3})), "shorter, though its id is not known"
            with BlockingProducer(broker.bootstrap_servers) as producer:
                for _ in range(3):
                    producer.submit("clicks", "y")
            assert not meter.is_caught_up(read({FIRST: 3}, ids)), "as long as the one before"
            (lag,) = meter.lags(read({FIRST: 3}, ids))
            assert (lag.end, lag.lag) == (3, None)
            assert lag.loss == "topic clicks was deleted and created again since it was read"
            assert meter.total(read({FIRST: 3}, ids)) is None


def test_offsets_are_compared_with_their_own_cluster() -> None:
    with Broker() as ours, Broker() as other:
        for broker, count in ((ours, 3), (other, 9)):
            with BlockingAdmin(broker.bootstrap_servers) as admin:
                admin.create_topic("clicks", 1)
            with BlockingProducer(broker.bootstrap_servers) as producer:
                for _ in range(count):
                    producer.submit("clicks", "x")
        there = {"kafka.bootstrap.servers": other.bootstrap_servers}
        with closing(BlockingCluster(cluster_options(there).bootstrap)) as cluster:
            cluster.brokers()
            elsewhere = cluster.cluster_id
        assert elsewhere
        both = [*read({FIRST: 3}), *read({FIRST: 4}, cluster=elsewhere)]
        with LagMeter({"kafka.bootstrap.servers": ours.bootstrap_servers}) as meter:
            assert meter.is_caught_up(both[:1])
            assert not meter.is_caught_up(both), "nothing is known of the other cluster"
            assert [one.is_elsewhere for one in meter.lags(both)] == [False, True]
            assert meter.total(both) == 0
            meter.know(there)
            meter.know(there)
            assert sorted(one.lag or 0 for one in meter.lags(both)) == [0, 5]
            assert meter.total(both) == 5
            # A source that is further behind counts.
            assert meter.total([*both, *read({FIRST: 1}, cluster=elsewhere)]) == 8


def test_query_of_committed_records_is_caught_up_before_an_open_transaction() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("clicks", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "open"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("clicks", b"x", partition=0)
        assert producer.flush(30) == 0
        with LagMeter({"kafka.bootstrap.servers": broker.bootstrap_servers}) as meter:
            assert meter.is_caught_up(read({FIRST: 0}, read_committed=True))
            assert meter.total(read({FIRST: 0}, read_committed=True)) == 0
            assert meter.total(read({FIRST: 0})) == 3
            producer.abort_transaction(30)
            assert meter.total(read({FIRST: 0}, read_committed=True)) == 4, "with the marker"


def test_nobody_answers() -> None:
    with LagMeter({"kafka.bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.2) as meter:
        assert not meter.is_answered()
        assert meter.total(read({FIRST: 0})) is None
        assert meter.total([]) is None
        assert not meter.is_caught_up(read({FIRST: 0}))


def test_who_is_no_broker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with LagMeter({"kafka.bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.2) as meter:
        for error, is_answered in (
            (NotKafka("it speaks HTTP"), True),
            (AuthenticationFailed("no such user"), True),
            (UnknownHost("no such name"), False),
            (ConnectionLost("gone"), False),
        ):
            monkeypatch.setattr(meter._looking, "topics", Mock(side_effect=error))
            assert meter.is_answered() is is_answered, error
