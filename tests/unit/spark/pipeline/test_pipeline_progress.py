from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from penstock.model.topic_partition import TopicPartition
from penstock.spark.pipeline.events import FlowState, flow_event
from penstock.spark.pipeline.progress import BatchDone, RunProgress, batch_done
from penstock.spark.pipeline.runner import RunReport, pause_s
from penstock.spark.source.offsets import SourceOffset


def tell(progress: RunProgress, *messages: str) -> None:
    for message in messages:
        event = flow_event(message)
        assert event is not None
        progress.take(event)


def test_a_query_that_failed_is_first_said_to_have_completed() -> None:
    progress = RunProgress()
    tell(
        progress,
        "Flow a.b.events is RUNNING.",
        "Flow a.b.events has COMPLETED.",
        "Flow 'a.b.events' has FAILED more than 0 times and will not be restarted.\nError: [X] boom SQLSTATE: 1",
    )
    tell(progress, "Flow a.b.events has COMPLETED.")
    (flow,) = progress.failed()
    assert (flow.name, flow.state, flow.cause) == ("events", FlowState.FAILED, "boom")


def test_an_event_that_changes_nothing_is_not_told_on() -> None:
    progress = RunProgress()
    running = flow_event("Flow events is RUNNING.")
    assert running is not None
    assert progress.take(running) is not None
    assert progress.take(running) is None


def test_flows_that_do_not_resolve_are_kept_apart_from_those_that_follow() -> None:
    progress = RunProgress()
    tell(
        progress,
        "Failed to resolve flow due to upstream failure: 'results'.\nError: x",
        "Failed to resolve flow: 'a.b.events'.\nError: y",
    )
    assert [event.flow for event in progress.unresolved] == ["a.b.events"]


def read(topic: str, *positions: int) -> SourceOffset:
    return SourceOffset("g", {topic: bytes(16)}, {TopicPartition(topic, p): at for p, at in enumerate(positions)})


def of_query(**fields: Any) -> dict[str, Any]:
    offset = {"version": 1, "group": "g", "topics": {"clicks": {"id": "A" * 22, "partitions": {"0": 7, "1": 3}}}}
    return {
        "name": "a.b.events",
        "numInputRows": 10,
        "sources": [{"endOffset": json.dumps(offset)}, {"endOffset": '{"logOffset": 1}'}, {"endOffset": "null"}],
        "observedMetrics": {"penstock_events": {"rows": 8}},
        **fields,
    }


def test_rows_and_positions_of_a_batch() -> None:
    done = batch_done(of_query())
    assert done == BatchDone("a.b.events", 10, 8, [read("clicks", 7, 3)])
    assert batch_done(of_query(name=None)) is None
    uncounted = batch_done(of_query(observedMetrics={}))
    assert uncounted is not None
    assert uncounted.rows_written is None


def test_batches_add_up() -> None:
    progress = RunProgress()
    done = batch_done(of_query())
    assert done is not None
    progress.take_batch(done)
    flow = progress.take_batch(BatchDone("a.b.events", 2, 1, [read("clicks", 9, 3)]))
    assert (flow.rows_read, flow.rows_written) == (12, 9)
    assert flow.offsets == [read("clicks", 9, 3)]


def test_records_that_two_flows_read_count_once() -> None:
    progress = RunProgress()
    clicks, taps = [read("clicks", 9)], [read("taps", 9)]
    elsewhere = [replace(read("clicks", 5), cluster="another")]
    for flow, rows, offsets in (
        ("a", 9, clicks),
        ("b", 7, clicks),
        ("c", 4, taps),
        ("d", 100, []),
        ("e", 5, elsewhere),
    ):
        progress.take_batch(BatchDone(flow, rows, rows, offsets))
    assert RunReport(progress.flows).rows_read == 18


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 7, 1000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
