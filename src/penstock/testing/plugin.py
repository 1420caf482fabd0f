"""pytest fixtures, loaded automatically where penstock is installed.

The first test that uses a broker imports it, so a suite without one pays nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker, Cluster
    from penstock.testing.pipelines import SparkProcess, TestedPipeline


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    """One real broker for the whole session; tests use different topic names."""
    from penstock.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Start brokers with their own settings: `penstock_broker_factory({"num.partitions": 3})`."""
    from penstock.testing import Broker

    brokers: list[Broker] = []

    def start(settings: Mapping[str, str | int | float | bool] | None = None, **options: Any) -> Broker:
        broker = Broker(settings, **options).start()
        brokers.append(broker)
        return broker

    yield start
    for broker in reversed(brokers):
        broker.stop()


@pytest.fixture
def penstock_cluster() -> Iterator[Cluster]:
    """Three real nodes for this test alone: whatever it kills, the next test has a whole cluster."""
    from penstock.testing import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def penstock_spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """Spark for `penstock_pipeline`: it starts with the first pipeline and ends with the session."""
    from penstock.testing.pipelines import SparkProcess

    spark = SparkProcess(tmp_path_factory.mktemp("penstock-spark"))
    yield spark
    spark.close()


@pytest.fixture
def penstock_pipeline(
    penstock_spark_process: SparkProcess, penstock_broker_factory: Callable[..., Broker]
) -> Callable[..., TestedPipeline]:
    """A pipeline project on a broker of this test alone: `penstock_pipeline("path/to/project")`."""
    from penstock.testing.pipelines import PipelineFailed, TestedPipeline

    opened: list[TestedPipeline] = []

    def open_project(project: str | os.PathLike[str], **options: Any) -> TestedPipeline:
        if opened:
            raise PipelineFailed("a test has one pipeline: opening another would delete its tables")
        servers = penstock_broker_factory().bootstrap_servers
        opened.append(TestedPipeline(penstock_spark_process, servers, project, **options))
        return opened[0]

    return open_project
