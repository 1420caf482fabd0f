"""The driver's watch commits the end of a query's last batch if nothing else does."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

import pytest
from fake_cluster import FakeCluster

from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.group_progress import GroupProgress
from penstock.spark.source.offsets import NO_TOPIC_ID, SourceOffset
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.query_watch import FinishedTo, QueryWatch

TP = TopicPartition("t", 0)


class FakeQuery:
    def __init__(self, sources: int = 1, query_id: str = "query", run_id: str = "run") -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.sources = sources
        self.offset: int | None = None
        self.is_running = True
        self.given: Mapping[str, str] | None = {"subscribe": "t"}

    def is_active(self) -> bool:
        return self.is_running

    def finished(self) -> list[FinishedTo]:
        if self.offset is None:
            return []
        own = [
            FinishedTo(f"source {number}", _json(f"g{number}", self.offset + number)) for number in range(self.sources)
        ]
        return [FinishedTo("rate", "17"), FinishedTo("files", '{"logOffset":0}'), FinishedTo("empty", ""), *own]

    def options(self, source: str) -> Mapping[str, str]:
        assert source.startswith("source ")
        if self.given is None:
            raise PenstockError("the source is not in the query's plan")
        return self.given


def _json(group: str, offset: int) -> str:
    return json.dumps(SourceOffset(group, {"t": NO_TOPIC_ID}, {TP: offset}).to_json())


class Watched:
    def __init__(self, query: FakeQuery) -> None:
        self.query = query
        self.cluster = FakeCluster()
        self.opened: list[SourceOptions] = []
        self.watch = QueryWatch(self.open)
        self.watch.add(query)

    def open(self, options: SourceOptions) -> GroupProgress:
        self.opened.append(options)
        return GroupProgress(self.cluster)

    def look(self, offset: int | None, *, is_last: bool = False) -> list[tuple[str, dict[TopicPartition, int]]]:
        """The offsets committed so far."""
        self.query.offset = offset
        self.watch.look(is_last=is_last)
        return self.cluster.commits


def test_what_stands_still_is_committed_once() -> None:
    watched = Watched(FakeQuery())
    assert watched.look(None) == []
    assert watched.look(None) == []
    assert watched.look(5) == []
    assert watched.look(6) == [], "a busy query says it itself"
    assert watched.look(6) == [("g0", {TP: 6})]
    assert watched.look(6) == [("g0", {TP: 6})]
    assert len(watched.opened) == 1


def test_last_batch_of_a_query_that_ended_counts_at_once() -> None:
    watched = Watched(FakeQuery())
    watched.look(5)
    watched.query.is_running = False
    assert watched.look(9) == [("g0", {TP: 9})]
    assert watched.look(10) == [("g0", {TP: 9})], "it is not looked at any more"


def test_last_look_does_not_wait() -> None:
    assert Watched(FakeQuery()).look(5, is_last=True) == [("g0", {TP: 5})]


def test_what_is_told_late_of_an_earlier_run_does_not_set_the_next_one_back() -> None:
    watched = Watched(FakeQuery())
    watched.look(5)
    watched.query.is_running = False
    again = FakeQuery(run_id="run 2")
    again.offset = 9
    watched.watch.add(again)
    assert watched.look(5) == [], "the next run says it itself"
    assert watched.look(5) == [("g0", {TP: 9})]


def test_next_run_waits_for_what_is_being_told_of_the_earlier_one() -> None:
    watched = Watched(FakeQuery())
    watched.query.is_running = False
    order: list[str] = []
    starting = threading.Thread(target=lambda: (watched.watch.add(FakeQuery(run_id="run 2")), order.append("started")))

    def is_told() -> None:
        starting.start()
        starting.join(0.2)
        order.append("told")

    watched.cluster.before_commit = is_told
    assert watched.look(5) == [("g0", {TP: 5})]
    starting.join()
    assert order == ["told", "started"]


@pytest.mark.parametrize(("query_id", "run_id"), [("another", "run 2"), ("query", "run")])
def test_others_are_not_in_the_way_of_a_run(query_id: str, run_id: str) -> None:
    """Another query, and the same run, told of twice."""
    watched = Watched(FakeQuery())
    watched.query.is_running = False
    watched.watch.add(FakeQuery(query_id=query_id, run_id=run_id))
    assert watched.look(5) == [("g0", {TP: 5})]


def test_each_source_has_its_group() -> None:
    watched = Watched(FakeQuery(sources=2))
    watched.look(5)
    assert watched.look(5) == [("g0", {TP: 5}), ("g1", {TP: 6})]


@pytest.mark.parametrize("given", [None, {"subscribe": "t", "maxOffsetsPerTrigger": "many"}])
def test_query_whose_options_are_not_to_be_had_is_left_alone(given: Mapping[str, str] | None) -> None:
    watched = Watched(FakeQuery())
    watched.query.given = given
    watched.look(5)
    assert watched.look(5) == []
    assert watched.opened == []
