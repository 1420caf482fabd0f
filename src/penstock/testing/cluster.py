"""Several real nodes on this machine that a test can kill and restart.

Each node is its own process, as after `penstock start --nodes`, because only a process can be killed. The files of a
cluster, in a directory that is removed at the end unless it was given:

    node-N.properties   settings
    node-N              data directory
    node-N.log          output of the node, over all its starts
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from penstock.model.errors import ConfigError
from penstock.node.local_nodes import MAX_NODES, free_ports, launch, refuse_own_settings, replication, write_files
from penstock.runtime.data_directory import lock_directory
from penstock.runtime.surroundings import load_config
from penstock.testing.settings import Given, texts_of

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01
SYNC_POLL_S = 0.05
READY = b" ready on "


class Cluster:
    """`nodes` brokers with ids from 1 on; topics have three replicas and `min.insync.replicas` is 2.

    `settings` are Kafka's broker settings by name and apply to all nodes. With `data` the directory is kept, so that a
    second Cluster can continue with it. A restarted node keeps its port and its data. Flushing is left to the operating
    system unless `durable`: data written by a killed process is not lost.
    """

    def __init__(
        self,
        settings: Given | None = None,
        *,
        nodes: int = 3,
        data: str | os.PathLike[str] | None = None,
        durable: bool = False,
    ) -> None:
        self._settings = dict(settings or {})
        self._count = nodes
        self._data = data
        self._durable = durable
        self._base: Path | None = None
        self._nodes: dict[int, _NodeProcess] = {}
        self._ports: list[int] = []
        self._between: list[int] = []
        """Used by the other nodes."""
        self._lock: int | None = None

    # -- queries ------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, including stopped ones: clients try one after the other."""
        self._check_started()
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    @property
    def node_ids(self) -> list[int]:
        """The running nodes."""
        return [node_id for node_id, node in self._nodes.items() if node.is_running]

    @property
    def data_directory(self) -> str:
        """The directory with the files and data of the nodes."""
        self._check_started()
        return str(self._base)

    def log(self, node_id: int) -> str:
        """The node's standard output and standard error."""
        return self._node(node_id).log()

    def _check_started(self) -> None:
        if not self._nodes:
            raise RuntimeError("this cluster is not running: use it in a `with` block, or call start() first")

    def _node(self, node_id: int) -> _NodeProcess:
        self._check_started()
        if node_id not in self._nodes:
            raise ValueError(f"there is no node {node_id!r}: use one of {', '.join(map(str, self._nodes))}")
        return self._nodes[node_id]

    # -- start and stop-----------------------------------------------------------------

    def start(self, node_id: int | None = None) -> Cluster:
        """Start all nodes, or the one that was killed or stopped; return when they serve. Raises ConfigError."""
        if node_id is not None:
            node = self._node(node_id)
            if node.is_running:
                raise RuntimeError(f"node {node_id} is already running")
            self._bring_up([node])
            return self
        if self._nodes:
            raise RuntimeError("this cluster is already running: start(node_id) starts one of its nodes")
        try:
            self._prepare()
            self._bring_up(self._nodes.values())
        except BaseException:
            self._discard()
            raise
        return self

    def stop(self, node_id: int | None = None) -> None:
        """Stop one node cleanly after handing over its leaders; or stop all and clean up (may be repeated)."""
        if node_id is not None:
            self._running(node_id).end(signal.SIGTERM)
        elif self._data is None:
            self._discard()
        else:
            try:
                for node in self._nodes.values():
                    node.send(signal.SIGTERM)
                for node in self._nodes.values():
                    node.wait()
            finally:
                self._discard()

    def kill(self, node_id: int) -> None:
        """kill -9. The node is gone when this returns; the others notice by themselves."""
        self._running(node_id).end(signal.SIGKILL)

    def wait_in_sync(self, timeout_s: float = 30.0) -> None:
        """Wait until all replicas of all topics are in sync, and another node may be killed. Raises TimeoutError."""
        from penstock.sdk import BlockingAdmin

        deadline_s = time.monotonic() + timeout_s
        with BlockingAdmin(self.bootstrap_servers, timeout_s=timeout_s) as admin:
            while behind := [
                f"{topic.name}-{one.id} (replicas {one.replicas}, in sync {one.isr})"
                for topic in admin.topics()
                for one in topic.partitions
                if one.is_under_replicated
            ]:
                if time.monotonic() > deadline_s:
                    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
                    raise TimeoutError(
                        f"not in sync within {timeout_s:g} s: {', '.join(behind[:3])}{more}; running nodes: "
                        f"{', '.join(map(str, self.node_ids))}"
                    )
                time.sleep(SYNC_POLL_S)

    def _running(self, node_id: int) -> _NodeProcess:
        node = self._node(node_id)
        if not node.is_running:
            raise RuntimeError(f"node {node_id} is not running")
        return node

    def _prepare(self) -> None:
        """Prepare files and ports; nothing runs yet."""
        if not isinstance(self._count, int) or not 1 < self._count <= MAX_NODES:
            raise ConfigError(
                f"nodes={self._count!r}: use a number from 2 to {MAX_NODES}, or a Broker for a single node"
            )
        texts = {**replication(self._count), **texts_of(self._settings, durable=self._durable)}
        refuse_own_settings(texts, "{name} is in settings: a Cluster sets it for each node, leave it out")
        self._base = Path(tempfile.mkdtemp(prefix="penstock-") if self._data is None else self._data).absolute()
        load_config(None, {**texts, "log.dirs": str(self._base)}, source="in settings", strict=True)
        try:
            self._lock = lock_directory(str(self._base))
            if self._lock is None:
                raise ConfigError(f"{self._base} is in use: stop its cluster, or give another directory as data")
            if not self._ports:
                ports = free_ports([HOST] * 2 * self._count)
                self._ports, self._between = ports[: self._count], ports[self._count :]
            files = write_files(self._base, HOST, self._ports, self._between, [texts] * self._count)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self._base}: {error.strerror}; give another directory as data"
            ) from error
        self._launcher = ThreadPoolExecutor(1, "penstock-cluster")
        self._nodes = {number: _NodeProcess(number, file, self._launcher) for number, file in enumerate(files, 1)}

    def _bring_up(self, nodes: Collection[_NodeProcess]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready(deadline_s)

    def _discard(self) -> None:
        for node in self._nodes.values():
            node.discard()
        if self._nodes:
            self._launcher.shutdown()
        self._nodes = {}
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._data is None and self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)
        self._base = None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _NodeProcess:
    """Started in the launcher's thread: a node receives a signal to stop when its starting thread ends."""

    def __init__(self, number: int, file: Path, launcher: ThreadPoolExecutor) -> None:
        self._number = number
        self._file = file
        self._log_file = file.with_suffix(".log")
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def launch(self) -> None:
        with self._log_file.open("ab") as log:
            self._read_from = log.tell()
            self._process = self._launcher.submit(launch, self._file, "info", log, log).result()

    def wait_ready(self, deadline_s: float) -> None:
        while READY not in (said := self._said()):
            if not self.is_running:
                lines = said.decode(errors="replace").splitlines()
                why = lines[-1].removeprefix("penstock: ") if lines else "no output"
                raise ConfigError(f"node {self._number} could not be started: {why}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"node {self._number} did not start within {START_TIMEOUT_S:.0f} s:\n{self.log()}")
            time.sleep(POLL_S)

    def _said(self) -> bytes:
        with self._log_file.open("rb") as log:
            log.seek(self._read_from)
            return log.read()

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                self._process.kill()
                self._process.wait()
                raise TimeoutError(f"node {self._number} did not stop within {STOP_TIMEOUT_S:.0f} s") from error

    def end(self, how: signal.Signals) -> None:
        self.send(how)
        self.wait()

    def discard(self) -> None:
        """Kill the process in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
