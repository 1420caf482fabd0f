"""`penstock start`: a broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

import click

from penstock import __version__
from penstock.config.broker import BrokerConfig
from penstock.config.gateway import ANY_FREE_PORT
from penstock.model.errors import ConfigError, LogOffline, StorageError
from penstock.node.local_nodes import MAX_NODES
from penstock.node.node import Node
from penstock.observability.logs import CONSOLE, FORMATS, configure
from penstock.replica.revival import FIRST_PAUSE_S, LONGEST_PAUSE_S
from penstock.runtime.collector import Collector
from penstock.runtime.disk import OsDisk
from penstock.runtime.loop import run
from penstock.runtime.scheduling import ask_for_short_slices
from penstock.runtime.surroundings import load_config
from penstock.storage.probe import probe

log = logging.getLogger("penstock")


@click.command()
@click.argument("properties", required=False, metavar="[FILE]")
@click.option("--host", help="Address to listen on (default 127.0.0.1; '' for every interface).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default 9092; 0 for any free one).")
@click.option(
    "--data",
    metavar="DIR",
    help="Data directory (default: $XDG_DATA_HOME/penstock, else ~/.local/share/penstock).",
)
@click.option(
    "--join",
    "secret_file",
    metavar="FILE|-",
    help="File with the cluster secret (`penstock cluster secret`), or - for standard input. The node keeps it.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, MAX_NODES),
    default=1,
    show_default=True,
    help="Number of brokers: a cluster on this machine for development, on ports from --port on.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A broker setting by its Kafka name; repeatable."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of log lines on standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    help="Text, or one JSON object per line (default: the setting penstock.log.format, which is console).",
)
def start(
    properties: str | None,
    host: str | None,
    port: int | None,
    data: str | None,
    secret_file: str | None,
    nodes: int,
    settings: tuple[str, ...],
    log_level: str,
    log_format: str | None,
) -> None:
    """Run a broker in the foreground until SIGTERM, SIGHUP or Ctrl-C.

    FILE is a properties file with Kafka's setting names. Options override the file.
    Without a file the broker listens on 127.0.0.1:9092, its REST proxy on 127.0.0.1:8082
    and the line protocol on 127.0.0.1:9099. An empty data directory is formatted
    automatically.

    With --nodes 3 three brokers form a cluster, and topics have three replicas. Each broker
    has its own properties file and data directory under DIR, so you can kill it and start
    it again by hand. Each broker has its own REST proxy, 1010 below its port: on 8082, 8083
    and 8084.
    """
    configure(log_level.upper(), log_format or CONSOLE)
    overrides = _overrides(settings)
    if nodes > 1:
        from penstock.cli.start.nodes import start_nodes

        if properties is not None:
            raise ConfigError("give a properties file or --nodes, not both: --nodes writes one for each node")
        if secret_file is not None:
            raise ConfigError("--join cannot be used with --nodes: leave it out. --nodes makes a secret for its nodes")
        if log_format is not None:
            overrides["penstock.log.format"] = log_format
        start_nodes(nodes, host, port, data, overrides, log_level)
        return
    if log_format is not None:
        overrides["penstock.log.format"] = log_format
    if host is not None or port is not None:
        if "listeners" in overrides:
            raise ConfigError("give --host/--port or --set listeners=..., not both")
        if properties is not None and (host is None or port is None):
            raise ConfigError("with a properties file, give both --host and --port, or use --set listeners=...")
        shown = f"[{host}]" if host and ":" in host else host
        overrides["listeners"] = (
            f"PLAINTEXT://{shown if host is not None else '127.0.0.1'}:{9092 if port is None else port}"
        )
        if port == 0 and properties is None:
            overrides = {**ANY_FREE_PORT, **overrides}
    if data is not None:
        if "log.dirs" in overrides or "log.dir" in overrides:
            raise ConfigError("give --data or --set log.dirs=..., not both")
        overrides["log.dirs"] = data
    config, warnings = load_config(properties, overrides)
    configure(log_level.upper(), config.penstock_log_format)
    for warning in warnings:
        log.warning("%s", warning)
    if (host is not None or port is not None) and "advertised.listeners" not in overrides:
        _warn_of_other_address(config)
    if secret_file is not None:
        from penstock.cli.cluster.secret import join

        join(config, secret_file)
    _raise_file_limit()
    # asyncio would replace Python's own handler by one that waits until the start has ended.
    signal.signal(signal.SIGINT, _interrupt)
    run(_serve(config))


def _gateway(node: Node) -> str:
    names = {"http": "HTTP on ", "line": "lines on "}
    if node.gateway is None:
        return ""
    return "".join(f", {names[name]}{address}" for name, address in node.gateway.addresses.items())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _overrides(settings: tuple[str, ...]) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {setting!r}: write KEY=VALUE, for example --set num.partitions=4")
        overrides[name.strip()] = value.strip()
    return overrides


def _warn_of_other_address(config: BrokerConfig) -> None:
    """--host and --port do not change the file's advertised.listeners. That may be intended: a port may be
    forwarded.
    """
    for endpoint in config.listeners:
        advertised = config.advertised_listeners.get(endpoint.name, endpoint)
        if advertised != endpoint:
            log.warning(
                "listening on %s, but advertised.listeners sends clients to %s; "
                "--set advertised.listeners=... changes the advertised address",
                endpoint,
                advertised,
            )


def _raise_file_limit() -> None:
    """A broker needs a file descriptor per partition and per client: it takes as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: BrokerConfig) -> None:
    """Serves until a signal. A node whose metadata disk failed stops, and starts again when the disk works."""
    ask_for_short_slices()
    collector = Collector()
    collector.start()
    try:
        failure = await _serve_once(config, collector)
    except StorageError as error:
        # A storage error at the start ends the command in the same way as a wrong setting.
        raise ConfigError(str(error)) from error
    while failure is not None:
        if not _is_of_the_disk(failure):
            raise ConfigError(f"this node has left the cluster: {failure}; repair that, then start the node again")
        log.error("this node has left the cluster: %s; it starts again when its disk works", failure)
        if not await _wait_until_well(config.log_dir):
            return
        try:
            failure = await _serve_once(config, collector)
        except StorageError as error:
            log.error("this node does not start: %s", error)


