"""The consumer group that shows how far a query is, read from the query's progress report."""

from __future__ import annotations

import json
from typing import Any


def group_of(query: Any) -> str | None:
    """The consumer group that shows the lag of a streaming query; of several sources, the first one's.

    None before the first batch, and for a query without a penstock source.
    """
    progress = query.lastProgress
    for source in progress["sources"] if progress is not None else ():
        found = parse_offset(source["endOffset"])
        if found is not None:
            return str(found["group"])
    return None


def parse_offset(reported: Any) -> dict[str, Any] | None:
    """The offset in a progress report, if it is a penstock source's."""
    try:
        found = json.loads(reported) if isinstance(reported, str) else reported
    except ValueError:
        return None
    is_ours = isinstance(found, dict) and isinstance(found.get("group"), str) and "topics" in found
    return found if is_ours else None
