"""Pipelines in tests: rows in, tables and topics out, on a real broker and a real Spark.

    def test_bad_rows(penstock_pipeline):
        pipeline = penstock_pipeline("path/to/project")
        pipeline.produce("clicks", [{"user": "ada"}, b"not JSON"])
        pipeline.run()
        assert pipeline.table("events") == [{"user": "ada"}]

Spark runs in a process of its own (`penstock.spark.tested`), one for all tests of a session. This module only
sends calls to it, and knows topics by a client.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError
from penstock.sdk import BlockingAdmin, BlockingConsumer, BlockingProducer, NewRecord, Record

END_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 30.0
Row = Mapping[str, Any] | Sequence[Any] | str | bytes | NewRecord | None


class PipelineFailed(PenstockError):
    """A definition is wrong, a flow failed, or a table or topic does not exist."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What a run has done in a flow."""

    state: str
    rows_read: int
    rows_written: int | None
    violations: Mapping[str, int]
    """Rows by the expectation that they violate."""


class SparkProcess:
    """`workspace`: a directory for what Spark writes. The process starts with the first call."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        return self._workspace / ".penstock" / "spark.log"

    def call(self, name: str, *arguments: object) -> Any:
        """Raises PipelineFailed."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send((name, arguments))
            succeeded, value = self._connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise PipelineFailed(
                f"the process with Spark has ended: {self._output_path} and {self.log_path} say why"
            ) from error
        if not succeeded:
            raise PipelineFailed(value)
        return value

    def close(self) -> None:
        """Ends the process. A later call starts a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def _output_path(self) -> Path:
        return self._workspace / "output.log"

    def _start(self) -> None:
        for package in ("pyspark", "grpc", "yaml"):
            if find_spec(package) is None:
                raise PipelineFailed(
                    f"pipelines run on Spark, and {package} is not installed: pip install 'penstock[spark]'"
                )
        self._workspace.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs, self._output_path.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock.spark.tested"),
                    *(str(theirs.fileno()), str(self._workspace)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the tests; closing the socket ends it
            )
        self._connection = Connection(ours.detach())


class TestedPipeline:
    """A project in a test, with a broker, tables and offsets of its own."""

    __test__ = False  # no class of tests

    def __init__(
        self,
        spark: SparkProcess,
        servers: str,
        project: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        partitions: int = 1,
    ) -> None:
        """Creates the project's topics. `settings`: in place of those in its `configuration`.

        Raises PipelineFailed with the mistakes in the definitions.
        """
        self.bootstrap_servers = servers
        self._spark = spark
        self._partitions = partitions
        self.topics: tuple[str, ...] = ()
        for topic in spark.call("open", os.fspath(project), servers, dict(settings or {})):
            self.create_topic(topic)

    def create_topic(self, name: str, partitions: int | None = None) -> None:
        """For a topic that the definitions read by a pattern, or that another client needs."""
        with BlockingAdmin(self.bootstrap_servers) as admin:
            admin.create_topic(name, partitions or self._partitions)
        self.topics = (*self.topics, name)

    def produce(self, topic: str, rows: Iterable[Row]) -> None:
        """Objects and lists are sent as JSON, text as UTF-8, bytes as they are, None as a null. `NewRecord` of
        `penstock.sdk` has a key, headers, a partition or a time as well."""
        self._check(topic)
        with BlockingProducer(self.bootstrap_servers) as producer:
            producer.send_many(topic, [_record(row) for row in rows])

    def run(self) -> dict[str, FlowResult]:
        """Processes everything that is in the topics, as `penstock pipeline run`. Returns the flows by name.

        Raises PipelineFailed.
        """
        return {name: FlowResult(**told) for name, told in self._spark.call("run").items()}

    def table(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table, in the order in which they were written."""
        rows: list[dict[str, Any]] = self._spark.call("table", name)
        return rows

    def topic(self, name: str) -> list[Any]:
        """The values of all committed records. JSON objects and lists are Python's, anything else is bytes."""
        return [_value(record.value) for record in self.records(name)]

    def records(self, name: str) -> list[Record]:
        """All committed records, partition by partition."""
        self._check(name)
        found: list[Record] = []
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        with BlockingConsumer(self.bootstrap_servers, auto_commit=False) as consumer:
            consumer.assign(name, at="earliest")
            while not consumer.at_end():
                if time.monotonic() > deadline_s:
                    raise PipelineFailed(f"the end of topic {name} is not reached within {READ_TIMEOUT_S:g} s")
                found += consumer.poll(timeout_s=0.1)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def _check(self, topic: str) -> None:
        if topic not in self.topics:
            names = ", ".join(self.topics) or "none"
            raise PipelineFailed(f"the project names no topic {topic} (it names: {names}): create_topic makes one")


def _record(row: Row) -> NewRecord:
    if isinstance(row, NewRecord):
        return row
    if row is None or isinstance(row, str | bytes):
        return NewRecord(row)
    try:
        return NewRecord(json.dumps(row))
    except (TypeError, ValueError) as error:
        raise PipelineFailed(f"the row {row!r} is no JSON ({error}): give its bytes") from error


def _value(value: bytes | None) -> Any:
    if value is None or value.lstrip()[:1] not in (b"{", b"["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
