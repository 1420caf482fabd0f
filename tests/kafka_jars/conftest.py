"""Apache Kafka's jars, for every test here: where KAFKA_LIBS says, else fetched by Maven once, into `.bench/kafka/`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from bench.brokers import KafkaUnavailable, kafka_jars

HINT = "install Java 17 and Maven, or set KAFKA_LIBS to the libs directory of a Kafka release"


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """Their directory. No test here can run without it, so one sentence ends them all."""
    named = os.environ.get("KAFKA_LIBS")
    if shutil.which("java") is None:
        pytest.exit(f"there is no java on the path: {HINT}", returncode=2)
    if named:
        if not any(Path(named).glob("kafka-tools-[0-9]*.jar")):
            pytest.exit(f"KAFKA_LIBS is {named}, and no kafka-tools jar is there: {HINT}", returncode=2)
        return Path(named)
    try:
        return kafka_jars()
    except KafkaUnavailable as error:
        pytest.exit(f"{error}: {HINT}", returncode=2)


@pytest.fixture(scope="session")
def jars(kafka_libs: Path) -> str:
    """The same as a class path."""
    return f"{kafka_libs}/*"
