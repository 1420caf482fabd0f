"""How many of the process's file descriptors may be used by connections."""

from __future__ import annotations

import resource
from typing import Final

RESERVE: Final = 128


def max_connection_descriptor() -> int:
    """Higher numbers are reserved for files: an eighth of all, but at least `RESERVE`, and never more than half."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    return limit - min(max(RESERVE, limit // 8), limit // 2)
