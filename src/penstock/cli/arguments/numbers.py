"""Numbers on the command line: a number that does not fit the protocol is refused with a message."""

from __future__ import annotations

from typing import Any

import click

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
SHORTEST_S, LONGEST_S = 0.1, INT32_MAX // 1000  # milliseconds have 32 bits


class Number(click.ParamType[int]):
    """A whole number; by default in the range of node ids and partitions."""

    name = "number"

    def __init__(self, least: int = 0, most: int = INT32_MAX) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        # The length is checked first: int() refuses thousands of digits.
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(self._most))
        if not is_number or not self._least <= int(text) <= self._most:
            self.fail(f"{text!r} is not a number from {self._least} to {self._most}.", param, ctx)
        return int(text)


class Seconds(click.ParamType[float]):
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = float(value)
        except ValueError:
            found = 0.0
        if not SHORTEST_S <= found <= LONGEST_S:  # also refuses nan
            self.fail(f"{str(value)!r} is not a number of seconds from {SHORTEST_S} to {LONGEST_S}.", param, ctx)
        return found


NUMBER = Number()
PARTITIONS = Number(1, 100_000)  # librdkafka's limit
