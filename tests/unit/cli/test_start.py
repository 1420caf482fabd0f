"""`penstock start` from the outside: what it prints, what it refuses and how."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.clients.raw import RawClient

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a command that must fail; its one sentence."""
    result = subprocess.run(
        [*PENSTOCK, *arguments], capture_output=True, text=True, timeout=30, env={**os.environ, **(env or {})}
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("penstock: ")
    return lines[-1]


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = refused("start", "--port", str(port), "--data", str(tmp_path))
    assert f"127.0.0.1:{port}" in sentence
    assert "taken" in sentence


def test_data_that_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    for place in (file, file / "below"):
        assert f"{place} is not a directory" in refused("start", "--port", "0", "--data", str(place))
    assert file.read_text() == "hello"


def test_directory_of_another_node(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        stop(process)
    sentence = refused("start", "--port", "0", "--data", str(tmp_path), "--set", "node.id=7")
    assert "belongs to node.id=1" in sentence


def test_directory_in_use(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        assert "in use by another broker" in refused("start", "--port", "0", "--data", str(tmp_path))
        stop(process)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"\xff\xfe\x00", "not a properties file"),
        (b"garbage", "no node.id"),
        (b"node.id=1", "no cluster.id"),
        (b"", ""),
    ],
)
def test_damaged_meta_properties(tmp_path: Path, data: bytes, part: str) -> None:
    file = tmp_path / "meta.properties"
    file.write_bytes(data)
    sentence = refused("start", "--port", "0", "--data", str(tmp_path))
    assert f"{file} is damaged: " in sentence
    assert part in sentence
    assert file.read_bytes() == data


def test_missing_meta_properties_over_data(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        stop(process)
    (tmp_path / "meta.properties").unlink()
    before = contents(tmp_path)
    assert "meta.properties is missing" in refused("start", "--port", "0", "--data", str(tmp_path))
    assert contents(tmp_path) == before


def test_damaged_metadata_log_is_a_failed_start(tmp_path: Path) -> None:
    with started("--data", str(tmp_path), "--set", "num.partitions=2") as (process, line):
        port = int(line.split(": node")[0].rpartition(":")[2])
        with RawClient(port) as client:
            client.make_topic("t")
        stop(process)
    [file] = (tmp_path / "__cluster_metadata-0").glob("*.log")
    data = bytearray(file.read_bytes())
    data[70] ^= 0x10
    file.write_bytes(data)
    assert f"{file}" in refused("start", "--port", "0", "--data", str(tmp_path))


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_place_of_a_cluster(tmp_path: Path) -> None:
    """Each of the nodes' directories has the name of a partition, and none is one."""
    for number in (1, 2, 3):
        (tmp_path / f"node-{number}" / "t-0").mkdir(parents=True)
        (tmp_path / f"node-{number}.properties").write_text(f"node.id={number}\n")
        (tmp_path / f"node-{number}" / "meta.properties").write_text(f"node.id={number}\ncluster.id=c\n")
        (tmp_path / f"node-{number}" / "t-0" / "00000000000000000000.log").write_bytes(b"records")
    before = contents(tmp_path)
    sentence = refused("start", "--port", "0", "--data", str(tmp_path))
    assert sentence == (
        f"penstock: {tmp_path} holds the nodes of a cluster: start it with penstock start --nodes, "
        f"or one node with penstock start {tmp_path}/node-1.properties"
    )
    assert contents(tmp_path) == before


def test_a_topic_may_be_called_node(tmp_path: Path) -> None:
    """With its partitions beside a file of settings that somebody put there."""
    file = tmp_path / "node-0.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    (tmp_path / "node-0").mkdir()
    with started(str(file)) as (process, line):
        assert " ready on " in line
        stop(process)


def test_no_default_data_directory() -> None:
    sentence = refused("start", "--port", "0", env={"HOME": "", "XDG_DATA_HOME": ""})
    assert "neither HOME nor XDG_DATA_HOME is set: name one with --data" in sentence


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_two_data_directories(tmp_path: Path, name: str) -> None:
    sentence = refused("start", "--data", str(tmp_path / "a"), "--set", f"{name}={tmp_path}/b")
    assert "give --data or --set log.dirs=..., not both" in sentence


def test_where_a_bad_value_was_written(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}/data\nnum.partitions=many\n")
    assert refused("start", str(file)).endswith(f"Not a number of type INT (in {file})")
    assert refused("start", str(file), "--set", "num.partitions=x").endswith("(from --set)")


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("num.partitions=0", "num.partitions"),
        ("num.partitions=many", "num.partitions"),
        ("listeners=PLAINTEXT//nowhere", "listeners"),
        ("listeners=SSL://127.0.0.1:9093", "SSL"),
        ("nothing", "KEY=VALUE"),
    ],
)
def test_bad_settings(setting: str, part: str, tmp_path: Path) -> None:
    assert part in refused("start", "--data", str(tmp_path), "--set", setting)