def _is_of_the_disk(failure: Exception) -> bool:
    return isinstance(failure, LogOffline) or isinstance(failure.__cause__, OSError)


async def _wait_until_well(directory: str) -> bool:
    """Waits until the disk stores a small file. False: a signal came first."""
    stopping, pause_s = asyncio.Event(), FIRST_PAUSE_S
    _stop_on_signal(stopping)
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stopping.wait()
                return False
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        try:
            await asyncio.to_thread(probe, OsDisk(), directory)
        except OSError as error:
            log.info("the disk under %s does not work yet: %s", directory, error)
        else:
            return True


async def _serve_once(config: BrokerConfig, collector: Collector) -> Exception | None:
    """The reason why the node has left its cluster; None if a signal stopped it."""
    started = time.monotonic()
    stopping = asyncio.Event()
    failures: list[Exception] = []

    def end(error: Exception) -> None:
        failures.append(error)
        stopping.set()

    node = Node(config, end)
    await node.start()
    _stop_on_signal(stopping)
    collector.settle()  # objects made at start-up live as long as the process
    click.echo(
        f"penstock {__version__} ready on {', '.join(node.places)}: node {config.node_id}, "
        f"data in {node.directory.path}{_gateway(node)} ({time.monotonic() - started:.2f} s)"
    )
    await stopping.wait()
    log.info("stopping: draining connections and closing logs")
    try:
        await node.stop()
    except (StorageError, OSError):
        if not failures:
            raise
    if node.is_abandoned:
        # Threads that wait for the disk cannot be joined.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    if not failures:
        log.info("stopped cleanly")
    return failures[0] if failures else None


def _stop_on_signal(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup makes a process ignore SIGHUP: keep that. A shell makes the background processes of a script ignore
        # SIGINT, but a SIGINT sent to the broker is meant to stop it.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.set)
