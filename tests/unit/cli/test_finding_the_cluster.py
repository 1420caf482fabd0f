"""How commands find a cluster, what they say when there is none, `doctor`, completion."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cli.arguments.times import parse_time
from penstock.cli.doctor import command as doctor
from penstock.cli.reach.connection import split_address
from penstock.model.errors import ConfigError
from penstock.testing import Broker
from penstock.wire.apis import Api
from support.processes.command_line import CommandLine
from support.scripted.broker import ScriptedBroker


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["groups", "list"],
        ["cluster", "status"],
        ["lag", "--group", "g"],
        ["produce", "--topic", "t"],
        ["consume", "--topic", "t"],
        ["configs", "describe", "--topic", "t"],
    ],
)
def test_no_broker_is_one_sentence(cli: CommandLine, command: list[str], closed_port: int) -> None:
    address = f"127.0.0.1:{closed_port}"
    ran = cli(*command, "--bootstrap-server", address)
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err == (
        f"penstock: no broker answers at {address}: start one with `penstock start`, "
        "or give another --bootstrap-server\n"
    )


def test_each_address_that_does_not_answer_has_its_reason(cli: CommandLine, closed_port: int) -> None:
    several = f"127.0.0.1:{closed_port},no..name:9092"
    ran = cli("topics", "list", "--bootstrap-server", several)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"penstock: no broker answers at {several} (127.0.0.1:{closed_port}: connection refused; no..name:9092: the "
        "name no..name does not resolve): start one with `penstock start`, or give another --bootstrap-server\n"
    )
    alone = cli("topics", "list", "--bootstrap-server", "no..name").err
    assert "no broker answers at no..name (the name no..name does not resolve): " in alone


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "describe", "--name", "nope"),
        ("topics", "alter", "--name", "nope", "--partitions", "3"),
        ("topics", "delete", "--name", "nope"),
        ("configs", "describe", "--topic", "nope"),
        ("configs", "set", "--topic", "nope", "retention.ms=5"),
        ("configs", "delete", "--topic", "nope", "retention.ms"),
        ("consume", "--topic", "nope"),
    ],
)
def test_an_unknown_topic_is_one_sentence_that_says_where_to_look(cli: CommandLine, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1
    assert "nope" in ran.err
    assert "there is no such topic or partition" in ran.err
    assert ran.err.endswith("; `penstock topics list` shows all topics\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("consume --topic t --partition 4294967296", "is not a number from 0 to 2147483647."),
        ("produce --topic t --partition one", "is not a number from 0 to 2147483647."),
        (f"produce --topic t --partition {'9' * 5000}", "is not a number from 0 to 2147483647."),
        ("cluster drain one", "Invalid value for 'BROKER': 'one' is not a number from 0 to 2147483647."),
        ("cluster remove 2147483648", "is not a number from 0 to 2147483647."),
        ("topics create --name t --partitions x", "'x' is not a number from 1 to 100000."),
        ("topics alter --name t --partitions 99999999", "'99999999' is not a number from 1 to 100000."),
        ("topics create --name t --replication-factor 0", "'0' is not a number from 1 to 32767."),
        ("topics list --timeout soon", "'soon' is not a number of seconds from 0.1 to 2147483."),
        ("topics list --timeout nan", "'nan' is not a number of seconds from 0.1 to 2147483."),
        ("topics list --timeout inf", "'inf' is not a number of seconds from 0.1 to 2147483."),
    ],
)
def test_what_is_no_number(cli: CommandLine, words: str, says: str) -> None:
    ran = cli(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"{says}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["topics", "create", "--name", "a b"], "'a b' is not a topic name: use letters, digits, '.', '_' and '-'"),
        (["topics", "describe", ".."], "'..' is not a topic name"),
        (["topics", "delete", "--name", ""], "Invalid value for '--name': the name is empty"),
        (["groups", "describe", ""], "Invalid value for '[GROUP]': the name is empty"),
        (["groups", "delete", "--group", ""], "Invalid value for '--group': the name is empty"),
        (["transactions", "describe"], "name the transactional id: TRANSACTIONAL-ID or --transactional-id TRANSA"),
        (["transactions", "abort", "--transactional-id", ""], "the name is empty"),
        (["transactions", "find-hanging", "--topic", "a/b"], "'a/b' is not a topic name"),
        (["groups", "reset-offsets", "--group", "g", "--to-datetime", "9" * 20], "is not a time: write 2026-"),
        (["topics", "list", "--bootstrap-server", ""], "'' is not a broker address: write HOST:PORT"),
        (["transactions", "list", "--bootstrap-server", ","], "',' is not a broker address: write HOST:PORT"),
        (["doctor", "--bootstrap-server", " , "], "is not a broker address: write HOST:PORT"),
    ],
)
def test_names_and_addresses_that_cannot_be(cli: CommandLine, words: list[str], says: str) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_what_is_unknown_is_told_with_the_command_that_lists_what_is_known(cli: CommandLine, topic: str) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    for words, known in (
        (("transactions", "describe-producers", "--topic", topic, "--partition", "7"), "penstock topics describe"),
        (("groups", "describe", "no-such"), "penstock groups list"),
        (("groups", "delete", "--group", "no-such"), "penstock groups list"),
        (("lag", "no-such"), "penstock groups list"),
    ):
        ran = cli(*words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert f"; `{known}` shows " in ran.err


def test_option_then_environment_then_default(
    cli: CommandLine, penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", f"127.0.0.1:{closed_port}")
    assert cli("topics", "list").code == 1
    assert cli("topics", "list", "--bootstrap-server", penstock_broker.bootstrap_servers).code == 0
    several = f"127.0.0.1:{closed_port},{penstock_broker.bootstrap_servers}"
    assert cli("topics", "list", "--bootstrap-server", several).code == 0
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS")
    monkeypatch.setattr("penstock.cli.reach.connection.DEFAULT_BOOTSTRAP_SERVERS", penstock_broker.bootstrap_servers)
    assert cli("topics", "list").code == 0


def test_a_properties_file_of_client_settings(
    cli: CommandLine, penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS")
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={penstock_broker.bootstrap_servers}\nsecurity.protocol=plaintext\n")
    assert cli("topics", "list", "--command-config", str(file)).code == 0
    file.write_text(f"bootstrap.servers={penstock_broker.bootstrap_servers}\nno.such.setting=1\n")
    refused = cli("topics", "list", "--command-config", str(file))
    assert refused.code == 2
    assert "no.such.setting" in refused.err
    assert refused.err.endswith(": correct the file of --command-config\n")
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_broker.bootstrap_servers)
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\n")
    refused = cli("topics", "list", "--command-config", str(file), "--timeout", "3")
    assert (refused.code, "(by SASL_PLAINTEXT): check security.protocol" in refused.err) == (1, True)
    assert cli("topics", "list", "--command-config", str(tmp_path / "none")).code == 2
    file.write_bytes(b"client.id=\xff\n")
    refused = cli("topics", "list", "--command-config", str(file))
    assert (refused.code, refused.err) == (
        2,
        f"penstock: {file} is not a UTF-8 text file: write NAME=VALUE on each line\n",
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("localhost", ("localhost", 9092)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("PLAINTEXT://h:1", ("h", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", ":9092", "h:port", "h:0", "h:70000"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(text)


def test_times() -> None:
    assert parse_time("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_time("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert parse_time("1700000000000") == datetime.fromtimestamp(1_700_000_000, UTC)
    assert 899 < (datetime.now(UTC) - parse_time("15m")).total_seconds() < 960
    with pytest.raises(ValueError, match="isoformat"):
        parse_time("soon")


def space(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda directory: SimpleNamespace(total=total, free=free))


@pytest.mark.parametrize(
    ("free", "state", "last", "code"),
    [
        (50 << 30, "ok", "Everything is in order.", 0),
        (5 << 30, "warning", "1 warning found.", 0),
        (1 << 20, "PROBLEM", "1 problem found.", 1),
    ],
)
def test_doctor_counts_what_it_warns_of(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, free: int, state: str, last: str, code: int
) -> None:
    space(monkeypatch, 100 << 30, free)
    ran = cli("doctor")
    assert (ran.code, ran.out.splitlines()[-1]) == (code, last)
    (line,) = [line for line in ran.out.splitlines() if "keeps its data in" in line]
    assert line.startswith(state)


def test_doctor_when_all_is_well(cli: CommandLine, penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    space(monkeypatch, 100 << 30, 50 << 30)
    lines = cli("doctor").lines
    assert lines[-1] == "Everything is in order."
    text = "\n".join(lines)
    assert "librdkafka" in lines[0]
    assert "from PENSTOCK_BOOTSTRAP_SERVERS" in lines[1]
    assert f"advertises {penstock_broker.bootstrap_servers}, which connects from here" in text
    assert "this machine only" in text
    assert f"keeps its data in {penstock_broker.data_directory}" in text
    assert "0 offline, 0 under-replicated" in text
    findings = json.loads(cli("doctor", "--json").out)
    assert {finding["state"] for finding in findings} <= {"ok", "warning"}


def test_doctor_explains_an_advertised_address_that_does_not_answer(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], closed_port: int
) -> None:
    broker = penstock_broker_factory({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{closed_port}"})
    # The embedded broker tells the address it advertises; the one it listens on is in its settings.
    port = listening_port(broker)
    ran = cli("doctor", "--bootstrap-server", f"127.0.0.1:{port}")
    assert ran.code == 1
    assert f"advertises 127.0.0.1:{closed_port}, which does not connect from here" in ran.out
    assert "advertised.listeners" in ran.out


def listening_port(broker: Broker) -> int:
    """The port that is bound, whatever is advertised."""
    assert broker._node is not None
    return int(broker._node.addresses[0].rpartition(":")[2])


def test_doctor_when_nothing_listens(cli: CommandLine, closed_port: int) -> None:
    ran = cli("doctor", "--bootstrap-server", f"127.0.0.1:{closed_port}")
    assert ran.code == 1
    assert "PROBLEM" in ran.out
    assert "penstock start" in ran.out


def test_doctor_at_a_port_that_speaks_something_else(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):  # the probe of the port, then the request
                connection, _address = server.accept()
                with connection:
                    if connection.recv(1024):
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        ran = cli("doctor", "--bootstrap-server", f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert ran.code == 1
    assert "does not speak Kafka's protocol" in ran.out


def test_doctor_at_the_port_of_a_protocol_of_lines(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_with, args=(server, b"ERR\r\n"), kwargs={"at_line_end": True})
        thread.start()
        ran = cli("doctor", "--bootstrap-server", f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert ran.code == 1
    assert "does not speak Kafka's protocol" in ran.out
    assert "does not answer" not in ran.out


def test_doctor_tells_of_refused_settings_after_what_it_found(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("no.such.setting=1\n")
    ran = cli("doctor", "--command-config", str(file))
    assert (ran.code, ran.err) == (1, "")
    assert "which connects from here" in ran.out
    assert "PROBLEM  cluster: cannot make an admin client" in ran.out
    assert "spark: " in ran.out
    assert ran.out.splitlines()[-1].startswith("1 problem")
    (problem,) = (one for one in json.loads(cli("doctor", "--command-config", str(file), "--json").out)
                  if one["state"] == "problem")  # fmt: skip
    assert "no.such.setting" in problem["sentence"]


def answer_with(server: socket.socket, answer: bytes, *, at_line_end: bool) -> None:
    """To every connection until the server is closed, as a server of another protocol does."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            heard = b""
            while piece := connection.recv(1024):
                heard += piece
                if answer and (not at_line_end or b"\n" in heard):
                    connection.sendall(answer)
                    break