def test_missing_properties_file(tmp_path: Path) -> None:
    assert "no-such.properties" in refused("start", str(tmp_path / "no-such.properties"))


class started:  # noqa: N801 - reads as a context manager
    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        arguments = self._arguments
        if not any(argument.endswith(".properties") for argument in arguments):
            arguments = (*arguments, "--port", "0")
        self.process = subprocess.Popen(
            [*PENSTOCK, "start", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        return self.process, self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def stop(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    return stderr


def test_ready_line_and_clean_stop(tmp_path: Path) -> None:
    with started("--data", str(tmp_path / "new")) as (process, line):
        assert line.startswith("penstock ")
        assert " ready on 127.0.0.1:" in line
        assert str(tmp_path / "new") in line
        assert "stopped cleanly" in stop(process)
    assert (tmp_path / "new" / ".kafka_cleanshutdown").exists()


def test_kafka_style_properties_file(tmp_path: Path) -> None:
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, controller_port = probe.getsockname()[1], other.getsockname()[1]
    file = tmp_path / "server.properties"
    file.write_text(
        f"""process.roles=broker,controller
node.id=4
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:{controller_port}
log.dirs={tmp_path}/data
num.partitions=5
num.partition=6
"""
    )
    with started(str(file)) as (process, line):
        assert f"127.0.0.1:{port}" in line
        assert "node 4" in line
        assert "did you mean num.partitions" in stop(process)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signals_that_stop(tmp_path: Path, number: signal.Signals) -> None:
    with started("--data", str(tmp_path)) as (process, _):
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "stopped cleanly" in stderr


def test_a_hangup_under_nohup_is_ignored(tmp_path: Path) -> None:
    command = [*PENSTOCK, "start", "--port", "0", "--data", str(tmp_path)]
    process = subprocess.Popen(
        ["nohup", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert " ready on " in process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    stop(process)


INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["penstock", "start", "--port", "0", "--data", {data!r}]
from penstock.cli import main
main()
"""
INTERRUPTED_WHILE_STARTING = """
import os, signal, sys
from penstock.replica.hosting import HostedPartitions
def open_all(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit("went on")
HostedPartitions.open_all = open_all
sys.argv = ["penstock", "start", "--port", "0", "--data", {data!r}]
from penstock.cli import main
main()
"""


@pytest.mark.parametrize(
    "name", ["click", "penstock.cli.commands", "penstock.cli.start.command", "penstock.node.node", ""]
)
def test_ctrl_c_from_the_first_moment(tmp_path: Path, name: str) -> None:
    """During imports, or (no name) while the partitions are opened."""
    script = INTERRUPTED_WHILE_IMPORTING if name else INTERRUPTED_WHILE_STARTING
    program = script.format(name=name, data=str(tmp_path))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert result.returncode == 130
    assert result.stdout == ""
    assert result.stderr.strip() == ""


def test_ready_line_names_every_interface(tmp_path: Path) -> None:
    with started("--data", str(tmp_path), "--host", "") as (process, line):
        assert re.search(r" ready on \*:\d+ \(every interface\): node 1", line)
        stop(process)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("default.replication.factor=3", "INVALID_REPLICATION_FACTOR"),
        ("min.insync.replicas=2", "the effective value is 1, and acks=all waits for no more"),
        ("zookeeper.connect=localhost:2181", "ZooKeeper is not used"),
    ],
)
def test_settings_that_are_worth_a_warning(tmp_path: Path, setting: str, part: str) -> None:
    with started("--data", str(tmp_path), "--set", setting) as (process, _):
        lines = stop(process).splitlines()
    # On a busy machine the broker may also warn of a slow turn.
    warnings = [line for line in lines if " WARNING " in line and "event loop held" not in line]
    assert len(warnings) == 1
    assert part in warnings[0]


def test_advertised_listeners_outlive_host_and_port(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}/data\nadvertised.listeners=PLAINTEXT://example.org:9092\n")
    flags = (str(file), "--host", "127.0.0.1", "--port", "0")
    with started(*flags) as (process, _):
        assert "advertised.listeners sends clients to PLAINTEXT://example.org:9092" in stop(process)
    with started(*flags, "--set", "advertised.listeners=PLAINTEXT://example.org:1") as (process, _):
        assert "advertised.listeners" not in stop(process)


def test_help_and_version_need_no_broker() -> None:
    for arguments in (["--help"], ["start", "--help"], ["--version"]):
        result = subprocess.run([*PENSTOCK, *arguments], capture_output=True, text=True, timeout=30, check=True)
        assert "penstock" in result.stdout
