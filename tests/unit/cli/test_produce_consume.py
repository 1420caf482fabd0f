"""`produce` and `consume`: formats, keys, headers, where reading starts and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.output import progress
from penstock.cli.reach.connection import Target
from penstock.cli.records.batching import BULK_BATCH_BYTES, BULK_LINGER_MS, batching
from penstock.sdk import BlockingConsumer, TopicPartition
from penstock.testing import Broker
from support.processes.command_line import CommandLine

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


def test_lines_in_and_out(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    sent = cli("produce", "--topic", topic, stdin=b"one\ntwo\r\nthree")
    assert (sent.code, sent.out) == (0, "")
    assert sent.err == f"Sent 3 records to {topic}.\n"
    assert cli("consume", "--topic", topic).lines == ["one", "two", "three"]
    assert cli("consume", "--topic", topic, "--max", "2").lines == ["one", "two"]
    assert cli("consume", "--topic", topic, "--offset", "1").lines == ["two", "three"]
    assert cli("consume", "--topic", topic, "--offset", "-1").lines == ["three"]
    past = cli("consume", "--topic", topic, "--offset", "99")
    assert (past.lines, past.err) == ([], f"penstock: offset 99 is past the end of {topic}, 3\n")
    assert cli("consume", "--topic", topic, "--offset", "3").err == ""
    assert cli("consume", "--topic", topic, "--from-time", "1h").lines == ["one", "two", "three"]
    assert cli("consume", "--topic", topic, "--from-time", "2100-01-01").lines == []
    assert json.loads(cli("produce", "--topic", topic, "--json", stdin=b"x\n").out) == {"topic": topic, "sent": 1}


def test_keys_headers_and_formats(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli(
        "produce", "--topic", topic, "--key-separator", ":", "--header", "trace=t1", "--null-value", "NULL",
        stdin=b"user-1:hello\nuser-2:NULL\n",
    )  # fmt: skip
    assert cli("consume", "--topic", topic, "--key", "--headers").lines == [
        "trace:t1\tuser-1\thello",
        "trace:t1\tuser-2\tnull",
    ]
    assert cli("consume", "--topic", topic, "--format", "hex", "--key", "--separator", " ").lines == [
        "757365722d31 68656c6c6f",
        "757365722d32 null",
    ]
    first, second = map(json.loads, cli("consume", "--topic", topic, "--format", "json").lines)
    assert first | {"timestamp": 0} == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "key": "user-1",
        "value": "hello",
        "headers": [["trace", "t1"]],
    }
    assert abs(first["timestamp"] - time.time() * 1000) < 60_000
    assert second["value"] is None
    template = r"{topic}/{partition}@{offset} {key}={value}\t{header.trace}"
    assert cli("consume", "--topic", topic, "--template", template).lines[0] == f"{topic}/0@0 user-1=hello\tt1"
    assert cli("consume", "--topic", topic, "--template", "{nothing}").code == 2


def test_json_makes_the_round_trip(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    lines = [
        {"value": {"base64": "/wA="}, "key": "k", "headers": {"h": None}, "timestamp": 1_700_000_000_000},
        {"value": {"a": [1, 2]}},
        {"value": "text"},
        {"value": None, "key": {"base64": "//4="}},
    ]
    cli("produce", "--topic", topic, "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())
    written = cli("consume", "--topic", topic, "--format", "json")
    found = [json.loads(line) for line in written.lines]
    assert [one["value"] for one in found] == [{"base64": "/wA="}, '{"a":[1,2]}', "text", None]
    assert [one["key"] for one in found] == ["k", None, None, {"base64": "//4="}]
    assert found[0]["headers"] == [["h", None]]
    assert found[0]["timestamp"] == 1_700_000_000_000
    copy = f"{topic}-copy"
    cli("topics", "create", "--name", copy, "--partitions", "1")
    cli("produce", "--topic", copy, "--format", "json", stdin=written.out.encode())
    again = [json.loads(line) for line in cli("consume", "--topic", copy, "--format", "json").lines]
    assert [one | {"topic": topic} for one in again] == found


def test_filters(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli(
        "produce",
        "--topic",
        topic,
        "--key-separator",
        ":",
        stdin=b'a:{"s":"up","n":1}\nb:{"s":"down","n":2}\na:plain\n',
    )

    def offsets(*tests: str) -> list[str]:
        filters = [word for test in tests for word in ("--filter", test)]
        return cli("consume", "--topic", topic, "--template", "{offset}", *filters).lines

    assert offsets("up|plain") == ["0", "2"]
    assert offsets("key=a") == ["0", "2"]
    assert offsets("key!=a") == ["1"]
    assert offsets("json.s=down") == ["1"]
    assert offsets("json.n!=2", "key~^a$") == ["0", "2"]
    assert offsets("value!~plain") == ["0", "1"]
    assert cli("consume", "--topic", topic, "--filter", "(").code == 2


def test_files_and_whole_files(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(b"3\n")
    cli("produce", "--topic", topic, str(first), str(second))
    cli("produce", "--topic", topic, "--format", "file", "--key", "k", str(first))
    assert (
        cli("consume", "--topic", topic, "--template", "{offset}{key}:{value};").out == "0:1;\n1:2;\n2:3;\n3k:1\n2\n;\n"
    )
    missing = cli("produce", "--topic", topic, str(tmp_path / "none"))
    assert missing.code == 2
    assert "no such file" in missing.err
    bad = cli("produce", "--topic", topic, "--key-separator", ":", stdin=b"a:1\nbroken\n")
    assert bad.code == 2
    assert "standard input, line 2: no ':' between key and value" in bad.err


def test_partitions_and_round_robin(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "3")
    cli("produce", "--topic", topic, "--partitioner", "round-robin", stdin=b"a\nb\nc\nd\ne\nf\n")
    counts = [len(cli("consume", "--topic", topic, "--partition", str(number)).lines) for number in range(3)]
    assert counts == [2, 2, 2]
    cli("produce", "--topic", topic, "--partition", "2", stdin=b"g\n")
    assert cli("consume", "--topic", topic, "--partition", "2", "--filter", "g").lines == ["g"]
    refused = cli("consume", "--topic", topic, "--partition", "7")
    assert refused.code == 2
    assert "partitions 0 to 2" in refused.err


def test_an_empty_topic_and_a_missing_one(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "2")
    assert cli("consume", "--topic", topic).lines == []
    missing = cli("consume", "--topic", f"{topic}-missing")
    assert missing.code == 1
    assert f"topic {topic}-missing" in missing.err


def test_contradictions_are_usage_errors(cli: CommandLine, topic: str) -> None:
    assert cli("consume", "--topic", topic, "--from-beginning", "--offset", "1").code == 2
    assert cli("consume", "--topic", topic, "--group", "g", "--offset", "1").code == 2
    assert cli("consume", "--topic", topic, "--from-time", "yesterday-ish").code == 2
    assert cli("consume", "--topic", topic, "--format", "template").code == 2
    assert cli("consume").code == 2


@pytest.fixture
def environment(penstock_broker: Broker) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": penstock_broker.bootstrap_servers}


def test_follow_prints_what_comes_and_ends_on_interrupt(
    cli: CommandLine, topic: str, environment: dict[str, str]
) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli("produce", "--topic", topic, stdin=b"old\n")
    with subprocess.Popen(
        [*PENSTOCK, "consume", "--topic", topic, "--follow", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"
        cli("produce", "--topic", topic, stdin=b"new\n")
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_closed_pipe_is_quiet(cli: CommandLine, topic: str, environment: dict[str, str]) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli("produce", "--topic", topic, stdin=b"x" * 100 + b"\n" + (b"y" * 100 + b"\n") * 5000)
    ran = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m penstock.cli consume --topic {topic} | head -1"],
        capture_output=True,
        env=environment,
        timeout=60,
    )
    assert ran.stdout == b"x" * 100 + b"\n"
    assert ran.stderr == b""


def test_a_broker_that_dies_while_it_is_read(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = penstock_broker_factory()
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    cli("produce", "--topic", "t", stdin=b"x\n" * 10)
    bounds = BlockingConsumer.bounds

    def then_stop(self: BlockingConsumer, partition: TopicPartition) -> tuple[int, int]:
        found = bounds(self, partition)
        broker.stop()
        return found

    monkeypatch.setattr(BlockingConsumer, "bounds", then_stop)
    address = broker.bootstrap_servers
    ran = cli("consume", "--topic", "t", "--timeout", "1")
    assert ran.code == 1
    assert ran.err.startswith(f"penstock: no broker answers at {address}: start one")


def test_a_partition_in_json_is_where_the_record_goes(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "3")
    lines = b'{"value": "a", "partition": 2}\n{"value": "b", "partition": 1}\n'
    assert cli("produce", "--topic", topic, "--format", "json", stdin=lines).code == 0
    assert cli("consume", "--topic", topic, "--partition", "2").lines == ["a"]
    assert cli("consume", "--topic", topic, "--partition", "1").lines == ["b"]
    cli("produce", "--topic", topic, "--format", "json", "--partition", "0", stdin=lines)
    assert cli("consume", "--topic", topic, "--partition", "0").lines == ["a", "b"]
    beyond = b'{"value": "c", "partition": 0}\n\n{"value": "d", "partition": 3}\n{"value": "e", "partition": 3}\n'
    ran = cli("produce", "--topic", topic, "--format", "json", stdin=beyond)
    assert ran.code == 1
    assert "2 of 3 records not delivered, the first from standard input, line 3: " in ran.err
    assert "the topic has no partition 3" in ran.err
    for wrong in (b'"1"', b"true", b"-1"):
        ran = cli("produce", "--topic", topic, "--format", "json", stdin=b'{"value": 1, "partition": %s}\n' % wrong)
        assert (ran.code, "partition must be a number from 0" in ran.err) == (2, True)


def test_a_bad_line_says_what_was_sent_before_it(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    ran = cli("produce", "--topic", topic, "--format", "json", stdin=b'{"value": 1}\n\n  \n{"value": 2}\nbroken\n')
    assert ran.code == 2
    assert ran.err == (
        "penstock: standard input, line 5: not JSON: Expecting value at column 1; "
        f"2 records before it sent to {topic}\n"
    )
    assert cli("consume", "--topic", topic).lines == ["1", "2"]
    beyond = b'{"value": 1, "partition": 7}\n{"value": 2}\nbroken\n'
    ran = cli("produce", "--topic", topic, "--format", "json", stdin=beyond)
    assert ran.code == 2
    assert "line 3: not JSON" in ran.err
    assert "1 record before it sent to" in ran.err
    assert "1 of 2 records not delivered, the first from standard input, line 1" in ran.err


def test_what_cannot_be_sent(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    ran = cli("produce", "--topic", topic, str(tmp_path))
    assert (ran.code, ran.err) == (2, f"penstock: {tmp_path} is a directory: give files\n")
    ran = cli("produce", "--topic", topic, "--key-separator", "", stdin=b"a\n")
    assert (ran.code, "--key-separator is empty" in ran.err) == (2, True)
    cli("topics", "create", "--name", topic, "--partitions", "1", "--config", "cleanup.policy=compact")
    ran = cli("produce", "--topic", topic, stdin=b"a\n")
    assert ran.code == 1
    assert "it has no key, and a compacted topic needs a key (INVALID_RECORD)" in ran.err


def test_a_large_record_needs_only_the_topic_to_allow_it(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    large = b"x" * 2_000_000
    ran = cli("produce", "--topic", topic, stdin=large)
    assert ran.code == 1
    assert "MSG_SIZE_TOO_LARGE" in ran.err
    assert "raise max.message.bytes of the topic" in ran.err
    cli("configs", "set", "--topic", topic, "max.message.bytes=2100000")
    assert cli("produce", "--topic", topic, stdin=large).code == 0


def test_batches_of_what_is_piped_in_are_large_and_fit_the_topic(
    cli: CommandLine, topic: str, penstock_broker: Broker
) -> None:
    target = Target(penstock_broker.bootstrap_servers, "test")
    assert batching(target, topic, is_typed=True) == {"linger_ms": 0}
    bulk = {"batch_size_bytes": BULK_BATCH_BYTES, "linger_ms": BULK_LINGER_MS}
    assert batching(target, topic, is_typed=False) == bulk, "the topic is not there yet"
    cli("topics", "create", "--name", topic, "--partitions", "1", "--config", "max.message.bytes=20000")
    assert batching(target, topic, is_typed=False) == {**bulk, "batch_size_bytes": 20_000}
    # Records that fit one by one are sent, however many come at once.
    assert cli("produce", "--topic", topic, stdin=(b"x" * 99 + b"\n") * 5_000).err == f"Sent 5000 records to {topic}.\n"
    cli("configs", "set", "--topic", topic, "max.message.bytes=5000000")
    assert batching(target, topic, is_typed=False) == bulk


def test_settings_of_the_users_own_win(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    file = tmp_path / "client.properties"
    file.write_text("batch.size=0\n")
    refused = cli("produce", "--topic", topic, "--command-config", str(file), stdin=b"a\n")
    assert refused.code == 2
    assert "batch.size" in refused.err


def test_what_is_typed_is_acknowledged_line_by_line(cli: CommandLine, topic: str, environment: dict[str, str]) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    keyboard, terminal = os.openpty()
    with subprocess.Popen(
        [*PENSTOCK, "produce", "--topic", topic],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        os.close(terminal)
        assert process.stderr is not None
        assert process.stderr.readline() == f"Each line is a record for {topic}; Ctrl-D ends.\n".encode()
        for number in range(3):
            os.write(keyboard, b"hello\n")
            assert process.stderr.readline() == f"  partition 0, offset {number}\n".encode()
        os.write(keyboard, b"\x04")
        out, err = process.communicate(timeout=30)
        os.close(keyboard)
    assert (process.returncode, out, err) == (0, b"", f"Sent 3 records to {topic}.\n".encode())


def test_a_closed_standard_input_is_told(topic: str, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m penstock.cli produce --topic {topic} <&-"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (
        2,
        "penstock: standard input is closed: give files, or pipe records in\n",
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"value": "v", "partition": 4294967296}', "partition must be a number from 0 to 2147483647, not 4294967296"),
        ('{"value": "v", "timestamp": 9223372036854775808}', "timestamp must be a number from 0 to 92233720368547758"),
        ("[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_json_that_no_record_can_have(cli: CommandLine, topic: str, line: str, says: str) -> None:
    ran = cli("produce", "--topic", topic, "--format", "json", stdin=line.encode())
    assert ran.code == 2
    assert ran.err.startswith("penstock: standard input, line 1: ")
    assert says in ran.err


def test_a_field_of_json_that_is_nested_too_deep_is_empty(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli("produce", "--topic", topic, stdin=b"[" * 100_000)
    assert cli("consume", "--topic", topic, "--template", "<{json.a}>").lines == ["<>"]


def test_no_progress_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert progress(0, "standard input").hidden  # typed or piped: nobody knows how much there is
    assert not progress(1000, "a file").hidden


def test_fields_of_filters(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    for headers in (["a=1", "a=2"], ["a=2"], ["b=1"]):
        options = [word for header in headers for word in ("--header", header)]
        cli("produce", "--topic", topic, *options, stdin=b"k=v\n")

    def offsets(test: str) -> list[str]:
        return cli("consume", "--topic", topic, "--template", "{offset}", "--filter", test).lines

    assert offsets("header.a=1") == ["0"]
    assert offsets("header.a=2") == ["0", "1"]
    assert offsets("header.a!=1") == ["1", "2"]
    assert offsets("header.a~[12]") == ["0", "1"]
    assert offsets("header.a!~2") == ["2"]
    assert offsets("value~k=v") == ["0", "1", "2"]
    for field, test in (("ky", "ky=k"), ("header", "header=1"), ("k.v", "k.v~x"), ("jsn.a", "jsn.a!=1")):
        ran = cli("consume", "--topic", topic, "--filter", test)
        assert ran.code == 2
        assert f"unknown field {field}, " in ran.err
        assert "use topic, partition, offset" in ran.err
        assert f"value~{test}" in ran.err


def test_json_is_a_format_too(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    cli("produce", "--topic", topic, stdin=b"a\n")
    assert cli("consume", "--topic", topic, "--json").out == cli("consume", "--topic", topic, "--format", "json").out
    assert cli("consume", "--topic", topic, "--json", "--format", "hex").code == 2


def test_followers_are_told_when_the_broker_or_the_topic_is_gone_and_back(tmp_path: Path) -> None:
    broker = Broker(data=tmp_path).start()
    address = broker.bootstrap_servers
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": address}

    def run(*words: str, stdin: bytes = b"") -> None:
        subprocess.run([*PENSTOCK, *words], input=stdin, env=environment, check=True, capture_output=True, timeout=60)

    run("topics", "create", "--name", "t", "--partitions", "1")
    with subprocess.Popen(
        [*PENSTOCK, "consume", "--topic", "t", "--follow", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        run("produce", "--topic", "t", stdin=b"one\n")
        assert process.stdout.readline() == b"one\n"
        broker.stop()
        assert process.stderr.readline() == f"penstock: the broker at {address} is gone: waiting for it\n".encode()
        broker.start()
        assert process.stderr.readline() == f"penstock: the broker at {address} is back\n".encode()
        run("produce", "--topic", "t", stdin=b"two\n")
        assert process.stdout.readline() == b"two\n"
        run("topics", "delete", "--name", "t")
        assert process.stderr.readline() == b"penstock: topic t is gone: waiting for it\n"
        run("topics", "create", "--name", "t", "--partitions", "1")
        run("produce", "--topic", "t", stdin=b"three\n")
        assert process.stderr.readline() == b"penstock: topic t is back\n"
        assert process.stdout.readline() == b"three\n"
        process.terminate()
        out, err = process.communicate(timeout=30)
    broker.stop()
    assert (process.returncode, out, err) == (0, b"", b"")
