"""Sentences of Spark 4.3, word for word as a run gave them."""

from __future__ import annotations

import pytest

from penstock.spark.pipeline.events import (
    CAUSE_LIMIT,
    NO_REASON,
    FlowEvent,
    FlowState,
    cause_of,
    flow_event,
    is_transient,
)

EVENTS = "spark_catalog.default.events"
PLAN = """
=== Streaming Query ===
Identifier: spark_catalog.default.events [id = 3af66410, runId = c4a878f6]
Current Committed Offsets: {FileStreamSource[file:/in]: {"logOffset":1}}

Current State: ACTIVE
Thread State: RUNNABLE

Logical Plan:
~WriteToMicroBatchDataSourceV1 `spark_catalog`.`default`.`events`, Append
+- ~Filter (n#288 > cast(raise_error(USER_RAISED_EXCEPTION, map(errorMessage, boom), NullType) as int))
"""
STREAM_FAILED = "[STREAM_FAILED] Query [id = 3af66410, runId = c4a878f6] terminated with exception: "
BOOM = f"{STREAM_FAILED}[USER_RAISED_EXCEPTION] boom SQLSTATE: P0001 SQLSTATE: XXKST{PLAN}"
PYTHON = f"""{STREAM_FAILED}Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent failure: \
Lost task 0.3 in stage 5.0 (TID 12) (localhost executor driver): org.apache.spark.api.python.PythonException: \
[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/project/transformations/a.py", line 5, in bad
    raise ValueError("no good: " + v)
ValueError: no good: hhhh
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581){PLAN}"""
OURS = f"""{STREAM_FAILED}[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source \
perform latestOffset: penstock.spark.source.offsets.DataLoss: partition 0 of topic 't' begins at 9, after 5: see \
failOnDataLoss
 SQLSTATE: 38000{PLAN}"""
OF_A_TASK = f"""{STREAM_FAILED}Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 5.0 (TID 12) (localhost executor driver): org.apache.spark.api.python.PythonException: \
[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
penstock.spark.sink.producing.DeliveryFailed: t-0: refused
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581){PLAN}"""
UNREACHABLE = f"""{STREAM_FAILED}[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source \
perform latestOffset: Traceback (most recent call last):
  File "/site-packages/pyspark/sql/streaming/python_streaming_source_runner.py", line 190, in main
    latest_offset_func(reader, outfile)
penstock.wire_client.requests.errors.BrokerUnreachable: 127.0.0.1:9092: connection refused (tried for 60 s)
 SQLSTATE: 38000{PLAN}"""


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (f"Flow {EVENTS} is QUEUED.", FlowEvent(EVENTS, FlowState.QUEUED)),
        ("Flow stats is PLANNING.", FlowEvent("stats", FlowState.STARTING, is_batch=True)),
        ("Flow to_out is STARTING.", FlowEvent("to_out", FlowState.STARTING)),
        ("Flow to_out is RUNNING.", FlowEvent("to_out", FlowState.RUNNING)),
        ("Flow to_out has COMPLETED.", FlowEvent("to_out", FlowState.COMPLETED)),
        ("Flow 'to_out' has STOPPED.", FlowEvent("to_out", FlowState.STOPPED)),
        ("Flow 'to_out' has FAILED.\nError: why", FlowEvent("to_out", FlowState.FAILED, "why")),
        (
            f"Flow '{EVENTS}' has FAILED more than 0 times and will not be restarted.\nError: {BOOM}",
            FlowEvent(EVENTS, FlowState.FAILED, BOOM),
        ),
        ("Flow 'to_out' SKIPPED due to upstream failure(s).", FlowEvent("to_out", FlowState.SKIPPED, is_upstream=True)),
        (
            f"Failed to resolve flow due to upstream failure: '{EVENTS}'.\nError: x",
            FlowEvent(EVENTS, FlowState.FAILED, "x", is_unresolved=True, is_upstream=True),
        ),
        (
            f"Failed to resolve flow: '{EVENTS}'.\nError: x",
            FlowEvent(EVENTS, FlowState.FAILED, "x", is_unresolved=True),
        ),
        ("Run is COMPLETED.", None),
        ("Flow to_out is REJOICING.", None),
        ("", None),
    ],
)
def test_an_event_is_read_out_of_its_sentence(message: str, event: FlowEvent | None) -> None:
    assert flow_event(message) == event


def test_sources_that_changed_are_a_failure_with_its_own_sentence() -> None:
    event = flow_event("\nFlow 'events' had streaming sources added or removed. Please perform a\nfull refresh.\n")
    assert event is not None
    assert event.state is FlowState.FAILED
    assert event.error.endswith("Please perform a full refresh.")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (BOOM, "boom"),
        (PYTHON, "ValueError: no good: hhhh"),
        (UNREACHABLE, "BrokerUnreachable: 127.0.0.1:9092: connection refused (tried for 60 s)"),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `m` cannot be resolved. SQLSTATE: 42703; li\n'P",
            "A column with name `m` cannot be resolved.",
        ),
        (
            "(org.apache.spark.SparkClassNotFoundException) [DATA_SOURCE_NOT_FOUND] No such: nosuch. SQLSTATE: 1",
            "No such: nosuch.",
        ),
        (f"{STREAM_FAILED} SQLSTATE: XXKST{PLAN}", NO_REASON),
        ("", NO_REASON),
        (OURS, "DataLoss: partition 0 of topic 't' begins at 9, after 5: see failOnDataLoss"),
        (OF_A_TASK, "DeliveryFailed: t-0: refused"),
        ("something else\nand more", "something else"),
        ("x" * 1000, "x" * CAUSE_LIMIT + "..."),
    ],
)
def test_the_cause_is_one_line_without_stack_and_plan(error: str, cause: str) -> None:
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BOOM, False),
        (PYTHON, False),
        (UNREACHABLE, True),
        (f"{STREAM_FAILED} SQLSTATE: XXKST{PLAN}", True),
        (
            PYTHON.replace("ValueError: no good: hhhh", "penstock.spark.sink.producing.DeliveryFailed: t-0: refused"),
            False,
        ),
        (
            PYTHON.replace(
                "ValueError: no good", "DeliveryFailed: not acknowledged within kafka.delivery.timeout.ms=1"
            ),
            True,
        ),
        (PYTHON.replace("in bad\n", "in bad\n    except BrokerUnreachable:\n"), False),
        ("Python worker exited unexpectedly (crashed)", True),
        # By the client's table.
        (
            PYTHON.replace("ValueError: no good", "ApiError: offsets of t-0: KAFKA_STORAGE_ERROR (tried for 60.0 s)"),
            True,
        ),
        (PYTHON.replace("ValueError: no good", "Overloaded: 8 requests are open"), True),
        (PYTHON.replace("ValueError: no good", "NotKafka: it speaks HTTP"), False),
        (PYTHON.replace("ValueError: no good", "ApiError: t-0: TOPIC_AUTHORIZATION_FAILED"), False),
        (PYTHON.replace("ValueError: no good", "NoSuchTopic: topic 't' does not exist"), False),
        (PYTHON.replace("ValueError: no good", "MyConnectionLostError: a user's own"), False),
    ],
)
def test_only_what_may_pass_is_transient(error: str, expected: bool) -> None:
    assert is_transient(error) is expected
