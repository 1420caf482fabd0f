"""Key tables: the name of a setting, its permitted values, and how its text is parsed and formatted.

Must not know: any particular setting; the tables are in `topic`, `group` and `broker_keys`.
Invariants: a table row is a plain tuple of strings, so that importing a table costs one
constant; a `ConfigKey` is built on first use; `key.format(key.parse(text))` is the text
that Kafka's DescribeConfigs prints.

A row is (name, type, default, allowed, flags, doc).

- `default` is text, or None where Kafka has no value.
- `allowed` for numbers: "1..", "0..1", "1..9|-1" (a range, or one extra value); for
  strings and lists: the values, separated by blanks, with "~" in front if case does not
  matter; or one of the named checks "nonempty", "replicas", "offset-reset".
- `flags`: r read-only; b dynamic per broker; c dynamic per broker and cluster-wide;
  e has an effect in Penstock; i internal, listed only if set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from functools import cache
from typing import NamedTuple, TypeAlias

from penstock.model.errors import ConfigError

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
Row: TypeAlias = tuple[str, str, str | None, str, str, str]


class ConfigType(IntEnum):
    """The numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(Enum):
    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


LONG_MAX = 2**63 - 1

_WIDTH_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
_NUMERIC = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
_DYNAMIC = {"r": Dynamic.READ_ONLY, "b": Dynamic.PER_BROKER, "c": Dynamic.CLUSTER_WIDE}
_UNITS = (
    (".bytes.per.second", "bytes/s"),
    (".rate", "per second"),
    (".ms", "ms"),
    (".millis", "ms"),
    (".bytes", "bytes"),
    (".bytes.between.snapshots", "bytes"),
    (".size.in.bytes", "bytes"),
    (".buffer.size", "bytes"),
    (".receive.size", "bytes"),
    (".seconds", "s"),
    (".secs", "s"),
    (".minutes", "minutes"),
    (".hours", "hours"),
)
_UNIT_OVERRIDES = {
    "leader.replication.throttled.rate": "bytes/s",
    "follower.replication.throttled.rate": "bytes/s",
    "sasl.kerberos.min.time.before.relogin": "ms",
}
_REPLICAS_FORMAT = (
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


@cache
def _unit_of(name: str) -> str:
    return _UNIT_OVERRIDES.get(name) or next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")


class ConfigKey(NamedTuple):
    name: str
    type: ConfigType
    default: str | None
    allowed: str
    minimum: float | None
    maximum: float | None
    besides: float | None
    """An extra value outside the range, such as -1 for "unset"."""
    choices: tuple[str, ...]
    any_case: bool
    dynamic: Dynamic
    effective: bool
    internal: bool
    doc: str
    synonyms: tuple[str, ...]
    """Broker keys that supply the value if this key is unset, nearest first."""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def unit(self) -> str:
        return _unit_of(self.name) if self.type in _NUMERIC else ""

    @property
    def default_value(self) -> ConfigValue:
        return None if self.default is None else self.parse(self.default)

    def parse(self, text: str) -> ConfigValue:
        """Return the typed value, or raise ConfigError with Kafka's message."""
        text = text.strip()
        value: ConfigValue
        if self.type is ConfigType.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return lowered == "true"
        if self.type in _NUMERIC:
            value = self._parse_number(text)
            self._check_range(value, text)
            return value
        if self.type is ConfigType.LIST:
            value = split_list(text)
            self._check_list(value)
            return value
        if text or self.default is not None or self.allowed:
            self._check_string(text)
        return text

    def format(self, value: ConfigValue) -> str | None:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _format_double(value)
        if isinstance(value, tuple):
            return ",".join(value)
        return None if value is None else str(value)

    def _invalid(self, text: str, reason: str) -> ConfigError:
        return ConfigError(f"Invalid value {text} for configuration {self.name}: {reason}")

    def _parse_number(self, text: str) -> int | float:
        if self.type is ConfigType.DOUBLE:
            try:
                return float(text.replace("_", "?"))
            except ValueError:
                raise self._not_a_number(text) from None
        if not _INTEGER.fullmatch(text):
            raise self._not_a_number(text)
        value = int(text)
        limit = 1 << _WIDTH_BITS[self.type]
        if not -limit <= value < limit:
            raise self._not_a_number(text)
        return value

    def _not_a_number(self, text: str) -> ConfigError:
        return self._invalid(text, f"Not a number of type {self.type.name}")

    def _check_range(self, value: int | float, text: str) -> None:
        low, high = self.minimum, self.maximum
        if self.besides is not None:
            if value != self.besides and not (low is None or value >= low) & (high is None or value <= high):
                raise self._invalid(text, f"Value must be between {low} and {high} or equal to {self.besides}")
            return
        if low is not None and not value >= low:
            raise self._invalid(text, f"Value must be at least {low}")
        if high is not None and not value <= high:
            raise self._invalid(text, f"Value must be no more than {high}")

    def _check_list(self, items: tuple[str, ...]) -> None:
        if self.allowed == "replicas":
            if items != ("*",) and not all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in items):
                raise self._invalid(f"[{', '.join(items)}]", f"{self.name} {_REPLICAS_FORMAT}")
            return
        for item in items:
            if self.choices and item not in self.choices:
                raise self._invalid(item, f"String must be one of: {', '.join(self.choices)}")

    def _check_string(self, text: str) -> None:
        if self.allowed == "nonempty":
            if not text:
                raise self._invalid(text, "String must be non-empty")
        elif self.allowed == "offset-reset":
            if text not in ("earliest", "latest") and not re.fullmatch(r"by_duration:P(?=.)[0-9A-Z.]+", text):
                raise self._invalid(text, "must be earliest, latest or by_duration:PnDTnHnMn.nS")
        elif self.any_case:
            if text.lower() not in (choice.lower() for choice in self.choices):
                raise self._invalid(text, f"String must be one of (case insensitive): {', '.join(self.choices)}")
        elif self.choices and text not in self.choices:
            raise self._invalid(text, f"String must be one of: {', '.join(self.choices)}")


