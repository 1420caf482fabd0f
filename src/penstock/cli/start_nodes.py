"""`penstock start --nodes N`: a whole cluster on this machine, for development.

Each node is a process of its own with a properties file and a directory under the data directory, so one of them can be
killed, looked at, and started again by hand: `penstock start DIR/node-2.properties`. Their log lines come out with the
node's name in front. The nodes end with this command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import IO

import click

from penstock import __version__
from penstock.config.broker import BrokerConfig
from penstock.config.properties import format_properties
from penstock.model.errors import ConfigError

FIRST_PORT = 9092
MAX_NODES = 9
EVERY_INTERFACE = ("", "0.0.0.0", "::")
STOP_TIMEOUT_S = 30.0
_PR_SET_PDEATHSIG = 1
# What a node decides for itself; everything else goes to all of them.
_OF_A_NODE = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir")
_DOORS = {"penstock.http.listener": 8082, "penstock.line.listener": 9099}
_OF_THE_CLUSTER = ("controller.quorum.voters", "controller.quorum.bootstrap.servers", "process.roles")


def start_nodes(
    count: int, host: str | None, port: int | None, data: str | None, overrides: Mapping[str, str], log_level: str
) -> None:
    """Run until told to stop; raises ConfigError when the cluster cannot be started."""
    if count > MAX_NODES:
        raise ConfigError(f"--nodes {count}: use a number up to {MAX_NODES}")
    for name in (*_OF_A_NODE, *_OF_THE_CLUSTER):
        if name in overrides:
            raise ConfigError(f"--set {name}=... is not for --nodes, which sets it for each node: leave it out")
    if host in EVERY_INTERFACE:
        raise ConfigError(f"--host '{host}' is not for --nodes: name one address of this machine, or leave it out")
    base = Path(data or BrokerConfig.load(None, {})[0].log_dir + "-cluster").expanduser().absolute()
    _check_same_size(base, count)
    files = _write_files(base, _ports(host or "127.0.0.1", port, count), host or "127.0.0.1", overrides)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is ignored, and stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    nodes = [LocalNode(number, file, log_level) for number, file in enumerate(files, 1)]
    try:
        _run(nodes, base, stopping)
    finally:
        for node in nodes:
            node.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in nodes:
            node.wait(max(deadline - time.monotonic(), 0.1))


def _run(nodes: list[LocalNode], base: Path, stopping: threading.Event) -> None:
    started = time.monotonic()
    while not all(node.is_ready.is_set() for node in nodes):
        ended = [node for node in nodes if node.exit_code is not None]
        if ended:
            raise ConfigError(f"node {ended[0].number} could not be started, see above")
        if stopping.wait(0.02):
            return
    addresses = ",".join(node.address for node in nodes)
    click.echo(
        f"penstock {__version__} ready on {addresses}: {len(nodes)} nodes, data in {base} "
        f"({time.monotonic() - started:.2f} s)"
    )
    gone: set[int] = set()
    while not stopping.wait(0.2):
        for node in nodes:
            if node.exit_code is not None and node.number not in gone:
                gone.add(node.number)
                click.echo(
                    f"node {node.number} has ended ({_how(node.exit_code)}); start it again with: "
                    f"penstock start {node.file}",
                    err=True,
                )
        if len(gone) == len(nodes):
            raise ConfigError("every node has ended")


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _ports(host: str, first: int | None, count: int) -> list[int]:
    if first == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sockets = [socket.create_server((host, 0), family=family) for _ in range(count)]
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}: {error.strerror}; use --host 127.0.0.1") from error
        ports = [sock.getsockname()[1] for sock in sockets]
        for sock in sockets:
            sock.close()
        return ports
    first = FIRST_PORT if first is None else first
    if first + count - 1 > 65535:
        raise ConfigError(f"--port {first} leaves no room for {count} nodes: use a lower one")
    return list(range(first, first + count))


def _check_same_size(base: Path, count: int) -> None:
    """The voters of a cluster are those it began with; more or fewer processes would not change them."""
    known = len(list(base.glob("node-*.properties")))
    if known not in (0, count):
        raise ConfigError(f"{base} holds a cluster of {known} nodes: use --nodes {known}, or another place with --data")


def _write_files(base: Path, ports: list[int], host: str, overrides: Mapping[str, str]) -> list[Path]:
    """One properties file a node. What is asked for here wins over what an earlier start wrote."""
    count = len(ports)
    shown = f"[{host}]" if ":" in host else host
    factor = str(min(3, count))
    shared = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{number}@{shown}:{port}" for number, port in enumerate(ports, 1)),
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "min.insync.replicas": "2" if count >= 3 else "1",
        **overrides,
    }
    files: list[Path] = []
    try:
        for number, port in enumerate(ports, 1):
            settings = {
                "node.id": str(number),
                "listeners": f"PLAINTEXT://{shown}:{port}",
                "log.dirs": str(base / f"node-{number}"),
                **shared,
            }
            for name, usual in _DOORS.items():  # the first node's: there is one of each on a machine
                if number == 1:
                    settings.setdefault(name, f"{shown}:{_door(ports, usual)}")
                else:
                    settings.pop(name, None)
            file = base / f"node-{number}.properties"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(starmap(_line, settings.items())), encoding="utf-8")
            files.append(file)
    except OSError as error:
        raise ConfigError(f"cannot write to {base}: {error.strerror}; choose another place with --data") from error
    return files


def _line(name: str, value: str) -> str:
    """For people to read, so nothing is escaped that need not be."""
    if value.isprintable() and value == value.strip() and "\\" not in value:
        return f"{name}={value}\n"
    return format_properties({name: value})


def _door(ports: list[int], usual: int) -> int:
    """Nodes on ports of the system's choice have doors there too, so that several clusters run side by side."""
    return usual if ports[0] == FIRST_PORT else 0


class LocalNode:
    """One node's process; its lines are read in threads."""

    def __init__(self, number: int, file: Path, log_level: str) -> None:
        self.number = number
        self.file = file
        self.address = ""
        self.is_ready = threading.Event()
        command = [sys.executable, "-m", "penstock.cli", "start", str(file), "--log-level", log_level]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is this command's to pass on
            preexec_fn=partial(_end_with_parent, os.getpid()) if sys.platform == "linux" else None,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, False), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, True), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def _read(self, stream: IO[str], is_log: bool) -> None:
        for line in stream:
            if not is_log and " ready on " in line:
                self.address = line.split(" ready on ", 1)[1].split(": node ", 1)[0].split()[0]
                self.is_ready.set()
            click.echo(f"node {self.number} | {line.rstrip()}", err=True)

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            click.echo(f"node {self.number} does not stop and is killed", err=True)
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(1.0)


def _end_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # which in a container may well be 1
        os._exit(1)
