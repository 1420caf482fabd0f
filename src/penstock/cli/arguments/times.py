"""Points in time and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_AGO = re.compile(r"(\d+)(s|m|h|d)")
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d|)")
_LONGEST_DIGITS = 10
_MILLISECONDS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class PointInTime(click.ParamType[datetime]):
    """2026-01-31T12:00:00 (UTC unless it has an offset, as in Kafka's tools), milliseconds since 1970, or 15m ago."""

    name = "time"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            return parse_time(text)
        except (ValueError, OverflowError, OSError):  # OSError: too large for the machine's time
            self.fail(
                f"{text!r} is not a time: write 2026-01-31T12:00:00Z, milliseconds since 1970, or 15m for a quarter "
                "of an hour ago (s, m, h, d)",
                param,
                ctx,
            )


class Duration(click.ParamType[int]):
    """15m, 90s, 500ms, 2h, 1d; a number alone is milliseconds, as in Kafka's tools."""

    name = "duration"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "DURATION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        found = _DURATION.fullmatch(text)
        if found is None or len(found[1]) > _LONGEST_DIGITS:
            self.fail(f"{text!r} is not a duration: write 90s, 15m, 2h or 1d, or milliseconds", param, ctx)
        return int(found[1]) * _MILLISECONDS[found[2]]


def parse_time(text: str) -> datetime:
    ago = _AGO.fullmatch(text.removesuffix("ago").strip())
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    if text.isascii() and text.isdigit():
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
