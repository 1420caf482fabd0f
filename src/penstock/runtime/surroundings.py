"""What a process was started with, as far as settings go by it: its environment and its working directory."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.config.broker import BrokerConfig


def load_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    source: str = "from --set",
    strict: bool = False,
) -> tuple[BrokerConfig, list[str]]:
    """`BrokerConfig.load` for this process."""
    return BrokerConfig.load(
        path, overrides, environ=os.environ, working_directory=os.getcwd(), source=source, strict=strict
    )
