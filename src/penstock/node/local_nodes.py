"""Nodes of one cluster on this machine, each in its own process: their settings, files, ports and processes.

For `penstock start --nodes` and `penstock.testing.Cluster`. Must not know: what a node logs, when it is ready.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import starmap
from pathlib import Path
from typing import IO

from penstock.config.properties import format_properties
from penstock.model.errors import ConfigError
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import CLUSTER_SECRET, new_secret, write_secrets

OF_A_NODE = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir")
BETWEEN_NODES = "INTERNAL"
OF_THE_CLUSTER = (
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "penstock.cluster.secret.file",
    "process.roles",
)
MAX_NODES = 9


def replication(count: int) -> dict[str, str]:
    """The default replication of topics: any one of three nodes may fail."""
    factor = str(min(3, count))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "min.insync.replicas": "2" if count >= 3 else "1",
    }


def refuse_own_settings(names: Iterable[str], sentence: str) -> None:
    """Raises ConfigError for a setting that this module sets for each node; `sentence` contains {name}."""
    for name in names:
        if name in OF_A_NODE or name in OF_THE_CLUSTER:
            raise ConfigError(sentence.format(name=name))


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def free_ports(hosts: Sequence[str]) -> list[int]:
    """One free port for each host, all different. Raises OSError."""
    with ExitStack() as held:
        sockets = [held.enter_context(_listen(host)) for host in hosts]
        return [int(sock.getsockname()[1]) for sock in sockets]


def _listen(host: str) -> socket.socket:
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def write_files(
    base: Path, host: str, ports: Sequence[int], between: Sequence[int], given: Sequence[Mapping[str, str]]
) -> list[Path]:
    """Write one properties file for each node, numbered from 1, with its own settings and `given`. The shared secret is
    created once. Clients use `ports`, other nodes `between`. Raises OSError, ConfigError.
    """
    shown = bracketed(host)
    voters = ",".join(f"{number}@{shown}:{port}" for number, port in enumerate(between, 1))
    base.mkdir(parents=True, exist_ok=True)
    secret = base / CLUSTER_SECRET
    if not secret.exists():
        write_secrets(str(secret), new_secret(SystemEntropy()))
    files: list[Path] = []
    for number, (port, inside, more) in enumerate(zip(ports, between, given, strict=True), 1):
        settings = {
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{shown}:{port},{BETWEEN_NODES}://{shown}:{inside}",
            "inter.broker.listener.name": BETWEEN_NODES,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{BETWEEN_NODES}:PLAINTEXT",
            "log.dirs": str(base / f"node-{number}"),
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters,
            "penstock.cluster.secret.file": str(secret),
            **more,
        }
        file = base / f"node-{number}.properties"
        file.write_text("".join(starmap(_line, settings.items())), encoding="utf-8")
        files.append(file)
    return files


def _line(name: str, value: str) -> str:
    """People read these files, so only necessary characters are escaped."""
    if value.isprintable() and value == value.strip() and "\\" not in value:
        return f"{name}={value}\n"
    return format_properties({name: value})


def launch(file: Path, log_level: str, out: int | IO[bytes], err: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a node's process. On Linux it gets SIGTERM when the thread that called this ends."""
    command = [sys.executable, "-m", "penstock.cli", "start", str(file), "--log-level", log_level]
    if sys.platform == "linux":
        with_parent = Path(__file__).with_name("with_parent.py")
        command = [sys.executable, "-I", "-S", str(with_parent), str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,  # the caller passes Ctrl-C on
    )