class KeyTable(Mapping[str, ConfigKey]):
    """All settings of one kind of resource, in the order of their rows."""

    def __init__(self, kind: str, rows: Iterable[tuple[Row, ...]], synonyms: Mapping[str, str]) -> None:
        self.kind = kind
        self._rows = {row[0]: row for section in rows for row in section}
        self._synonyms = synonyms
        self._keys: dict[str, ConfigKey] = {}

    def __getitem__(self, name: str) -> ConfigKey:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _build(self._rows[name], self._synonyms.get(name, ""))
        return key

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def key(self, name: str) -> ConfigKey:
        """Return the key, or raise the error that a client gets for an unknown name."""
        if name not in self._rows:
            raise ConfigError(f"Unknown {self.kind} config name: {name}")
        return self[name]

    def parse(self, name: str, text: str) -> ConfigValue:
        return self.key(name).parse(text)


def split_list(text: str) -> tuple[str, ...]:
    text = text.strip()
    return tuple(item.strip() for item in text.split(",")) if text else ()


def _build(row: Row, synonyms: str) -> ConfigKey:
    name, type_name, default, allowed, flags, doc = row
    config_type = ConfigType[type_name.upper()]
    minimum, maximum, besides = _parse_range(allowed) if config_type in _NUMERIC and allowed else (None, None, None)
    named_check = allowed in ("nonempty", "replicas", "offset-reset")
    choices = () if config_type in _NUMERIC or named_check else tuple(allowed.removeprefix("~").split())
    return ConfigKey(
        name=name,
        type=config_type,
        default=default,
        allowed=allowed,
        minimum=minimum,
        maximum=maximum,
        besides=besides,
        choices=choices,
        any_case=allowed.startswith("~"),
        dynamic=_DYNAMIC[flags[0]],
        effective="e" in flags,
        internal="i" in flags,
        doc=doc,
        synonyms=tuple(synonyms.split()),
    )


def _parse_range(allowed: str) -> tuple[float | None, float | None, float | None]:
    limits, _, besides = allowed.partition("|")
    low, _, high = limits.partition("..")
    return _number(low), _number(high), _number(besides)


def _number(text: str) -> float | None:
    if not text:
        return None
    return float(text) if "." in text else int(text)


def _format_double(value: float) -> str:
    """Format like Java's Double.toString: scientific notation below 1e-3 and from 1e7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    if value != value:
        return "NaN"
    if abs(value) == float("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = f"{value!r}".lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    leading_zeros = len(digits) - len(digits.lstrip("0"))
    power = int(exponent or 0) + len(whole) - 1 - leading_zeros
    digits = digits.strip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"
