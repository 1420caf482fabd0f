"""Kafka's own dump-log tool reads our markers, `.txnindex` files and snapshots with transactions.

Needs Java and Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.runtime.disk import OsDisk
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

pytestmark = pytest.mark.kafka_jars

TOOL = "org.apache.kafka.tools.DumpLogSegments"
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 0 to 5: two transactions of producer 7, one of producer 8 that is open."""
    path = tmp_path_factory.mktemp("data") / "orders-0"
    log = Log.open(OsDisk(), str(path), LogConfig(), now_ms=NOW_MS)
    for data in (
        batch(7, 0, 0),
        batch(8, 0, 0),
        build_marker(7, 1, ABORT, 5, NOW_MS),
        batch(7, 1, 0),
        batch(7, 1, 1),
        build_marker(7, 2, COMMIT, 6, NOW_MS),
    ):
        log.append(read_header(data), data, 0, NOW_MS)
    log.close(clean=True)
    return path


def batch(producer_id: int, epoch: int, sequence: int) -> bytes:
    return build_batch(
        [Record(b"key", b"value", (), NOW_MS)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


def dump(jars: str, files: list[Path], *flags: str) -> str:
    assert files
    command = ["java", "-cp", jars, TOOL, *flags, "--files", ",".join(map(str, files))]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "xception" not in result.stdout + result.stderr
    return result.stdout


def test_markers(jars: str, directory: Path) -> None:
    said = dump(jars, list(directory.glob("*.log")), "--print-data-log")
    assert said.count("isvalid: true") == 6
    assert said.count("isControl: true") == 2
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", said)
    assert markers == [("ABORT", "5"), ("COMMIT", "6")]


def test_aborted_transactions(jars: str, directory: Path) -> None:
    said = dump(jars, list(directory.glob("*.txnindex")))
    fields = "producerId", "firstOffset", "lastOffset", "lastStableOffset"
    found = re.findall(".*?".join(rf"{field}[=:] ?(\d+)" for field in fields), said)
    assert found == [("7", "0", "2", "1")], said


def test_a_snapshot(jars: str, directory: Path) -> None:
    said = dump(jars, list(directory.glob("*.snapshot")))
    assert "producerId: 7 producerEpoch: 2 coordinatorEpoch: 6 currentTxnFirstOffset: OptionalLong.empty" in said
    assert "producerId: 8 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[1]" in said
