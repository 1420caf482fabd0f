"""Parsing of Spark's messages: the flow and state of a pipeline's event, and the cause of an error.

Spark Connect sends events of a pipeline only as sentences, without fields. Unknown sentences are not events of a flow.
These are pure functions of text; tests/unit/spark/pipeline/test_pipeline_events.py has samples from Spark 4.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from penstock.wire_client.requests.retriable import names_that_may_pass


class FlowState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        return self in (FlowState.COMPLETED, FlowState.FAILED, FlowState.SKIPPED, FlowState.STOPPED)


@dataclass(frozen=True, slots=True)
class FlowEvent:
    flow: str
    """The name in Spark: with catalog and database if the flow writes to a table."""
    state: FlowState
    error: str = ""
    is_unresolved: bool = False
    """It failed before the run, because of a wrong definition."""
    is_upstream: bool = False
    """It failed because of another flow."""
    is_batch: bool = False
    """It is known not to be a streaming flow."""


_STATES = {
    "QUEUED": FlowState.QUEUED,
    "PLANNING": FlowState.STARTING,
    "STARTING": FlowState.STARTING,
    "RUNNING": FlowState.RUNNING,
    "COMPLETED": FlowState.COMPLETED,
    "STOPPED": FlowState.STOPPED,
    "EXCLUDED": FlowState.SKIPPED,
}
_FLOW = r"Flow '?(?P<flow>[^\s']+)'?"
_PLAIN = re.compile(rf"{_FLOW} (?:is|has) (?P<state>[A-Z]+)\.$")
_FAILED = re.compile(rf"{_FLOW} has (?:FAILED|failed to stop)\b")
_SOURCES_CHANGED = re.compile(rf"\s*{_FLOW} had streaming sources added or removed")
_SKIPPED = re.compile(rf"{_FLOW} (?:SKIPPED due to upstream|has been processed by a previous)")
_UNRESOLVED = re.compile(r"Failed to resolve flow(?P<upstream> due to upstream failure)?: '(?P<flow>[^']+)'")


def flow_event(message: str) -> FlowEvent | None:
    """The event of a sentence. None if it is not about a flow."""
    sentence, _, error = message.partition("\nError: ")
    sentence = sentence.rstrip()
    if found := _PLAIN.match(sentence):
        state = _STATES.get(found["state"])
        if found["state"] == "FAILED":
            return FlowEvent(found["flow"], FlowState.FAILED, error)
        if state is None:
            return None
        return FlowEvent(found["flow"], state, error, is_batch=found["state"] == "PLANNING")
    if found := _FAILED.match(sentence) or _SOURCES_CHANGED.match(sentence):
        return FlowEvent(found["flow"], FlowState.FAILED, error or " ".join(sentence.split()))
    if found := _SKIPPED.match(sentence):
        return FlowEvent(found["flow"], FlowState.SKIPPED, is_upstream="upstream" in sentence)
    if found := _UNRESOLVED.match(sentence):
        upstream = found["upstream"] is not None
        return FlowEvent(found["flow"], FlowState.FAILED, error, is_unresolved=True, is_upstream=upstream)
    return None


# -- causes -----------------------------------------------------------------------------

_STREAM_FAILED = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ?")
_TASK_FAILED = re.compile(
    r"Job aborted due to stage failure: .*?most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)"
    r" ?\([^)]*\): (?:[\w.$]+(?:Exception|Error): )?",
    re.DOTALL,
)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_ERROR_CLASS = re.compile(r"^(?:\(?[\w.$]+(?:Exception|Error)(?:: |\) ))?\[[A-Z0-9_.]+\] ")
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|[a-z]\w*)): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
# An error of a source or sink, which has no traceback (`spark.plain_errors`).
_OURS = re.compile(r"(?:^|[\s:])penstock(?:\.\w+)*\.(\w+): (.+)")

# A Python source whose process died leaves a query that failed without a reason. The others mean that the cluster or a
# worker was away for longer than sources and sinks retry by themselves. What a cluster says is the client's to judge;
# the rest is what Spark says of its processes, and the sink of its time limit.
_TRANSIENT = re.compile(
    rf"\b(?:{'|'.join(sorted(names_that_may_pass()))})\b"
    r"|not acknowledged within kafka\.delivery\.timeout"
    r"|Python worker exited unexpectedly|ConnectionResetError|ConnectionRefusedError|BrokenPipe|EOFException"
    r"|SocketException|ExecutorLostFailure"
)
NO_REASON = "it ended without a reason (a process of Spark died)"
CAUSE_LIMIT = 600


def cause_of(error: str) -> str:
    """The innermost cause in one line, without Java's stack and Spark's plan."""
    text = _TASK_FAILED.sub("", _STREAM_FAILED.sub("", error))
    if _TRACEBACK in text:
        raised = list(_PYTHON_ERROR.finditer(text[text.rindex(_TRACEBACK) :]))
        if raised:
            # Not the last: a traceback may be followed by a plan or by Java's version of the same error.
            found = raised[0]
            return _short(f"{found[1]}: {found[2]}")
    elif ours := _OURS.search(text):
        return _short(f"{ours[1]}: {ours[2]}")
    text = _SQLSTATE.sub("", text)
    text = _ERROR_CLASS.sub("", text.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else NO_REASON


def is_transient(error: str) -> bool:
    """Whether a retry may succeed. Unknown errors count as permanent."""
    cause = cause_of(error)
    return cause == NO_REASON or _TRANSIENT.search(cause) is not None


def _short(line: str) -> str:
    line = _SQLSTATE.sub("", line)
    return line if len(line) <= CAUSE_LIMIT else f"{line[:CAUSE_LIMIT]}..."
