"""How to reach a cluster, from the `kafka.` options of a reader or writer.

Settings of Kafka's Java clients that have no effect here are accepted, so that existing queries need to change only
their format name. Not in Spark's own source and sink: a default for `kafka.bootstrap.servers`. Must not know:
connections, what is read or written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.addresses import Address, parse_server
from penstock.spark.options.known import PREFIX, SECURITY_PREFIXES, InvalidOption
from penstock.wire_client.blocking.security import ClientSecurity, security_from_settings

BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_PORT = 9092
CLIENT_ID = "penstock-spark"

# Tuning settings of Kafka's Java clients (4.x, and those of 3.x that 4.x removed), which have no effect here.
OF_ANY_CLIENT_WITHOUT_EFFECT = frozenset(
    [
        "auto.include.jmx.reporter",
        "bootstrap.resolve.timeout.ms",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ]
)
# The same for settings of Kerberos and OAuth logins. The settings that turn these logins on are refused.
OF_LOGINS_WITHOUT_EFFECT = frozenset(
    [
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
    ]
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to reach the brokers."""

    bootstrap: tuple[Address, ...]
    security: ClientSecurity
    client_id: str = CLIENT_ID


def prefixed(given: Mapping[str, str]) -> dict[str, str]:
    """The client settings among the options, by their Kafka names."""
    texts = {name.lower(): text for name, text in given.items()}
    return {name.removeprefix(PREFIX): text for name, text in texts.items() if name.startswith(PREFIX)}


def cluster_options(given: Mapping[str, str]) -> ClusterOptions:
    """Reads the `kafka.` options of a reader or writer. Raises InvalidOption, UnsupportedClientSetting."""
    settings = prefixed(given)
    servers = settings.get("bootstrap.servers") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS
    addresses = tuple(_address(server) for server in servers.split(",") if server.strip())
    if not addresses:
        raise InvalidOption(f"option 'kafka.bootstrap.servers' is '{servers}': give HOST:PORT of one broker or more")
    told = {k: v for k, v in settings.items() if k.startswith(SECURITY_PREFIXES) and k not in OF_LOGINS_WITHOUT_EFFECT}
    security = security_from_settings(told)
    return ClusterOptions(addresses, security, settings.get("client.id", CLIENT_ID))


def _address(server: str) -> Address:
    address = parse_server(server)
    if address is None:
        raise InvalidOption(
            f"option 'kafka.bootstrap.servers' has '{server.strip()}': write HOST:PORT, for example localhost:9092"
        )
    return address
