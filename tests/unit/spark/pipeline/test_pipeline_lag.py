from __future__ import annotations

from contextlib import closing
from unittest.mock import Mock

import pytest

from penstock.model.topic_partition import TopicPartition
from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.spark.options.cluster import cluster_options
from penstock.spark.pipeline.lag import LagMeter, PositionLag
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import AuthenticationFailed, ConnectionLost, NotKafka, UnknownHost

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def test_behind_and_caught_up() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("clicks", 2)
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.submit("clicks", "x", partition=1)
        with LagMeter({"kafka.bootstrap.servers": broker.bootstrap_servers}) as meter:
            assert meter.is_answered()
            assert meter.missing_topics(["clicks", "nope", "clicks"]) == ["nope"]
            assert meter.total({FIRST: 0, SECOND: 1}, {}) == 2
            assert not meter.is_caught_up({FIRST: 0, SECOND: 1}, {})
            assert meter.is_caught_up({FIRST: 0, SECOND: 3}, {})
            assert not meter.is_caught_up({SECOND: 3}, {}), "a partition that nobody has read"
            admin.add_partitions("clicks", 3)
            assert not meter.is_caught_up({FIRST: 0, SECOND: 3}, {}), "a partition that is new"
            admin.delete_topic("clicks")
            assert not meter.is_caught_up({FIRST: 0, SECOND: 3}, {})
            assert meter.total({FIRST: 0}, {}) is None


def test_a_topic_created_anew_is_never_caught_up() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        admin.create_topic("clicks", 1)
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.submit("clicks", "x")
        with LagMeter(options) as meter, closing(BlockingCluster(cluster_options(options).bootstrap)) as cluster:
            ids = {"clicks": cluster.topics(["clicks"])["clicks"].topic_id}
            assert meter.is_caught_up({FIRST: 3}, ids)
            assert meter.lags({FIRST: 3}, ids) == [PositionLag("clicks", 0, 3, 3)]
            admin.delete_topic("clicks")
            admin.create_topic("clicks", 1)
            assert not meter.is_caught_up({FIRST: 3}, {}), "shorter, though its id is not known"
            with BlockingProducer(broker.bootstrap_servers) as producer:
                for _ in range(3):
                    producer.submit("clicks", "y")
            assert not meter.is_caught_up({FIRST: 3}, ids), "as long as the one before"
            (lag,) = meter.lags({FIRST: 3}, ids)
            assert (lag.end, lag.lag) == (3, None)
            assert lag.loss == "topic clicks was deleted and created again since it was read"
            assert meter.total({FIRST: 3}, ids) is None


def test_nobody_answers() -> None:
    with LagMeter({"kafka.bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.2) as meter:
        assert not meter.is_answered()
        assert meter.total({FIRST: 0}, {}) is None
        assert meter.total({}, {}) is None
        assert not meter.is_caught_up({FIRST: 0}, {})


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
