"""The address of the cluster, and the common settings of all librdkafka handles.

librdkafka's log lines go to the Python logger `penstock.sdk`, which is silent until the application configures logging.
This module tracks whether any broker answers, so that a timeout can give the reason. librdkafka retries for the whole
request timeout; `check` finds at once that nothing listens.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.model.addresses import parse_server
from penstock.sdk.errors import BadSetting, ClientError, Unreachable, translate

BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_PORT = 9092
CONNECT_TIMEOUT_S = 3.0

log = logging.getLogger("penstock.sdk")
log.addHandler(logging.NullHandler())  # otherwise Python prints warnings if logging is not configured

_DOWN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)


def bootstrap_servers(given: str | None) -> str:
    """The given servers, or those of the environment, or localhost:9092."""
    return given or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS


class ClusterConnection:
    """One client's connection to its cluster: the settings that all handles share, and whether brokers answer."""

    def __init__(
        self, servers: str | None, client_id: str, settings: Mapping[str, object], begin_with: str | None = None
    ) -> None:
        """`begin_with`: the only bootstrap server for librdkafka. Without it, librdkafka tries all servers in any
        order.
        """
        self.servers = str(settings.get("bootstrap.servers") or bootstrap_servers(servers))
        self._begin_with = begin_with or self.servers
        self._client_id = client_id
        self._settings = dict(settings)
        self.is_down = False
        """Connections to all bootstrap servers have failed, and no request was answered since."""
        self._are_all_down = False
        self.has_answered = False
        """Whether any broker has ever answered."""

    def configuration(self, own: Mapping[str, object]) -> dict[str, Any]:
        """The configuration of a librdkafka handle. The user's own settings override ours."""
        return {
            "bootstrap.servers": self._begin_with,
            "client.id": self._client_id,
            "logger": log,
            "error_cb": self.heard,
            **own,
            **self._settings,
        }

    def heard(self, error: KafkaError) -> None:
        # With several servers, an error of one server says nothing about the others.
        if error.code() == KafkaError._ALL_BROKERS_DOWN or (error.code() in _DOWN and "," not in self.servers):
            self.is_down = True
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._are_all_down:
            self._are_all_down = True
            if self.has_answered:
                log.warning("the brokers at %s no longer answer", self.servers)
        log.debug("%s: %s", error.name(), error.str())

    def answered(self) -> None:
        if self._are_all_down and self.has_answered:
            log.warning("%s answers again", self.servers)
        self.is_down = self._are_all_down = False
        self.has_answered = True

    def check(self) -> None:
        """Called before a request. If no broker was ever reached, or all are down, it raises Unreachable when nothing
        listens at any of the addresses."""
        if self.has_answered and not self._are_all_down:
            return
        reason = ""
        for server in self.servers.split(","):
            host, port = _address(server)
            try:
                socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            except ConnectionRefusedError:
                continue
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return
        raise Unreachable(self.servers, reason)

    def error(self, problem: KafkaError | KafkaException, doing: str, *, changes: bool = True) -> ClientError:
        reason = problem.args[0] if isinstance(problem, KafkaException) else problem
        if not isinstance(reason, KafkaError):
            return ClientError(f"{doing}: {problem}")
        return translate(reason, doing, self.servers, is_down=self.is_down, changes=changes)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Translates librdkafka's exceptions to ours."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error, doing) from error

    def refused_setting(self, problem: KafkaException | TypeError | ValueError, what: str) -> BadSetting:
        reason = problem.args[0] if problem.args else problem
        sentence = reason.str() if isinstance(reason, KafkaError) else str(reason)
        return BadSetting(f"{what}: {sentence}", "INVALID_SETTING")


def _address(server: str) -> tuple[str, int]:
    address = parse_server(server)
    if address is None:
        raise BadSetting(f"{server!r} is not a broker address: write HOST:PORT, for example localhost:9092")
    return address
