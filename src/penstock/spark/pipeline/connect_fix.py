"""A workaround for SPARK-59135: Spark 4.3.0 ends a successful pipeline run with a Python source or sink with an error.

Workers return accumulators as observed metrics. `SparkConnectClient.execute_command_as_iterator` yields dictionaries
among the answers of a command and takes anything else for an unknown response; a later Spark leaves metrics out. Until
that is released, the method is replaced by one that does the same. A version with the fix is left alone, and
tests/unit/spark/pipeline/test_pipeline_connect_fix.py fails when the oldest supported version has it:
then this module can go.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def needs_fix() -> bool:
    from pyspark.sql.connect.client import SparkConnectClient

    source = inspect.getsource(SparkConnectClient.execute_command_as_iterator)
    return "UNKNOWN_RESPONSE" in source and "PlanObservedMetrics" not in source


def apply_fix() -> None:
    """Applies the fix once; further calls do nothing."""
    from pyspark.sql.connect.client import SparkConnectClient

    if needs_fix():
        SparkConnectClient.execute_command_as_iterator = _dictionaries_only  # type: ignore[method-assign]


def _dictionaries_only(self: Any, command: Any, observations: Any = None) -> Iterator[dict[str, Any]]:
    request = self._execute_plan_request_with_metadata()
    self._set_command_in_plan(request.plan, command)
    for answer in self._execute_and_fetch_as_iterator(request, observations or {}):
        if isinstance(answer, dict):
            yield answer
