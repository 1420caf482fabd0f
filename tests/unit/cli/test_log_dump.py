"""`penstock log dump` on sound, damaged and arbitrary files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.commands import penstock
from penstock.cluster.raft_store import DIRECTORY as METADATA_DIRECTORY
from penstock.core.metadata.records import ClusterCreated, encode
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.records.compression import NAMES, recompress
from penstock.runtime.disk import OsDisk
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_750_000_000_000
BATCHES = 40


def dump(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(penstock, ["log", "dump", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def dump_json(*arguments: str | Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in dump("--json", *arguments).stdout.splitlines()]


def of_kind(found: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [entry for entry in found if entry["kind"] == kind]


def write_log(directory: Path, *, value: bytes = b"", batches: int = BATCHES) -> None:
    """Every codec, an idempotent producer, three segments, closed cleanly."""
    log = Log.open(
        OsDisk(),
        str(directory),
        LogConfig(segment_bytes=4000, index_interval_bytes=500),
        now_ms=NOW_MS,
    )
    for number in range(batches):
        records = [
            Record(b"key-%d" % number, value or b"value-%d" % delta, (("trace", b"\xff\x00"),), NOW_MS + number * 10)
            for delta in range(3)
        ]
        batch = build_batch(records, producer_id=7, producer_epoch=1, base_sequence=number * 3)
        batch = recompress(read_header(batch), batch, number % len(NAMES))
        log.append(read_header(batch), batch, number // 20, NOW_MS)
    log.close(clean=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_log(tmp_path / "t-0")
    return tmp_path / "t-0"


def segments(directory: Path) -> list[Path]:
    found = sorted(directory.glob("*.log"))
    assert len(found) > 1
    return found


def test_everything_of_a_sound_partition(directory: Path) -> None:
    result = dump("--json", "--records", directory)
    assert result.exit_code == 0
    assert result.stderr == ""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    batches = of_kind(found, "batch")
    assert [(batch["base_offset"], batch["last_offset"], batch["count"]) for batch in batches] == [
        (number * 3, number * 3 + 2, 3) for number in range(BATCHES)
    ]
    assert [batch["codec"] for batch in batches] == [NAMES[number % 5] for number in range(BATCHES)]
    assert all(batch["crc_ok"] for batch in batches)
    assert {(batch["producer_id"], batch["producer_epoch"]) for batch in batches} == {(7, 1)}
    assert [batch["base_sequence"] for batch in batches] == [number * 3 for number in range(BATCHES)]
    records = of_kind(found, "record")
    assert [record["offset"] for record in records] == list(range(BATCHES * 3))
    assert records[4] == {
        "file": str(segments(directory)[0]),
        "kind": "record",
        "position": batches[1]["position"],
        "offset": 4,
        "timestamp": NOW_MS + 10,
        "key": "key-1",
        "value": "value-1",
        "headers": [["trace", {"hex": "ff00"}]],
    }
    for kind in ("offset-entry", "time-entry", "producer"):
        assert of_kind(found, kind), kind
    assert [(entry["epoch"], entry["start_offset"]) for entry in of_kind(found, "leader-epoch")] == [(0, 0), (1, 60)]
    assert not of_kind(found, "problem")


def test_text_reads_well(directory: Path) -> None:
    result = dump("--records", segments(directory)[0])
    lines = result.stdout.splitlines()
    assert lines[1].startswith("  batch 0..2  count 3  position 0  size ")
    assert "created 2025-06-15T15:06:40.000Z to 2025-06-15T15:06:40.000Z" in lines[1]
    assert "producer 7 epoch 1 sequence 0..2  leader epoch 0  crc ok" in lines[1]
    expected = '    record 0  2025-06-15T15:06:40.000Z  key "key-0"  value "value-0"  headers "trace": 0xff00'
    assert lines[2] == expected


def test_long_values_are_cut(tmp_path: Path) -> None:
    write_log(tmp_path, value="größer".encode() * 100, batches=1)
    log = tmp_path / f"{0:020}.log"
    assert dump_json("--records", "--max", "3", log)[2]["value"] == "gr..."
    assert dump_json("--records", "--max", "0", log)[2]["value"] == "größer" * 100


def test_flipped_bit_in_a_payload(directory: Path) -> None:
    log = segments(directory)[0]
    batches = of_kind(dump_json(log), "batch")
    position = batches[3]["position"]
    assert isinstance(position, int)
    flip(log, position + 70)
    result = dump(log)
    assert result.exit_code == 1
    corrupt = [line for line in result.stdout.splitlines() if line.startswith("CORRUPT")]
    assert corrupt == [f"CORRUPT  {log} at position {position}: checksum does not match"]
    assert result.stdout.count("crc ok") == len(batches) - 1
    assert result.stderr == "penstock: found 1 problem\n"


@pytest.mark.parametrize("field", [8, 16])  # length, magic
def test_damaged_header_is_stepped_over(directory: Path, field: int) -> None:
    log = segments(directory)[0]
    batches = of_kind(dump_json(log), "batch")
    position = batches[3]["position"]
    assert isinstance(position, int)
    flip(log, position + field)
    found = dump_json(log)
    assert [entry["position"] for entry in of_kind(found, "problem")] == [position]
    assert of_kind(found, "batch") == batches[:3] + batches[4:]


def test_torn_tail(directory: Path) -> None:
    log = segments(directory)[0]
    batches = of_kind(dump_json(log), "batch")
    log.write_bytes(log.read_bytes()[:-5])
    found = dump_json(log)
    assert of_kind(found, "batch") == batches[:-1]
    [torn] = of_kind(found, "problem")
    assert torn["position"] == batches[-1]["position"]
    assert str(torn["reason"]).startswith("torn")


@pytest.mark.parametrize(("suffix", "entry_bytes"), [(".index", 8), (".timeindex", 12)])
def test_index_that_does_not_fit_its_log(directory: Path, suffix: str, entry_bytes: int) -> None:
    index = segments(directory)[0].with_suffix(suffix)
    assert dump(index).exit_code == 0
    flip(index, entry_bytes + 3 if suffix == ".index" else entry_bytes + 7)
    result = dump(index)
    assert result.exit_code == 1
    assert f"CORRUPT  {index} at position {entry_bytes}: " in result.stdout


def test_index_without_its_log_and_with_a_torn_end(directory: Path, tmp_path: Path) -> None:
    index = tmp_path / f"{0:020}.index"
    data = segments(directory)[0].with_suffix(".index").read_bytes()
    index.write_bytes(data)
    result = dump(index)
    assert result.exit_code == 0
    assert "not verified" in result.stdout
    index.write_bytes(data + b"123")
    assert f"at position {len(data)}: 3 bytes after the last entry" in dump(index).stdout


def test_damaged_snapshot(directory: Path) -> None:
    snapshot = sorted(directory.glob("*.snapshot"))[-1]
    [producer] = of_kind(dump_json(snapshot), "producer")
    assert producer["producer_id"] == 7
    assert producer["last_sequence"] == producer["last_offset"] == BATCHES * 3 - 1
    flip(snapshot, 20)
    found = dump_json(snapshot)
    assert of_kind(found, "producer")
    assert [entry["position"] for entry in of_kind(found, "problem")] == [2]


@pytest.mark.parametrize("text", ["1\n0\n", "0\n2\n0 0\n", "0\n1\nzero 0\n", "0\n2\n1 5\n0 9\n", "0\n1\n0 0", ""])
def test_damaged_leader_epochs(tmp_path: Path, text: str) -> None:
    file = tmp_path / "leader-epoch-checkpoint"
    file.write_text(text)
    assert dump(file).exit_code == 1
    file.write_text("0\n2\n0 0\n1 9\n")
    assert dump(file).exit_code == 0


def test_metadata_records_are_shown_as_json(tmp_path: Path) -> None:
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    log = directory / f"{0:020}.log"
    log.write_bytes(build_batch([Record(None, encode(ClusterCreated("abc")), timestamp_ms=NOW_MS)]))
    assert '{"type": "cluster-created", "cluster_id": "abc"}' in dump(log).stdout
    [record] = of_kind(dump_json(tmp_path), "record")
    assert record["metadata"] == {"type": "cluster-created", "cluster_id": "abc"}


def test_transaction_marker_and_aborted_transactions(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    marker = Record(b"\0\0\0\1", b"\0\0\0\0\0\5", timestamp_ms=NOW_MS)
    attributes = CONTROL_BIT | TRANSACTIONAL_BIT
    log.write_bytes(build_batch([marker], producer_id=4, producer_epoch=0, attributes=attributes))
    text = dump("--records", log).stdout
    assert "transactional control" in text
    assert "control commit" in text
    index = tmp_path / f"{0:020}.txnindex"
    index.write_bytes(
        b"".join(number.to_bytes(size, "big") for number, size in ((0, 2), (4, 8), (3, 8), (9, 8), (9, 8)))
    )
    assert "aborted-transaction  position 0  producer id 4  first offset 3  last offset 9" in dump(index).stdout


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_garbage_never_raises(directory: Path, suffix: str) -> None:
    """Any bytes give findings and an exit code, and an end."""
    rng = random.Random(7)
    file = segments(directory)[0].with_suffix(suffix)
    sound = file.read_bytes() if file.exists() else bytes(34 * 5)
    for _ in range(60):
        data = bytearray(sound if rng.random() < 0.7 else rng.randbytes(rng.randrange(500)))
        for _ in range(rng.randrange(20) if data else 0):
            data[rng.randrange(len(data))] = rng.choice((0, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        file.write_bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data)
        result = dump("--records", *(["--json"] if rng.random() < 0.5 else []), directory)
        assert result.exit_code in (0, 1)
        assert (result.exit_code == 1) == (("CORRUPT" in result.stdout) or ('"kind": "problem"' in result.stdout))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", "log", "dump", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_bad_usage_is_one_sentence(tmp_path: Path) -> None:
    missing = run(str(tmp_path / "none.log"))
    assert missing.returncode == 2
    assert missing.stderr == f"penstock: {tmp_path}/none.log: there is no such file\n"
    assert run().returncode == 2
    assert run(str(tmp_path)).stderr == f"penstock: {tmp_path} holds no log files\n"
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    result = run(str(other))
    assert result.returncode == 2
    assert "not a log file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_closed_pipe_is_silent_and_a_full_disk_is_not_a_read_error(directory: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "log", "dump", "--records", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(30) == 141
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "penstock: cannot write the output: no space left on device\n"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)
