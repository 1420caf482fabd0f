"""Settings of a client metrics subscription: which metrics clients should push, and how often.

They are stored and described so that tools can manage subscriptions. The broker does not serve
telemetry yet. A refusal is INVALID_REQUEST, as in Kafka for this kind of resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.alter import Alteration, Operation, apply_incremental
from penstock.config.describe import ConfigEntry, Source, Synonym
from penstock.config.keys import KeyTable, Row
from penstock.model.errors import ApiError, ConfigError, ErrorCode

CLIENT_METRICS_ROWS: tuple[Row, ...] = (
    ("interval.ms", "int", "300000", "", "c", "Interval at which matching clients push metrics."),
    ("match", "list", "", "", "c", "Selectors key=pattern of the matching clients."),
    ("metrics", "list", "", "", "c", "Name prefixes of the metrics to push."),
)
CLIENT_METRICS_KEYS = KeyTable("client metrics", (CLIENT_METRICS_ROWS,), {})
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    entries: list[ConfigEntry] = []
    for name, key in CLIENT_METRICS_KEYS.items():
        value, source = key.default, Source.DEFAULT_CONFIG
        synonyms: tuple[Synonym, ...] = ()
        if name in overrides:
            value, source = overrides[name], Source.CLIENT_METRICS_CONFIG
            synonyms = (Synonym(name, value, source),)
        entries.append(ConfigEntry(name, value, False, source, False, synonyms, key.type, key.doc))
    return entries


def alter_client_metrics(current: Mapping[str, str], alterations: Sequence[Alteration]) -> dict[str, str]:
    for name, operation, _ in alterations:
        if operation in (Operation.APPEND, Operation.SUBTRACT):
            raise ConfigError(f"Can't {Operation(operation).name} to key {name} because its type is not LIST.")
    overrides = apply_incremental(current, alterations, CLIENT_METRICS_KEYS)
    for name, text in overrides.items():
        if name not in CLIENT_METRICS_KEYS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        try:
            value = CLIENT_METRICS_KEYS.parse(name, text)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if isinstance(value, int) and not MIN_INTERVAL_MS <= value <= MAX_INTERVAL_MS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {text} for interval.ms, interval must be between {MIN_INTERVAL_MS} and "
                f"{MAX_INTERVAL_MS} (1 hour)",
            )
    return overrides
