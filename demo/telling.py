"""The output of the demo: lines with the seconds since its start."""

from __future__ import annotations

import sys
import time

MARGIN = " " * 9
_begin = time.monotonic()


class Failed(RuntimeError):
    """A step of the demo has failed."""


def say(text: str) -> None:
    clock = f"{time.monotonic() - _begin:5.0f} s"
    print(f"\033[1m{clock}\033[0m  {text}" if sys.stdout.isatty() else f"{clock}  {text}", flush=True)


def show(text: str) -> None:
    """Prints the output of a command below the line with the command."""
    print("\n".join(f"{MARGIN}{line}" for line in text.splitlines()), flush=True)
