"""The environment and the working directory of the process, as far as settings depend on them."""

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
