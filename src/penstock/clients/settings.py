"""Where the cluster is, and what every librdkafka handle is given.

librdkafka's own log lines go to the Python logger `penstock.clients`, which is silent until the application
configures logging. Whether any broker answers is remembered, so that a time-out can say why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.clients.errors import BadSetting, ClientError, translate

BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"

log = logging.getLogger("penstock.clients")
log.addHandler(logging.NullHandler())  # without it Python prints warnings of a silent application

_DOWN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)


def bootstrap_servers(given: str | None) -> str:
    """As given, else from the environment, else localhost:9092."""
    return given or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS


class Connection:
    """What one client knows of its connection: the settings all handles share, and whether brokers answer."""

    def __init__(self, servers: str | None, client_id: str, settings: Mapping[str, object]) -> None:
        self.servers = bootstrap_servers(servers)
        self._client_id = client_id
        self._settings = dict(settings)
        self.is_down = False

    def configuration(self, own: Mapping[str, object]) -> dict[str, Any]:
        """For a librdkafka handle. What the user set by librdkafka's name wins."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": self._client_id,
            "logger": log,
            "error_cb": self.heard,
            **own,
            **self._settings,
        }

    def heard(self, error: KafkaError) -> None:
        if error.code() in _DOWN:
            self.is_down = True
        log.debug("%s: %s", error.name(), error.str())

    def answered(self) -> None:
        self.is_down = False

    def error(self, problem: KafkaError | KafkaException, doing: str) -> ClientError:
        reason = problem.args[0] if isinstance(problem, KafkaException) else problem
        if not isinstance(reason, KafkaError):
            return ClientError(f"{doing}: {problem}")
        return translate(reason, doing, self.servers, is_down=self.is_down)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """librdkafka's exceptions become ours."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error, doing) from error

    def refused_setting(self, problem: KafkaException | TypeError | ValueError, what: str) -> BadSetting:
        reason = problem.args[0] if problem.args else problem
        sentence = reason.str() if isinstance(reason, KafkaError) else str(reason)
        return BadSetting(f"cannot make a {what}: {sentence}", "INVALID_SETTING")
