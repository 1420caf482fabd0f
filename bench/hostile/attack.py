"""A peer in a process of its own: `python -m bench.hostile.attack SCENARIO PORT HTTP_PORT LINE_PORT SCALE SECONDS`."""

from __future__ import annotations

import os
import sys
import time

from bench.hostile.scenarios import SCENARIOS, Stage

NICENESS = 10
"""The healthy producer shares the machine with it: what is measured is the broker, not who gets the other core."""


def main(name: str, port: str, http_port: str, line_port: str, scale: str, seconds: str) -> None:
    os.nice(NICENESS)
    scenario = next(one for one in SCENARIOS if one.name == name)
    stage = Stage(int(port), int(http_port), int(line_port), float(scale), time.monotonic() + 60.0)

    def begun() -> None:
        stage.until = time.monotonic() + float(seconds)
        print("begun", flush=True)

    stage.begun = begun
    scenario.attack(stage)


if __name__ == "__main__":
    main(*sys.argv[1:])
