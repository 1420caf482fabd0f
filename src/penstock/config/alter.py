"""Applies IncrementalAlterConfigs and AlterConfigs to the settings of a resource.

Pure functions: old overrides and operations in, new overrides out. Must not know: where
overrides are stored. An invalid value is a ConfigError (INVALID_CONFIG). A contradictory
request, or any refusal for a broker, is an ApiError with INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.config.group import GROUP_KEYS, group_value, validate_group_overrides
from penstock.config.keys import ConfigType, Dynamic, KeyTable, split_list
from penstock.config.settings import BROKER_KEYS, Settings, broker_key, listener_override
from penstock.config.topic import TOPIC_KEYS, topic_value, validate_topic_overrides
from penstock.model.errors import ApiError, ConfigError, ErrorCode


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: int
    value: str | None


def alter_topic(current: Mapping[str, str], alterations: Sequence[Alteration], settings: Settings) -> dict[str, str]:
    def default_of(name: str) -> str | None:
        return TOPIC_KEYS[name].format(topic_value(TOPIC_KEYS[name], {}, settings))

    overrides = apply_incremental(current, alterations, TOPIC_KEYS, default_of)
    validate_topic_overrides(overrides)
    return overrides


def alter_group(current: Mapping[str, str], alterations: Sequence[Alteration], settings: Settings) -> dict[str, str]:
    def default_of(name: str) -> str | None:
        return GROUP_KEYS[name].format(group_value(GROUP_KEYS[name], {}, settings))

    overrides = apply_incremental(current, alterations, GROUP_KEYS, default_of)
    validate_group_overrides(overrides, settings)
    return overrides


def alter_broker(
    current: Mapping[str, str], alterations: Sequence[Alteration], settings: Settings, *, cluster_wide: bool
) -> dict[str, str]:
    """`current` is the dynamic layer to change: one broker's or the cluster's."""

    def default_of(name: str) -> str | None:
        return BROKER_KEYS[name].format(settings.value(name)) if name in BROKER_KEYS else None

    try:
        overrides = apply_incremental(current, alterations, BROKER_KEYS, default_of)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
    validate_broker_dynamic(overrides, cluster_wide=cluster_wide)
    return overrides


def validate_broker_dynamic(overrides: Mapping[str, str], *, cluster_wide: bool) -> None:
    try:
        keys = {name: broker_key(name) for name in overrides}
        fixed = [name for name, key in keys.items() if key.dynamic is Dynamic.READ_ONLY]
        if fixed:
            raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
        single = [name for name, key in keys.items() if key.dynamic is Dynamic.PER_BROKER]
        if cluster_wide and single:
            raise ConfigError(
                "Cannot update these configs at default cluster level, "
                f"broker id must be specified: [{', '.join(single)}]"
            )
        for name, key in keys.items():
            key.parse(overrides[name])
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error


def apply_incremental(
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    keys: KeyTable,
    default_of: Callable[[str], str | None] | None = None,
) -> dict[str, str]:
    """Return the overrides after `alterations`, before their values are checked.

    APPEND and SUBTRACT start from the override, or from `default_of` the key when there is none.
    """
    names = [alteration.name for alteration in alterations]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without_value = [name for name, operation, value in alterations if operation != Operation.DELETE and value is None]
    if without_value:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without_value)}")
    overrides = dict(current)
    for name, operation, value in alterations:
        if operation == Operation.DELETE:
            overrides.pop(name, None)
        elif operation == Operation.SET:
            overrides[name] = value or ""
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            overrides[name] = _edit_list(Operation(operation), name, value or "", overrides, keys, default_of)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation} for config {name}")
    return overrides


def _edit_list(
    operation: Operation,
    name: str,
    value: str,
    overrides: Mapping[str, str],
    keys: KeyTable,
    default_of: Callable[[str], str | None] | None,
) -> str:
    base = name if name in keys else listener_override(name) or name
    key = keys.key(base)
    if key.type is not ConfigType.LIST:
        raise ConfigError(f"Can't {operation.name} to key {name} because its type is not LIST.")
    text = overrides.get(name)
    if text is None:
        text = (default_of(base) if default_of else key.default) or ""
    items = list(split_list(text))
    for item in split_list(value):
        if operation is Operation.APPEND and item not in items:
            items.append(item)
        elif operation is Operation.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)
