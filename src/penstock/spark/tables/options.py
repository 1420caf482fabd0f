"""The options of the format "penstock-table". Any other option is refused by name, with a suggestion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.spark.options.known import FROM_SPARK, InvalidOption, to_flag

WRITE = ("mergeSchema", "overwriteSchema", "partitionBy", "targetFileSize", "compactInterval", "keep")
READ = ("versionAsOf", "timestampAsOf", "startingVersion", "ignoreDeletes", "skipChangeCommits", "filterPushdown")

COMPACT_INTERVAL = 20
KEEP = "1d"
FOREVER = "forever"
EARLIEST, LATEST = "earliest", "latest"

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    directory: Path
    merges_schema: bool
    overwrites_schema: bool
    partition_by: tuple[str, ...]
    target_bytes: int | None
    compact_interval: int
    """In versions; 0: never."""
    keep: timedelta | None
    """How long versions can be read that were replaced; None: for ever."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Raises InvalidOption."""
        refuse_others(options)
        columns = (name.strip() for name in options.get("partitionBy", "").split(","))
        size = options.get("targetFileSize")
        return cls(
            directory_of(options),
            to_flag("mergeSchema", options.get("mergeSchema", "false")),
            to_flag("overwriteSchema", options.get("overwriteSchema", "false")),
            tuple(filter(None, columns)),
            None if size is None else _number("targetFileSize", size, least=1),
            _number("compactInterval", options.get("compactInterval", str(COMPACT_INTERVAL)), least=0),
            _duration("keep", options.get("keep", KEEP)),
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    directory: Path
    version: int | None
    when: datetime | None
    start: int | None
    """The version at which a stream begins; None: with all rows that are there. -1: with what comes."""
    ignores_deletes: bool
    skips_changes: bool
    takes_filters: bool
    """Whether filters leave out files: see `source.pushdown`."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Raises InvalidOption."""
        refuse_others(options)
        version, when = options.get("versionAsOf"), options.get("timestampAsOf")
        if version is not None and when is not None:
            raise InvalidOption("options 'versionAsOf' and 'timestampAsOf' are both there: give one of them")
        start = options.get("startingVersion", EARLIEST).strip().lower()
        return cls(
            directory_of(options),
            None if version is None else _number("versionAsOf", version, least=0),
            None if when is None else _time("timestampAsOf", when),
            {EARLIEST: None, LATEST: -1}[start]
            if start in (EARLIEST, LATEST)
            else _number("startingVersion", start, least=0),
            to_flag("ignoreDeletes", options.get("ignoreDeletes", "false")),
            to_flag("skipChangeCommits", options.get("skipChangeCommits", "false")),
            to_flag("filterPushdown", options.get("filterPushdown", "false")),
        )


def directory_of(options: Mapping[str, str]) -> Path:
    """Absolute, because workers have directories of their own. Raises InvalidOption."""
    text = options.get("path", "").strip()
    if not text:
        raise InvalidOption("the format penstock-table needs a directory: .option('path', '/data/clicks')")
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file" or urlsplit(text).netloc not in ("", "localhost"):
            raise InvalidOption(f"option 'path' is '{text}': tables are in local or mounted file systems")
        # file:///a%20b is a URL. Spark's catalog and Hadoop write file:/a b, without escapes.
        plain = unquote(rest.removeprefix("//localhost")) if rest.startswith("//") else rest
        return Path("/" + plain.lstrip("/"))
    return Path(text).absolute()


def refuse_others(names: Iterable[str]) -> None:
    known = {name.lower(): name for name in (*WRITE, *READ)}
    for name in names:
        if name.lower() not in known and name.lower() not in FROM_SPARK:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"did you mean '{known[near[0]]}'?" if near else f"the options are path, {', '.join(known.values())}"
            raise InvalidOption(f"option '{name}' is not known to the format penstock-table: {hint}")


def _number(name: str, text: str, least: int) -> int:
    if not text.strip().isdigit() or int(text) < least:
        raise InvalidOption(f"option '{name}' is '{text}': write a whole number from {least} on")
    return int(text)


def _duration(name: str, text: str) -> timedelta | None:
    if text.strip().lower() == FOREVER:
        return None
    found = re.fullmatch(r"\s*(\d{1,6})\s*([smhd])\s*", text.lower())
    if not found:
        raise InvalidOption(f"option '{name}' is '{text}': write a time as 90s, 30m, 12h or 1d, or {FOREVER}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _time(name: str, text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidOption(f"option '{name}' is '{text}': write a time as 2026-01-31T12:00:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
