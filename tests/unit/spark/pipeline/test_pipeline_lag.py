from __future__ import annotations

from penstock.client.fetching import TopicPartition
from penstock.clients import BlockingAdmin, BlockingProducer
from penstock.spark.pipeline.lag import LagMeter
from penstock.testing import Broker

FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def test_behind_and_caught_up() -> None:
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("clicks", 2)
        with BlockingProducer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.submit("clicks", "x", partition=1)
        with LagMeter({"kafka.bootstrap.servers": broker.bootstrap_servers}) as meter:
            assert meter.missing_topics(["clicks", "nope", "clicks"]) == ["nope"]
            assert meter.total({FIRST: 0, SECOND: 1}) == 2
            assert not meter.is_caught_up({FIRST: 0, SECOND: 1})
            assert meter.is_caught_up({FIRST: 0, SECOND: 3})
            assert not meter.is_caught_up({SECOND: 3}), "a partition that nobody has read"
            admin.add_partitions("clicks", 3)
            assert not meter.is_caught_up({FIRST: 0, SECOND: 3}), "a partition that is new"
            admin.delete_topic("clicks")
            assert not meter.is_caught_up({FIRST: 0, SECOND: 3})
            assert meter.total({FIRST: 0}) is None


def test_nobody_answers() -> None:
    with LagMeter({"kafka.bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.2) as meter:
        assert meter.total({FIRST: 0}) is None
        assert meter.total({}) is None
        assert not meter.is_caught_up({FIRST: 0})
