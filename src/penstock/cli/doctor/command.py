"""`penstock doctor`: whether this machine can talk to the cluster, and if not, why.

A client connects twice: to a bootstrap address, and then to the addresses that the brokers advertise. Most problems
come from the difference. Each finding is one line; the exit code is 1 when something is wrong.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Literal

import click

from penstock import __version__
from penstock.cli.output import show_json
from penstock.cli.reach.connection import (
    CLOSED_AT_ONCE,
    CONNECT_TIMEOUT_S,
    HANGS,
    REFUSED,
    START_OTHERS,
    STARTING,
    STUCK,
    WRONG_PORT,
    Target,
    ask_api_versions,
    cluster_command,
    connect_problem,
    is_starting,
    json_option,
)
from penstock.cli.reach.probe import Probe
from penstock.model.errors import PenstockError, ProtocolError

if TYPE_CHECKING:
    from penstock.sdk import BlockingAdmin
    from penstock.wire.messages.metadata import MetadataResponseBroker

MOST_AT_ONCE = 16
SETTINGS_S = 5.0
LOW_SPACE = 0.1
FULL_SPACE, FULL_BYTES = 0.01, 100 << 20


@dataclass(frozen=True)
class Diagnosis:
    state: Literal["ok", "info", "warning", "problem"]
    about: str
    sentence: str
    advice: str = ""


@click.command()
@json_option
@cluster_command
def doctor(target: Target, as_json: bool) -> None:
    """Check the connection to the cluster: addresses, listeners, disks, versions. Check Spark on this machine, too."""
    target.addresses()  # raises ConfigError
    findings: list[Diagnosis] = []
    from penstock.cli.doctor.spark import spark

    for finding in chain(_until_refused(examine(target)), spark()):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        show_json([vars(finding) for finding in findings])
    problems = sum(finding.state == "problem" for finding in findings)
    if not as_json:
        click.echo(_verdict(problems, sum(finding.state == "warning" for finding in findings)))
    if problems:
        sys.exit(1)


def _verdict(problems: int, warnings: int) -> str:
    counts = ((problems, "problem"), (warnings, "warning"))
    found = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for count, kind in counts if count)
    return f"{found} found." if found else "Everything is in order."


def _show(finding: Diagnosis) -> None:
    mark = {"ok": "ok     ", "info": "info   ", "warning": "warning", "problem": "PROBLEM"}[finding.state]
    click.echo(f"{mark}  {finding.about}: {finding.sentence}")
    if finding.advice:
        click.echo(f"         {finding.advice}")


def _until_refused(findings: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    """An error is the last finding: what was found before it counts, and the checks of this machine follow."""
    try:
        yield from findings
    except PenstockError as error:
        yield Diagnosis("problem", "cluster", str(error))


def examine(target: Target) -> Iterator[Diagnosis]:
    yield versions()
    yield Diagnosis("ok", "cluster", f"{target.servers} ({_SOURCES.get(target.source, f'from {target.source}')})")
    addresses = target.addresses()
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:  # an address that hangs delays no other
        reached = list(pool.map(bootstrap, *zip(*addresses, strict=True)))
    yield from reached
    up = [at for at, finding in zip(addresses, reached, strict=True) if finding.state == "ok"]
    if not up:
        return
    from penstock.cli.doctor.brokers import down, fenced_at, partitions
    from penstock.cli.doctor.transactions import old_transactions
    from penstock.cli.doctor.voters import voters

    protocol = str(target.settings.get("security.protocol", "plaintext")).lower()
    serving = (one for one in up if protocol != "plaintext" or not is_starting(*one))
    entrance = next(serving, None)
    if entrance is None:
        decided = list(voters(target, up[0]))  # a broker that is cut off still knows the voters
        if not _has_problem(decided):
            yield Diagnosis("problem", "cluster", f"{up[0][0]}:{up[0][1]} {STARTING}", START_OTHERS)
        yield from decided
        return
    try:
        metadata = Probe(*entrance, CONNECT_TIMEOUT_S).cluster()
    except (OSError, ProtocolError) as error:
        advice = "The broker answers, but not with metadata. If it needs TLS or SASL, use --command-config."
        yield Diagnosis("problem", "cluster", str(error), advice)
        return
    fenced = fenced_at(entrance)
    decided = list(voters(target, entrance, [one.node_id for one in fenced]))
    has_controller = metadata.controller_id >= 0 and not _has_problem(
        decided
    )  # a broker may name any node as controller
    count = len(metadata.brokers)
    yield Diagnosis(
        "ok",
        "cluster",
        f"{metadata.cluster_id}: {count} broker{'s' * (count != 1)}, "
        + (f"controller {metadata.controller_id}" if has_controller else "no controller"),
    )
    yield from decided
    if _has_problem(decided):
        return  # without a controller, a broker that does not answer may be down, so its address may be right
    yield from down(fenced, [finding.about for finding in decided])
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        look = partial(advertised, entrance=entrance, is_plain="ssl" not in protocol)
        findings = list(pool.map(look, metadata.brokers))
    yield from findings
    if _has_problem(findings):
        return  # further answers would not be reliable
    with replace(target, timeout_s=min(target.timeout_s, SETTINGS_S)).admin() as admin:
        for broker in metadata.brokers:
            yield from broker_settings(admin, broker.node_id, is_local=_is_loopback(broker.host))
    yield partitions(target)
    yield from old_transactions(replace(target, timeout_s=min(target.timeout_s, SETTINGS_S)))


def _has_problem(findings: Iterable[Diagnosis]) -> bool:
    return any(finding.state == "problem" for finding in findings)


_SOURCES = {"default": "the default; PENSTOCK_BOOTSTRAP_SERVERS or --bootstrap-server selects another"}


def versions() -> Diagnosis:
    import confluent_kafka

    return Diagnosis(
        "ok",
        "client",
        f"penstock {__version__}, Python {platform.python_version()}, "
        f"confluent-kafka {version('confluent-kafka')}, librdkafka {confluent_kafka.libversion()[0]}",
    )


def bootstrap(host: str, port: int) -> Diagnosis:
    about = f"bootstrap {host}:{port}"
    began = time.monotonic()
    problem = connect_problem(host, port)
    if problem:
        advice = (
            "Nothing listens there: start a broker with `penstock start`, or give another --bootstrap-server."
            if problem == REFUSED
            else "Check the name and the network, firewalls included."
        )
        return Diagnosis("problem", about, problem, advice)
    took_ms = (time.monotonic() - began) * 1000
    try:
        apis = Probe(host, port, CONNECT_TIMEOUT_S).api_count()
    except TimeoutError:
        if ask_api_versions(host, port, CONNECT_TIMEOUT_S) == "other":  # it waited for the end of a line
            return Diagnosis("problem", about, "the server there does not speak Kafka's protocol", WRONG_PORT)
        return Diagnosis("problem", about, HANGS, STUCK)
    except ConnectionError:
        return Diagnosis("problem", about, f"it {CLOSED_AT_ONCE}")
    except (OSError, ProtocolError) as error:
        return Diagnosis(
            "problem",
            about,
            f"the server there does not speak Kafka's protocol ({error})",
            WRONG_PORT,
        )
    return Diagnosis("ok", about, f"{_resolved(host)} connects in {took_ms:.1f} ms and serves {apis} APIs")


def advertised(broker: MetadataResponseBroker, entrance: tuple[str, int], *, is_plain: bool) -> Diagnosis:
    host, port = broker.host, broker.port
    about, address = f"broker {broker.node_id}", f"{host}:{port}"
    problem = connect_problem(host, port)
    answer = ask_api_versions(host, port, CONNECT_TIMEOUT_S) if not problem and is_plain else "kafka"
    if answer == "nothing":
        # The operating system accepts connections for a process that is stopped.
        return Diagnosis("problem", about, f"advertises {address}: {HANGS}", STUCK)
    if answer == "closed":
        return Diagnosis("problem", about, f"advertises {address}: it {CLOSED_AT_ONCE}")
    if not problem:
        return Diagnosis("ok", about, f"advertises {address}, which connects from here")
    advice = "Nothing listens there: start that broker. If it runs, check its address. " if problem == REFUSED else ""
    advice += "Clients connect to the bootstrap address first, and then to the advertised address."
    if _is_loopback(host) and not _is_loopback(entrance[0]):
        advice += f" {host} means the client's own machine: start the broker with --host, or set"
    else:
        advice += " Set"
    return Diagnosis(
        "problem",
        about,
        f"advertises {address}, which does not connect from here ({problem})",
        f"{advice} advertised.listeners to an address that clients can reach.",
    )


def broker_settings(admin: BlockingAdmin, broker_id: int, *, is_local: bool) -> Iterator[Diagnosis]:
    about = f"broker {broker_id}"
    try:
        settings = {one.name: one.value or "" for one in admin.configs("broker", str(broker_id))}
    except PenstockError as error:
        yield Diagnosis("warning", about, f"its settings cannot be read: {error}")
        return
    listeners = settings.get("listeners", "")
    if listeners:
        yield listening(about, listeners, settings.get("advertised.listeners", ""))
    for directory in filter(None, settings.get("log.dirs", "").split(",")):
        yield disk(about, directory.strip(), is_local=is_local)


def listening(about: str, listeners: str, advertised_listeners: str) -> Diagnosis:
    hosts = [one.rpartition("://")[2].rpartition(":")[0].strip("[]") for one in listeners.split(",")]
    sentence = f"listens on {listeners}" + (
        f", advertises {advertised_listeners}" if advertised_listeners and advertised_listeners != listeners else ""
    )
    if hosts and all(map(_is_loopback, hosts)):
        advice = (
            "To serve other machines, use `penstock start --host ADDRESS`, or set `listeners` in its properties file."
        )
        return Diagnosis("ok", about, f"{sentence}: this machine only", advice)
    return Diagnosis("ok", about, sentence)


def disk(about: str, directory: str, *, is_local: bool) -> Diagnosis:
    if not is_local or not os.path.isdir(directory):
        return Diagnosis("ok", about, f"keeps its data in {directory}, on its own machine")
    usage = shutil.disk_usage(directory)
    sentence = f"keeps its data in {directory}: {_size(usage.free)} of {_size(usage.total)} free"
    if usage.free < usage.total * LOW_SPACE:
        is_full = usage.free < min(usage.total * FULL_SPACE, FULL_BYTES)
        advice = "A full disk stops writes. Free some space, or lower retention.ms or retention.bytes."
        return Diagnosis("problem" if is_full else "warning", about, sentence, advice)
    return Diagnosis("ok", about, sentence)


def _resolved(host: str) -> str:
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except socket.gaierror:
        return host
    return host if found == [host] else f"{host} ({', '.join(found)})"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _size(size_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size_bytes < 1024 or unit == "TB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 10 else f"{size_bytes:.1f} {unit}"
