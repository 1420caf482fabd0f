"""Shared by the commands of tables: opening one, and options as people write them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import click

from penstock.cli.arguments.times import parse_time
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.tables import Table
    from penstock.topic_tables.reading import TopicReader

LONGEST_AGE_MS: Final = 1000 * 365 * 86_400_000
P = ParamSpec("P")
R = TypeVar("R")


def needs_tables(command: Callable[P, R]) -> Callable[P, R]:
    """Says what to install."""

    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> R:
        if find_spec("deltalake") is None or find_spec("pyarrow") is None:
            raise PenstockError("tables need deltalake and pyarrow: pip install 'penstock[tables]'")
        return command(*args, **options)

    return run


class TableDirectory(click.ParamType[Path]):
    name = "directory"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "DIR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        text = str(value).removeprefix("file://")
        if "://" in text:
            self.fail(f"{text!r} is not a directory of a file system: tables need hard links", param, ctx)
        if not text:
            self.fail("the name of a directory is empty", param, ctx)
        return Path(text)


table_argument = click.argument("directory", type=TableDirectory(), metavar="DIR")


def age_of(duration_ms: int) -> timedelta:
    """For versions of tables; more than there are years is no mistake."""
    return timedelta(milliseconds=min(duration_ms, LONGEST_AGE_MS))


def open_table(directory: Path) -> Table:
    """Raises PenstockError. What is not a table is a wrong argument."""
    from penstock.tables import NoTable, NotATable, Table

    try:
        return Table.open(directory)
    except (NoTable, NotATable) as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where partitions begin in a new table."""

    text: str
    offsets: Mapping[int, int] | None = None
    timestamp_ms: int | None = None

    def __call__(self, reader: TopicReader, partitions: range) -> Mapping[int, int]:
        """Raises ConfigError for offsets that the topic does not have."""
        if self.text == "latest":
            return reader.ends(partitions)
        if self.timestamp_ms is not None:
            return reader.at(partitions, self.timestamp_ms)
        starts = reader.starts(partitions)
        if self.offsets is None:
            return starts
        ends = reader.ends(partitions)
        for partition, offset in self.offsets.items():
            if partition not in partitions:
                raise ConfigError(f"--from names partition {partition}: the topic has 0 to {partitions.stop - 1}")
            if not starts[partition] <= offset <= ends[partition]:
                raise ConfigError(
                    f"--from has offset {offset} of partition {partition}, whose log has {starts[partition]} to "
                    f"{ends[partition]}"
                )
        return {**starts, **self.offsets}


class Start(click.ParamType[StartAt]):
    """earliest, latest, a time, or 0:100,1:250: offsets by partition."""

    name = "start"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "earliest|latest|TIME|P:OFFSET,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> StartAt:
        text = str(value).strip()
        if text in ("earliest", "latest"):
            return StartAt(text)
        parts = [part.strip().split(":") for part in text.split(",")]
        if all(len(part) == 2 and all(number.isascii() and number.isdigit() for number in part) for part in parts):
            offsets = {int(partition): int(offset) for partition, offset in parts}
            if len(offsets) < len(parts):
                self.fail(f"{text!r} names a partition twice", param, ctx)
            return StartAt(text, offsets=offsets)
        try:
            return StartAt(text, timestamp_ms=round(parse_time(text).timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{text!r} is neither earliest nor latest, nor a time (2026-01-31T12:00:00Z, or 15m for a quarter of "
                "an hour ago), nor offsets by partition (0:100,1:250)",
                param,
                ctx,
            )
