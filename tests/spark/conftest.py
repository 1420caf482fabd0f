"""One Spark session and one real broker process for all tests with Spark.

Starting Spark takes seconds and each query a good part of one: a test that needs a session or a broker of its own says
why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_topics import Topics

from penstock.spark import session
from support.processes.broker import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="session")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    made = Topics(broker.bootstrap_servers)
    yield made
    made.admin.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; nothing of it is written outside of temporary directories."""
    directory = tmp_path_factory.mktemp("spark")
    running = session(
        "penstock-tests",
        "local[2,4]",
        config={"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory / "scratch")},
        fast_start=True,
    )
    yield running
    running.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