@pytest.mark.parametrize(
    ("answer", "at_line_end", "says"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            False,
            "does not speak Kafka's protocol. Is this the port of the REST proxy",
        ),
        (b"ERR unknown command\r\n", True, "does not speak Kafka's protocol. Is this the port of the REST proxy"),
        (
            b"",
            False,
            "(it accepts connections but does not answer for 2 s): the broker process is stopped or hangs: restart it",
        ),
    ],
)
def test_a_port_of_another_kind_is_told_at_once(cli: CommandLine, answer: bytes, at_line_end: bool, says: str) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_with, args=(server, answer), kwargs={"at_line_end": at_line_end})
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ran = cli("topics", "list", "--bootstrap-server", address, "--timeout", "2")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert time.monotonic() - began < 10
    assert (ran.code, ran.out) == (1, "")
    assert address in ran.err
    assert says in ran.err


@pytest.mark.parametrize("by_reset", [False, True])
def test_a_broker_that_is_full_closes_connections_at_once(cli: CommandLine, by_reset: bool) -> None:
    def close_all(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                if by_reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=close_all, args=(server,))
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ran = cli("topics", "list", "--bootstrap-server", address)
        seen = cli("doctor", "--bootstrap-server", address)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (ran.code, ran.err) == (
        1,
        f"penstock: {address} closed the connection at once. It may have too many connections: see its log\n",
    )
    told = "closed the connection at once. It may have too many connections: see its log\n"
    assert f"PROBLEM  bootstrap {address}: it {told}" in seen.out


