"""A table with the records behind it: each record once, whatever happens to the table meanwhile."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

from penstock.arrow.values import parse_schema
from penstock.model.errors import ConfigError
from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.tables import Table, TableDamaged
from penstock.testing import Broker
from penstock.topic_tables import LiveTable, live, read_live, read_with_tail
from penstock.topic_tables.follower import Audience, RecordsLost
from penstock.wire_client.blocking.cluster import BlockingCluster
from support.tables.topics import FilledTopic, earliest


@pytest.fixture
def topic(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


def now(topic: FilledTopic, directory: Path) -> LiveTable:
    host, _, port = topic.servers.rpartition(":")
    with closing(BlockingCluster([(host, int(port))], timeout_s=20.0)) as cluster:
        return read_live(directory, cluster)


def values(rows: Any) -> list[int]:
    return sorted(int(value) for value in rows.column("value").to_pylist())


def test_rows_and_the_records_behind_them(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 10)
    topic.follow(tmp_path, partition_by=("date",))
    topic.numbers(10, 16)
    with BlockingAdmin(topic.servers) as admin:
        admin.add_partitions(topic.name, 3)
    topic.numbers(16, 18, partition=2)
    found = now(topic, tmp_path)
    assert (found.version, found.tail.num_rows, found.positions) == (2, 8, {0: 8, 1: 8, 2: 2})
    assert values(found.arrow()) == values(read_with_tail(tmp_path, topic.servers)) == list(range(18))
    topic.follow(tmp_path)
    found = now(topic, tmp_path)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert found.tail.num_rows == 0
    assert found.arrow().sort_by(order).equals(Table.open(tmp_path).at().arrow().sort_by(order))


def test_open_transactions_are_not_there(tmp_path: Path, topic: FilledTopic) -> None:
    topic.follow(tmp_path)
    with BlockingProducer(topic.servers, transactional_id=topic.name) as producer:
        with producer.transaction():
            producer.submit(topic.name, "1", partition=0)
            producer.flush()
            assert values(read_with_tail(tmp_path, topic.servers)) == []
        assert values(read_with_tail(tmp_path, topic.servers)) == [1]


def test_the_newest_rows(tmp_path: Path, topic: FilledTopic) -> None:
    topic.send(['{"id": 1}', '{"id": 2}', '{"id": 3, "name": "c"}'], key=b"k", partition=0)
    topic.follow(tmp_path, mode="json", schema=parse_schema("id int, name string"), key=("id",))
    topic.send(['{"id": 4}', '{"id": 2, "name": "b"}', "bad"], key=b"l", partition=0)
    found = now(topic, tmp_path)
    names = {row["id"]: row["name"] for row in found.arrow().to_pylist()}
    assert (names, found.arrow().num_rows, found.misfits) == ({1: None, 2: "b", 3: "c", 4: None}, 4, 1)
    topic.send([None], key=b"k", partition=0)
    found = now(topic, tmp_path)
    assert sorted(found.arrow().column("id").to_pylist()) == [2, 4]
    topic.follow(tmp_path)
    assert sorted(Table.open(tmp_path).at().arrow().column("id").to_pylist()) == [2, 4]


@pytest.mark.parametrize("key", [(), ("key",)])
def test_while_the_table_is_followed_and_looked_after(tmp_path: Path, topic: FilledTopic, key: tuple[str, ...]) -> None:
    place = tmp_path / "table"
    topic.follow(place, key=key)
    stop, failures = threading.Event(), []

    def follow() -> None:
        try:
            audience = Audience(stop)
            with topic.follower(place, audience=audience, once=False, commit_interval_s=0.02) as follower:
                follower.run(earliest)
        except BaseException as error:
            failures.append(error)

    def look_after() -> None:
        while not stop.wait(0.05):
            table = Table.open(place)
            table.compact(is_thorough=True)
            table.expire(timedelta(0))

    threads = [threading.Thread(target=one) for one in (follow, look_after)]
    for thread in threads:
        thread.start()
    try:
        with BlockingProducer(topic.servers) as producer:
            for turn in range(12):
                for number in range(turn * 20, turn * 20 + 20):
                    producer.submit(topic.name, f"{number}", key=f"{number}", partition=number % 2)
                producer.flush()
                assert values(read_with_tail(place, topic.servers)) == list(range(turn * 20 + 20))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures


def test_a_version_that_expires_meanwhile(tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.numbers(0, 10)
    topic.follow(tmp_path)
    found = now(topic, tmp_path)

    def expires() -> None:
        topic.follow(tmp_path)
        table = Table.open(tmp_path)
        table.compact(is_thorough=True)
        table.expire(timedelta(0))

    topic.numbers(10, 20)
    expires()
    with pytest.raises(TableDamaged, match="cannot be read"):
        found.arrow()
    plain, done = live._tail, []

    def once(*given: Any) -> Any:
        if not done:
            done.append(topic.numbers(20, 30))
            expires()
        return plain(*given)

    monkeypatch.setattr(live, "_tail", once)
    assert values(read_with_tail(tmp_path, topic.servers)) == list(range(30))


def test_records_that_retention_deleted(tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are in a newer version, or nowhere."""

    def delete(before: int) -> None:
        admin = AdminClient({"bootstrap.servers": topic.servers})
        for future in admin.delete_records([Partition(topic.name, 0, before)]).values():
            future.result()

    topic.numbers(0, 10, partition=0)
    topic.follow(tmp_path)
    topic.numbers(10, 20, partition=0)
    plain, done = live._tail, []

    def once(*given: Any) -> Any:
        if not done:
            done.append(topic.follow(tmp_path))
            delete(15)
        return plain(*given)

    with monkeypatch.context() as patch:
        patch.setattr(live, "_tail", once)
        assert values(read_with_tail(tmp_path, topic.servers)) == list(range(20))
    topic.numbers(20, 30, partition=0)
    delete(25)
    with pytest.raises(RecordsLost, match=f"offsets 20 to 24 of partition 0 of topic {topic.name} are neither in"):
        read_with_tail(tmp_path, topic.servers)


def test_tables_of_something_else(tmp_path: Path, topic: FilledTopic) -> None:
    Table.create(tmp_path / "plain", parse_schema("id long"))
    with pytest.raises(ConfigError, match="was not made from a topic: it has no live records"):
        read_with_tail(tmp_path / "plain", topic.servers)
    topic.follow(tmp_path / "old")
    topic.recreate()
    with pytest.raises(ConfigError, match="was deleted and created again"):
        read_with_tail(tmp_path / "old", topic.servers)
    with pytest.raises(ConfigError, match="'localhost:none' is not a broker address"):
        read_with_tail(tmp_path / "old", "localhost:none")
