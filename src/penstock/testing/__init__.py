"""A real broker in your test process, or a cluster of three beside it.

    from penstock.testing import Broker

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

This is the broker of `penstock start`, on a free port, with a temporary data directory that is
removed at the end. It runs on its own event loop in a thread; nothing is mocked. `Cluster` is
three nodes, each a process that can be killed. The pytest plugin in the package provides the
fixtures `penstock_broker` (one for the session), `penstock_broker_factory` and `penstock_cluster`.
`penstock_pipeline` is for pipelines on Spark (`penstock.testing.pipelines`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from types import TracebackType

from penstock.config.broker import BrokerConfig
from penstock.model.errors import ConfigError
from penstock.node.node import Node, no_supervisor
from penstock.runtime.loop import TurnLoop
from penstock.runtime.surroundings import load_config
from penstock.testing.cluster import Cluster
from penstock.testing.settings import Given, texts_of

__all__ = ["Broker", "Cluster"]

START_TIMEOUT_S = 30.0


class Broker:
    """`settings` are Kafka's broker settings by name, for example {"num.partitions": 3}.

    With `data` the directory is kept, so that a second Broker can continue with it. A restarted broker
    listens on the same port.
    Unless `durable` or a setting says otherwise, flushing is left to the operating system: tests want
    speed, and the directory is removed at the end anyway.
    """

    def __init__(
        self,
        settings: Given | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        port: int = 0,
        durable: bool = False,
    ) -> None:
        self._settings = dict(settings or {})
        self._durable = durable
        self._port = port
        self._data = data
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: Node | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._running.addresses)

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self._running.listeners[0].port

    @property
    def data_directory(self) -> str:
        """The directory of the log segments."""
        return self._running.directory.path

    @property
    def _running(self) -> Node:
        if self._node is None:
            raise RuntimeError("this broker is not running: use it in a `with` block, or call start() first")
        return self._node

    def start(self) -> Broker:
        if self._thread is not None:
            raise RuntimeError("this broker is already running")
        settings = self._texts()
        directory = self._data
        if directory is None:
            directory = self._temporary = tempfile.mkdtemp(prefix="penstock-")
        try:
            settings["log.dirs"] = os.fspath(directory)
            config, _ = load_config(None, settings, source="in settings", strict=True)
        except ConfigError:
            self._clean_up()
            raise
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(config,), name="penstock-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            self._clean_up()
            raise self._failure
        return self

    def stop(self) -> None:
        """Drain and stop. Safe to call twice."""
        if self._thread is None:
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._clean_up()

    def _texts(self) -> dict[str, str]:
        """The settings as in a properties file. Raises ConfigError."""
        if "listeners" in self._settings and self._port:
            raise ConfigError("listeners is in settings: give port=... or listeners, not both")
        return {"listeners": f"PLAINTEXT://127.0.0.1:{self._port}", **texts_of(self._settings, durable=self._durable)}

    def _clean_up(self) -> None:
        self._thread = None
        self._node = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _run(self, config: BrokerConfig) -> None:
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._serve(config))
            except BaseException as error:
                # Passed to the caller of start(); a later failure goes to the thread hook.
                if self._started.is_set():
                    raise
                self._failure = error
                self._started.set()

    async def _serve(self, config: BrokerConfig) -> None:
        self._stopping = asyncio.Event()
        node = Node(config, no_supervisor)
        await node.start()
        self._node = node
        if "listeners" not in self._settings:
            # After a restart, clients find the broker at the same port.
            self._port = self.port
        self._started.set()
        await self._stopping.wait()
        await node.stop()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