def test_a_node_that_waits_for_the_others_of_its_cluster_is_told_as_such(cli: CommandLine, closed_port: int) -> None:
    """It tells what it can do, and hangs up on every question about the cluster."""
    with ScriptedBroker({Api.METADATA: lambda _: None}) as broker:
        address = f"127.0.0.1:{broker.port}"
        for words in (("topics", "list"), ("cluster", "status"), ("cluster", "quorum")):
            ran = cli(*words, "--bootstrap-server", f"{address},127.0.0.1:{closed_port}")
            assert (ran.code, ran.out) == (1, "")
            assert f"{address} is starting or cut off: it cannot reach the other nodes of its cluster" in ran.err
        ran = cli("doctor", "--bootstrap-server", address)
        assert ran.code == 1
        assert f"{address} is starting or cut off" in ran.out


def test_a_broker_that_hangs_does_not_take_all_the_time(cli: CommandLine, penstock_broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody accepts, but the system does
        hanging = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        servers = f"{hanging},{penstock_broker.bootstrap_servers}"
        assert cli("cluster", "quorum", "--bootstrap-server", servers, "--timeout", "30").code == 0
        assert time.monotonic() - began < 25
        ran = cli("doctor", "--bootstrap-server", hanging)
    assert f"PROBLEM  bootstrap {hanging}: it accepts connections but does not answer\n" in ran.out
    assert "stopped or hangs" in ran.out


def test_another_broker_is_asked_when_the_first_is_starting(cli: CommandLine, penstock_broker: Broker) -> None:
    with ScriptedBroker({Api.METADATA: lambda _: None}) as broker:
        servers = f"127.0.0.1:{broker.port},{penstock_broker.bootstrap_servers}"
        assert cli("topics", "list", "--bootstrap-server", servers).code == 0


@pytest.mark.parametrize(("words", "meant"), [("topicz", "topics"), ("topics creat", "create"), ("xyz", "")])
def test_a_command_that_is_not_there(cli: CommandLine, words: str, meant: str) -> None:
    ran = cli(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert "No such command" in ran.err
    assert f"Did you mean '{meant}'?" in ran.err if meant else "Did you mean" not in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: CommandLine, shell: str) -> None:
    for name in ("penstock", "streaming-system"):
        script = cli("completion", shell, name=name).out
        assert name in script
        assert f"_{name.replace('-', '_').upper()}_COMPLETE" in script
    refused = cli("completion", "tcsh")
    assert refused.code == 2
    assert "Invalid value for 'SHELL': 'tcsh' is not one of 'bash', 'zsh', 'fish'" in refused.err


def complete(words: str, environment: dict[str, str]) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.cli"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **environment,
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    return [line.partition(",")[2] for line in ran.stdout.splitlines()]


def test_completion_of_commands_options_and_topics(
    cli: CommandLine, penstock_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("topics", "create", "--name", f"complete-{topic}", "--partitions", "1")
    monkeypatch.setattr(sys, "argv", ["penstock"])
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": penstock_broker.bootstrap_servers}
    assert complete("penstock to", environment) == ["topics"]
    assert "--to-earliest" in complete("penstock groups reset-offsets --to-e", environment)
    assert complete(f"penstock topics describe --name complete-{topic[:3]}", environment) == [f"complete-{topic}"]


def test_every_command_has_help_under_both_names(cli: CommandLine) -> None:
    top = cli("--help", name="streaming-system").out
    assert "Usage: streaming-system" in top
    for words in (
        "topics create", "topics describe", "topics alter", "topics list", "topics delete", "groups list",
        "groups describe", "groups reset-offsets", "groups delete", "cluster status", "cluster under-replicated", "lag",
        "produce", "consume", "configs describe", "configs set", "configs delete", "doctor", "completion", "log dump",
        "transactions list", "transactions describe", "transactions describe-producers", "transactions find-hanging",
        "transactions abort",
    ):  # fmt: skip
        assert words.split(" ")[0] in top
        for name in ("penstock", "streaming-system"):
            shown = cli(*words.split(" "), "--help", name=name)
            assert shown.code == 0
            assert f"Usage: {name} {words}" in shown.out


@pytest.mark.parametrize(
    "group", ["topics", "configs", "cluster", "groups", "transactions", "pipeline", "pipeline sinks"]
)
def test_what_a_command_does_is_told_in_full(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = cli(*group.split(), "--help").lines
    assert listed[-1].startswith("  ")
    assert not [line for line in listed if line.endswith("...") and not line.startswith("Usage")]


def test_help_and_completion_do_not_load_the_client_library() -> None:
    script = (
        "import sys; from penstock.cli import topics, configs, completion; from penstock.cli.records import produce, "
        "consume; from penstock.cli.groups import command, lag; from penstock.cli.cluster import command; "
        "from penstock.cli.transactions import command, abort; "
        "import penstock; assert 'confluent_kafka' not in sys.modules; penstock.Producer; "
        "assert 'confluent_kafka' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_mistake_of_ours_is_one_sentence(penstock_broker: Broker) -> None:
    script = (
        "import sys, penstock.cli.reach.connection as c; from penstock.cli import main; "
        "c.Target.admin = lambda self: int('one\\ntwo'); sys.argv = ['penstock', 'topics', 'list']; main()"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "penstock: unexpected ValueError: invalid literal" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("\n") == 1
    shown = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PENSTOCK_TRACEBACK": "1"},
    )
    assert "Traceback" in shown.stderr
