"""`penstock start --nodes N`: a whole cluster on this machine, for development.

Each node is a process with its own properties file and its own directory under the data directory. A node can be
killed, examined, and started again by hand: `penstock start DIR/node-2.properties`. Each log line begins with the name
of its node. The nodes end with this command. The command holds a lock on the data directory, so that no other process
writes those files.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import click

from penstock import __version__
from penstock.cli.reach.connection import BOOTSTRAP_VARIABLE
from penstock.cli.start.ports import FIRST_PORT, NodePorts, check_free, plan_ports
from penstock.config.broker import BrokerConfig
from penstock.config.settings import AGREED_ON
from penstock.model.errors import ConfigError, PenstockError
from penstock.node.local_nodes import launch, refuse_own_settings, replication, write_files
from penstock.observability.logs import JSON, configure, current_format
from penstock.runtime.data_directory import LOCK, META_PROPERTIES, lock_directory
from penstock.runtime.surroundings import load_config

log = logging.getLogger("penstock")

EVERY_INTERFACE = ("", "0.0.0.0", "::")
STOP_TIMEOUT_S = 30.0
# A node is often stopped or killed on purpose, to watch the other nodes.
_ENDED_BY_HAND = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGKILL)


def start_nodes(
    count: int, host: str | None, port: int | None, data: str | None, overrides: Mapping[str, str], log_level: str
) -> None:
    """Runs the nodes until a signal.

    Raises ConfigError when the cluster cannot be started, PenstockError when a node has failed before the stop.
    """
    refuse_own_settings(
        overrides, "--set {name}=... cannot be used with --nodes: leave it out. --nodes sets it for each node"
    )
    if host in EVERY_INTERFACE:
        raise ConfigError(
            f"--host '{host}' cannot be used with --nodes: give one address of this machine, or leave it out"
        )
    settings = {**replication(count), **overrides}
    config, warnings = load_config(None, {**settings, "log.dirs": data} if data else settings)
    configure(log_level.upper(), config.penstock_log_format)
    base = Path(data or config.log_dir + "-cluster").expanduser().absolute()
    host = host or "127.0.0.1"
    ports = plan_ports(host, FIRST_PORT if port is None else port, count, config, overrides)
    with _locked(base):
        _check_same_size(base, count)
        _check_none_runs(base, count)
        check_free(ports)
        has_agreed = _has_agreed(base, config)
        for warning in (*warnings, *_missing_nodes(config, count, has_agreed)):
            log.warning("%s", warning)
        # Settings that no node knows: the warning above is enough.
        known = {name: value for name, value in settings.items() if name in config.settings.static}
        if has_agreed:
            # The cluster may have changed these settings since, and ignores the files: only options need a warning.
            known = {name: value for name, value in known.items() if name in overrides or name not in AGREED_ON}
        _run_all(_write_files(base, ports, host, known), ports, base, log_level)


def _missing_nodes(config: BrokerConfig, count: int, has_agreed: bool) -> Iterator[str]:
    """Warnings about settings made for a larger cluster: each is valid, but stops producers here."""
    factor = config.default_replication_factor
    if factor > count:
        yield (
            f"default.replication.factor={factor}, but there are {count} nodes: a topic without its own replication "
            "factor cannot be created (INVALID_REPLICATION_FACTOR)"
        )
    if has_agreed:
        return  # the cluster has its min.insync.replicas: the nodes warn when another number is given
    in_sync = cast(int, config.settings.value("min.insync.replicas"))
    replicas = min(factor, count)
    if in_sync > replicas:
        yield (
            f"min.insync.replicas={in_sync}, but topics have {replicas} replica{'s' if replicas > 1 else ''}: "
            f"the effective value is {replicas}, and acks=all waits for no more"
        )


@contextmanager
def _locked(base: Path) -> Iterator[None]:
    is_new = not base.exists()
    try:
        lock = lock_directory(str(base))
    except OSError as error:
        raise ConfigError(f"cannot write to {base}: {error.strerror}; give another directory with --data") from error
    if lock is None:
        raise ConfigError(f"{base} is in use: stop the cluster or broker there, or give another directory with --data")
    try:
        yield
    except ConfigError:
        if is_new and os.listdir(base) == [LOCK]:  # leave no trace
            (base / LOCK).unlink()
            base.rmdir()
        raise
    finally:
        os.close(lock)


def _run_all(files: list[Path], ports: list[NodePorts], base: Path, log_level: str) -> None:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup makes a process ignore SIGHUP: keep that. A shell makes the background processes of a script ignore
        # SIGINT, but a SIGINT sent to this command is meant to stop it.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    nodes = [LocalNode(number, file, log_level) for number, file in enumerate(files, 1)]
    try:
        _run(nodes, ports, base, stopping)
    finally:
        for node in nodes:
            node.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in nodes:
            node.wait(max(deadline - time.monotonic(), 0.1))


def _run(nodes: list[LocalNode], ports: list[NodePorts], base: Path, stopping: threading.Event) -> None:
    started = time.monotonic()
    while not all(node.is_ready.is_set() for node in nodes):
        ended = [node for node in nodes if node.exit_code is not None]
        if ended:
            raise ConfigError(f"node {ended[0].number} could not be started: see its log lines above")
        if stopping.wait(0.02):
            return
    addresses = ",".join(str(places.kafka) for places in ports)
    click.echo(
        f"penstock {__version__} ready on {addresses}: {len(nodes)} nodes, data in {base} "
        f"({time.monotonic() - started:.2f} s)"
    )
    for node, places in zip(nodes, ports, strict=True):
        click.echo(f"node {node.number}: {places}")
    click.echo(f"so that commands work while a node is down: export {BOOTSTRAP_VARIABLE}={addresses}")
    gone: dict[int, int] = {}
    is_stopping = False
    while not is_stopping and len(gone) < len(nodes):
        is_stopping = stopping.wait(0.2)
        for node in nodes:
            code = node.exit_code
            if code is not None and node.number not in gone:
                gone[node.number] = code
                _tell(f"node {node.number} has ended ({_how(code)}); start it again with: penstock start {node.file}")
    failed = [f"node {number} ({_how(code)})" for number, code in gone.items() if code not in _ENDED_BY_HAND]
    if failed:
        raise PenstockError(f"ended with an error while the cluster ran: {', '.join(failed)}; see the log lines above")
    if not is_stopping:
        raise PenstockError("all nodes have ended")


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _check_same_size(base: Path, count: int) -> None:
    """A cluster keeps the voters that it began with; another number of processes would not change them."""
    known = len(list(base.glob("node-*.properties")))
    if known not in (0, count):
        raise ConfigError(
            f"{base} holds a cluster of {known} nodes: use --nodes {known}, or give another directory with --data"
        )
    if not known and (base / META_PROPERTIES).exists():
        raise ConfigError(f"{base} holds the data of a single broker: give another directory with --data")


def _check_none_runs(base: Path, count: int) -> None:
    """A node may still run, started by hand or about to stop: its properties file must not change."""
    for number in range(1, count + 1):
        directory = base / f"node-{number}"
        if not directory.is_dir():
            continue
        try:
            lock = lock_directory(str(directory))
        except OSError as error:
            raise ConfigError(f"cannot write to {directory}: {error.strerror}; repair that first") from error
        if lock is None:
            raise ConfigError(
                f"node {number} of {base} still runs: stop it first, or give another directory with --data"
            )
        os.close(lock)


def _has_agreed(base: Path, config: BrokerConfig) -> bool:
    """Whether the cluster exists: its nodes have stored its id. Unknown (False) if the cluster id comes from a
    setting.
    """
    return config.penstock_cluster_id is None and any(base.glob(f"node-*/{META_PROPERTIES}"))


def _write_files(base: Path, ports: list[NodePorts], host: str, given: Mapping[str, str]) -> list[Path]:
    """One properties file per node. The options of this start replace those of an earlier start."""
    settings = [{**given, **places.gateway} for places in ports]
    try:
        between = [(places.nodes or places.kafka).port for places in ports]
        return write_files(base, host, [places.kafka.port for places in ports], between, settings)
    except OSError as error:
        raise ConfigError(f"cannot write to {base}: {error.strerror}; give another directory with --data") from error


def _tell(sentence: str) -> None:
    """Print to standard error: as text, or as a JSON object in the JSON log format."""
    if current_format() == JSON:
        log.warning("%s", sentence)
    else:
        click.echo(sentence, err=True)


class LocalNode:
    """The process of one node; threads read its output."""

    def __init__(self, number: int, file: Path, log_level: str) -> None:
        self.number = number
        self.file = file
        self.is_ready = threading.Event()
        self._process = launch(file, log_level, subprocess.PIPE, subprocess.PIPE)
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

    def _read(self, stream: IO[bytes], is_log: bool) -> None:
        for line in stream:
            if not is_log and b" ready on " in line:
                self.is_ready.set()
            text = line.decode(errors="replace").rstrip()
            if current_format() != JSON:
                click.echo(f"node {self.number} | {text}", err=True)
            elif text.startswith("{"):
                click.echo(f'{{"node": {self.number}, {text[1:]}', err=True)
            else:
                log.info("%s", text, extra={"node": self.number})

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _tell(f"node {self.number} does not stop: killing it")
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
