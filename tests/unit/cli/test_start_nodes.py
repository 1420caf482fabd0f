"""`penstock start --nodes`: a cluster of real processes on ports of the system's choice, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.request import urlopen

import pytest

from penstock.cli.start import nodes as start_nodes
from penstock.config.properties import parse_properties
from penstock.runtime.data_directory import lock_directory
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from support.clients.raw import RawClient
from support.processes.command_line import CommandLine

START = [sys.executable, "-m", "penstock.cli", "start"]
PATIENCE_S = 60.0
WITHOUT_GATEWAY = ("--set", "penstock.http.listener=", "--set", "penstock.line.listener=")


class Cluster:
    """The command and what it has said so far."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [*START, "--nodes", "3", "--port", "0", "--data", str(data), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self.out.extend, args=(self.process.stdout,)),
            threading.Thread(target=self.err.extend, args=(self.process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def until(self, what: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline_s, "".join(self.out + self.err)
            time.sleep(0.02)

    def wait_ready(self) -> str:
        self.until(lambda: self.out or self.process.poll() is not None)
        assert self.out, "".join(self.err)
        return self.out[0]

    def settings(self, number: int) -> dict[str, str]:
        return parse_properties((self.data / f"node-{number}.properties").read_text())

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def pid_of(self, number: int) -> int:
        name = f"node-{number}.properties"
        return next(pid for pid in self.pids() if name in Path(f"/proc/{pid}/cmdline").read_text())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(how)
        return self.rest()

    def rest(self) -> str:
        """Its output until it ends by itself."""
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return "".join(self.err)

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()
        self.rest()


@contextmanager
def cluster(data: Path, *arguments: str) -> Iterator[Cluster]:
    there = Cluster(data, *arguments)
    try:
        yield there
    finally:
        there.end()


def told_by(there: Cluster, number: int) -> int:
    """The node whose metrics a node's HTTP port shows: the one that is no peer of itself."""
    with urlopen(f"http://{there.settings(number)['penstock.http.listener']}/metrics", timeout=PATIENCE_S) as answer:
        page = answer.read().decode()
    others = {int(peer) for peer in re.findall(r'^penstock_peer_connected{node="(\d)"}', page, re.MULTILINE)}
    (own,) = {1, 2, 3} - others
    return own


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def refused_beside_it(there: Cluster) -> None:
    """Neither a second cluster in the same place nor a broker, and no file changes."""
    before = [there.settings(number) for number in (1, 2, 3)]
    for arguments, sentence in (
        (["--nodes", "3", "--port", "0"], "is in use: stop the cluster or broker there, or give another directory"),
        (["--port", "0"], "holds the nodes of a cluster: start it with penstock start --nodes"),
    ):
        second = subprocess.run(
            [*START, *arguments, "--data", str(there.data)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert second.returncode == 2
        assert f"{there.data} {sentence}" in second.stderr
    assert [there.settings(number) for number in (1, 2, 3)] == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_cluster_starts_serves_loses_a_node_and_stops(tmp_path: Path) -> None:
    data = tmp_path / "a place" / "c=1 \\ é"
    with cluster(data, "--set", "num.partitions=2") as there:
        line = there.wait_ready()
        assert re.match(r"penstock \S+ ready on (127\.0\.0\.1:\d+,?){3}: 3 nodes, data in ", line)
        addresses = re.findall(r"127\.0\.0\.1:(\d+)", line)
        assert [there.settings(number)["listeners"].split(",")[0] for number in (1, 2, 3)] == [
            f"PLAINTEXT://127.0.0.1:{port}" for port in addresses
        ]
        for number in (1, 2, 3):
            settings = there.settings(number)
            assert settings["num.partitions"] == "2"
            assert settings["min.insync.replicas"] == "2"
            assert settings["log.dirs"] == str(data / f"node-{number}")
            assert bool(settings["penstock.line.listener"]) is (number == 1)
        there.until(lambda: len(there.out) == 5)
        listed = ",".join(f"127.0.0.1:{port}" for port in addresses)
        assert there.out[4].endswith(f": export PENSTOCK_BOOTSTRAP_SERVERS={listed}\n")
        assert there.out[1:4] == [
            f"node {number}: Kafka on 127.0.0.1:{addresses[number - 1]}, HTTP on {settings['penstock.http.listener']}"
            + (f", lines on {settings['penstock.line.listener']}" if number == 1 else "")
            + "\n"
            for number in (1, 2, 3)
            for settings in [there.settings(number)]
        ]
        for number in (1, 2, 3):  # each tells of itself alone
            assert told_by(there, number) == number
        with RawClient(int(addresses[2])) as client:
            client.make_topic("t")
        pids = there.pids()
        refused_beside_it(there)
        victim = there.pid_of(3)
        os.kill(victim, signal.SIGKILL)
        there.until(lambda: any("node 3 has ended (killed by SIGKILL)" in line for line in there.err))
        again = next(line for line in there.err if "node 3 has ended" in line)
        assert f"penstock start {data}/node-3.properties" in again
        said = there.stop()
        assert there.process.returncode == 0
        assert "node 1 | " in said
        assert "node 2 | " in said
        assert not any(map(is_running, pids))
    strange = ("--set", "no.such.setting=1", "--set", "min.insync.replicas=4")
    with cluster(data, *strange) as again_there:  # on other ports, with what it had
        line = again_there.wait_ready()
        warnings = [said for said in again_there.err if " WARNING " in said]
        assert "unknown setting 'no.such.setting' ignored" in warnings[0]
        assert "no.such.setting" not in again_there.settings(1)
        overruled = sorted(said.partition(" | ")[0] for said in warnings if "=4 in this node's settings" in said)
        assert overruled == ["node 1", "node 2", "node 3"]
        with RawClient(int(re.findall(r"127\.0\.0\.1:(\d+)", line)[0])) as client:
            answer = client.call(Api.METADATA, MetadataRequest(topics=None), MetadataResponse, 12)
            assert [topic.name for topic in answer.topics] == ["t"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a signal at the parent's death")
def test_nodes_do_not_outlive_the_command(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        there.wait_ready()
        pids = there.pids()
        assert len(pids) == 3
        there.process.kill()
        there.process.wait(PATIENCE_S)
        there.until(lambda: not any(map(is_running, pids)))


def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        there.until(lambda: there.err)
        there.stop(signal.SIGINT)
        assert there.process.returncode == 0
        assert there.out == []


def test_interrupted_where_a_script_started_it_in_the_background(tmp_path: Path) -> None:
    """A shell makes such a process ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with cluster(tmp_path) as there:
            there.until(lambda: there.err)
            there.stop(signal.SIGINT)
            assert there.process.returncode == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_node_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    with cluster(tmp_path, "--set", "broker.heartbeat.interval.ms=9000") as there:
        said = there.rest()
        assert there.process.returncode == 2
        assert "could not be started: see its log lines above" in said
        assert "| penstock: broker.heartbeat.interval.ms=9000" in said


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "10"], "Invalid value for '--nodes': 10 is not in the range 1<=x<=9."),
        (["--nodes", "0"], "0 is not in the range 1<=x<=9"),
        (["--nodes", "three"], "'three' is not a valid integer"),
        (["--nodes", "3", "--port", "65534"], "--port 65534 leaves no room for 3 nodes: use a lower port"),
        (["--nodes", "3", "--port", "2033"], "--port 2033 leaves no room for the REST proxies, 1010 below it"),
        (
            ["--nodes", "3", "--port", "0", "--set", "penstock.http.listener=127.0.0.1:65534"],
            "penstock.http.listener: port 65534 leaves no room for 3 nodes: use a lower port",
        ),
        (["--nodes", "3", "--set", "penstock.http.listener=8082"], "penstock.http.listener: '8082' is not an address"),
        (["--nodes", "3", "--host", ""], "--host '' cannot be used with --nodes: give one address of this machine"),
        (["--nodes", "3", "--host", "0.0.0.0"], "--host '0.0.0.0' cannot be used with --nodes"),
        (["--nodes", "3", "--host", "no.such.host.invalid", "--port", "0"], "cannot listen on no.such.host.invalid: "),
        (["--nodes", "3", "--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1: "),
        (["--nodes", "3", "--set", "node.id=7"], "--set node.id=... cannot be used with --nodes"),
        (["--nodes", "3", "--set", "listeners=PLAINTEXT://:1"], "--set listeners=... cannot be used with --nodes"),
        (["--nodes", "3", "--set", "log.dirs=/tmp/x"], "--set log.dirs=... cannot be used with --nodes"),
        (["--nodes", "3", "--set", "controller.quorum.voters=1@a:1"], "--set controller.quorum.voters=... cannot be"),
        (["--nodes", "3", "--set", "nonsense"], "write KEY=VALUE"),
        (["--nodes", "3", "some.properties"], "give a properties file or --nodes, not both"),
    ],
)
def test_what_is_refused(penstock: CommandLine, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    data = tmp_path / "data"
    ran = penstock("start", "--data", str(data), *arguments)
    assert ran.code == 2
    assert sentence in ran.err
    assert not data.exists(), "nothing is left behind"


def test_a_port_that_is_taken_leaves_no_directory(penstock: CommandLine, tmp_path: Path) -> None:
    for data, is_kept in ((tmp_path / "new", False), (tmp_path, True)):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            ran = penstock("start", "--nodes", "3", "--port", port, "--data", str(data), *WITHOUT_GATEWAY)
        assert ran.code == 2
        assert f"cannot listen on 127.0.0.1:{port}" in ran.err
        assert data.exists() is is_kept


def test_lines_for_programs_are_json_alone(tmp_path: Path) -> None:
    with cluster(tmp_path, "--log-format", "json", *WITHOUT_GATEWAY) as there:
        there.wait_ready()
        os.kill(there.pid_of(2), signal.SIGKILL)
        there.until(lambda: any("node 2 has ended" in line for line in there.err))
        there.stop()
    lines = [json.loads(line) for line in there.err]
    assert {line.get("node") for line in lines} >= {1, 2, 3}
    assert any(" ready on " in line["message"] for line in lines if line.get("node") == 3)
    (ended,) = [line for line in lines if "has ended" in line["message"]]
    assert (ended["level"], "node" in ended) == ("warning", False)


def test_a_place_that_is_no_directory(penstock: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(file))
    assert ran.code == 2
    assert f"cannot write to {file}: " in ran.err
    assert "give another directory with --data" in ran.err


def test_a_cluster_of_another_size(penstock: CommandLine, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}.properties").write_text("")
    ran = penstock("start", "--nodes", "5", "--port", "0", "--data", str(tmp_path))
    assert ran.code == 2
    assert "holds a cluster of 3 nodes: use --nodes 3, or give another directory with --data" in ran.err


def test_a_place_of_a_single_broker(penstock: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(tmp_path))
    assert ran.code == 2
    assert f"{tmp_path} holds the data of a single broker: give another directory with --data" in ran.err
    assert not list(tmp_path.glob("node-*"))


def test_a_node_that_still_runs(penstock: CommandLine, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}").mkdir()
        (tmp_path / f"node-{number}.properties").write_text("as it was")
    lock = lock_directory(str(tmp_path / "node-2"))
    assert lock is not None
    try:
        ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(tmp_path))
    finally:
        os.close(lock)
    assert ran.code == 2
    assert f"node 2 of {tmp_path} still runs: stop it first" in ran.err
    assert {file.read_text() for file in tmp_path.glob("*.properties")} == {"as it was"}


class EndedNode:
    """A node that was ready and has ended where the test says so; unless all have, the command is then told to stop."""

    codes: ClassVar[dict[int, int]]

    def __init__(self, number: int, file: Path, log_level: str) -> None:
        self.number = number
        self.file = file
        self.is_ready = threading.Event()
        self.is_ready.set()

    @property
    def exit_code(self) -> int | None:
        if self.number == 3 and len(self.codes) < 3:
            signal.raise_signal(signal.SIGTERM)
        return self.codes.get(self.number)

    def terminate(self) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        pass


@pytest.mark.parametrize(
    ("codes", "code", "sentence"),
    [
        ({}, 0, ""),
        ({2: 0}, 0, ""),
        ({2: -signal.SIGKILL}, 0, ""),
        ({2: 2}, 1, "ended with an error while the cluster ran: node 2 (exit code 2); see the log lines above"),
        ({3: -signal.SIGSEGV}, 1, "ended with an error while the cluster ran: node 3 (killed by SIGSEGV)"),
        ({1: 0, 2: 0, 3: 0}, 1, "all nodes have ended"),
        (
            {1: 0, 2: 1, 3: 2},
            1,
            "ended with an error while the cluster ran: node 2 (exit code 1), node 3 (exit code 2)",
        ),
    ],
)
def test_nodes_that_end_by_themselves(
    penstock: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    codes: dict[int, int],
    code: int,
    sentence: str,
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(start_nodes, "LocalNode", EndedNode)
    monkeypatch.setattr(EndedNode, "codes", codes, raising=False)
    try:
        ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(tmp_path))
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert ran.code == code, ran.err
    assert ("penstock: " in ran.err) is bool(sentence)
    assert sentence in ran.err
    for ended in codes:
        assert f"node {ended} has ended (" in ran.err


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ([], []),
        (["default.replication.factor=2"], []),
        (["min.insync.replicas=3"], []),
        (["min.insync.replicas=4"], ["but topics have 3 replicas: the effective value is 3, and acks=all waits"]),
        (
            ["default.replication.factor=1"],
            ["min.insync.replicas=2, but topics have 1 replica: the effective value is 1"],
        ),
        (
            ["default.replication.factor=5"],
            ["but there are 3 nodes: a topic without its own replication factor cannot"],
        ),
        (
            ["zookeeper.connect=a:1", "min.insync.replica=1"],
            ["ZooKeeper is not used", "did you mean min.insync.replicas?"],
        ),
    ],
)
def test_settings_that_are_worth_a_warning(
    penstock: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: list[str], parts: list[str]
) -> None:
    monkeypatch.setattr(start_nodes, "_run_all", lambda *_: None)
    flags = [flag for setting in settings for flag in ("--set", setting)]
    ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(tmp_path), *flags)
    assert ran.code == 0
    warnings = [line for line in ran.err.splitlines() if " WARNING " in line]
    assert len(warnings) == len(parts), ran.err
    for part, warning in zip(parts, warnings, strict=True):
        assert part in warning


def test_what_the_cluster_agreed_on_is_written_once(
    penstock: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later it may have changed, and a file that says the old value would be a reason to warn."""
    monkeypatch.setattr(start_nodes, "_run_all", lambda *_: None)

    def written(*flags: str) -> list[str | None]:
        ran = penstock("start", "--nodes", "3", "--port", "0", "--data", str(tmp_path), *flags)
        assert ran.code == 0, ran.err
        assert " WARNING " not in ran.err
        files = [parse_properties((tmp_path / f"node-{number}.properties").read_text()) for number in (1, 2, 3)]
        assert {file["default.replication.factor"] for file in files} == {"3"}
        return [file.get("min.insync.replicas") for file in files]

    assert written() == ["2", "2", "2"]
    assert written() == ["2", "2", "2"]  # the first start may have ended before there was a cluster
    (tmp_path / "node-2").mkdir(exist_ok=True)
    (tmp_path / "node-2" / "meta.properties").write_text("cluster.id=x\n")
    assert written() == [None, None, None]
    assert written("--set", "min.insync.replicas=1") == ["1", "1", "1"]
    prescribed = ("--set", f"penstock.cluster.id={'c' * 22}")  # and written down before there is a cluster
    assert written(*prescribed) == ["2", "2", "2"]
