"""Debian's kcat (an old librdkafka): the client that switches features off without a word."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.records.batch import iterate_headers
from penstock.records.compression import CODEC_BY_NAME

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Run = Callable[..., str]


@pytest.fixture
def run(kcat: str, bootstrap: str) -> Run:
    """kcat against the broker; returns what it printed."""

    def call(*arguments: str, text: str | bytes = b"", ok: bool = True) -> str:
        data = text.encode() if isinstance(text, str) else text
        done = subprocess.run([kcat, "-b", bootstrap, *arguments], input=data, capture_output=True, timeout=60)
        said = done.stderr.decode()
        assert (done.returncode == 0) == ok, said
        return done.stdout.decode() if ok else said

    return call


def consume(run: Run, topic: str, *arguments: str) -> list[dict[str, Any]]:
    lines = run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", *arguments).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression(run: Run, topic: str, codec: str, broker_process: Any) -> None:
    sent = [f"line {number} " + "x" * 50 for number in range(500)]
    run("-P", "-t", topic, "-z", codec, text="\n".join(sent) + "\n")
    assert [message["payload"] for message in consume(run, topic)] == sent
    # It really compressed: an old librdkafka stops when it dislikes the advertised versions.
    data = Path(broker_process.process.args[broker_process.process.args.index("--data") + 1])
    (log,) = (data / f"{topic}-0").glob("*.log")
    codecs = {header.compression for _, header in iterate_headers(log.read_bytes(), str(log))}
    assert codecs == {CODEC_BY_NAME.get(codec, 0)}


def test_keys_headers_and_nulls(run: Run, topic: str) -> None:
    run("-P", "-t", topic, "-K", ":", "-H", "a=1", "-H", "b=two", "-H", "empty=", text="key:value\n")
    run("-P", "-t", topic, "-K", ":", "-Z", text="tombstone:\n")
    run("-P", "-t", topic, text="no key\n")
    first, tombstone, keyless = consume(run, topic)
    assert (first["key"], first["payload"]) == ("key", "value")
    assert first["headers"] == ["a", "1", "b", "two", "empty", ""]
    assert (tombstone["key"], tombstone["payload"]) == ("tombstone", None)
    assert (keyless["key"], keyless["payload"]) == (None, "no key")
    assert [message["offset"] for message in (first, tombstone, keyless)] == [0, 1, 2]


def test_offsets(run: Run, topic: str) -> None:
    run("-P", "-t", topic, text="".join(f"{number}\n" for number in range(100)))
    assert run("-C", "-t", topic, "-o", "90", "-e", "-q").split() == [str(number) for number in range(90, 100)]
    assert run("-C", "-t", topic, "-o", "-3", "-e", "-q").split() == ["97", "98", "99"]
    assert run("-C", "-t", topic, "-o", "beginning", "-c", "5", "-q").split() == ["0", "1", "2", "3", "4"]
    messages = consume(run, topic)
    stamp = messages[50]["ts"]
    first = next(message["offset"] for message in messages if message["ts"] >= stamp)
    assert run("-C", "-t", topic, "-o", f"s@{stamp}", "-c", "1", "-q").split() == [str(first)]
    assert run("-Q", "-t", f"{topic}:0:{stamp}").split() == [topic, "[0]", "offset", str(first)]


def test_a_large_file(run: Run, topic: str, tmp_path: Path) -> None:
    content = b"0123456789" * 90_000
    path = tmp_path / "large"
    path.write_bytes(content)
    run("-P", "-t", topic, str(path))
    (message,) = consume(run, topic)
    assert message["payload"].encode() == content


def test_metadata(run: Run, topic: str, bootstrap: str) -> None:
    run("-P", "-t", topic, text="v\n")
    metadata = json.loads(run("-L", "-J"))
    assert [broker["name"] for broker in metadata["brokers"]] == [bootstrap]
    assert metadata["controllerid"] == metadata["brokers"][0]["id"]
    (found,) = [entry for entry in metadata["topics"] if entry["topic"] == topic]
    assert [partition["partition"] for partition in found["partitions"]] == [0]


def test_acks_and_idempotence(run: Run, topic: str) -> None:
    for acks in ("0", "1", "all"):
        run("-P", "-t", topic, "-X", f"acks={acks}", text=f"acks {acks}\n")
    run("-P", "-t", topic, "-X", "enable.idempotence=true", text="".join(f"{number}\n" for number in range(50)))
    found = [message["payload"] for message in consume(run, topic)]
    assert found == ["acks 0", "acks 1", "acks all", *(str(number) for number in range(50))]


def test_an_unknown_partition_is_an_error(run: Run, topic: str) -> None:
    run("-P", "-t", topic, text="v\n")
    assert "partition 9 does not exist" in run("-C", "-t", topic, "-p", "9", "-e", ok=False)
