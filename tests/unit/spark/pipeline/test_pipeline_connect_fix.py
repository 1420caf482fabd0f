"""When the first test here fails, the installed Spark has the fix of SPARK-59135: delete `connect_fix` if the oldest
version that pyproject.toml allows has it, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.client.core import PlanObservedMetrics

from penstock.spark.pipeline.connect_fix import apply_fix, needs_fix

EVENT = {"pipeline_event_result": "Run is COMPLETED."}


class Client:
    """As much of a client as the method needs: it answers an event, an accumulator of a Python worker, an event."""

    def _execute_plan_request_with_metadata(self) -> Any:
        return SimpleNamespace(plan=None)

    def _set_command_in_plan(self, plan: object, command: object) -> None:
        assert command == "start"

    def _execute_and_fetch_as_iterator(self, request: object, observations: object) -> list[object]:
        return [EVENT, PlanObservedMetrics("__python_accumulator__", [], []), EVENT]


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SparkConnectClient, "execute_command_as_iterator", SparkConnectClient.execute_command_as_iterator
    )


def results() -> list[Any]:
    return list(SparkConnectClient.execute_command_as_iterator(Client(), "start"))  # type: ignore[arg-type]


def test_the_installed_spark_still_takes_accumulators_for_an_error() -> None:
    assert needs_fix(), "this Spark has the fix of SPARK-59135: penstock.spark.pipeline.connect_fix may go"
    with pytest.raises(PySparkValueError, match="UNKNOWN_RESPONSE"):
        results()


def test_the_fix_leaves_them_out() -> None:
    apply_fix()
    assert not needs_fix()
    assert results() == [EVENT, EVENT]
