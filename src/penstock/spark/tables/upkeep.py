"""Compaction and expiry after a commit, once in a number of versions, so that files and log stay bounded."""

from __future__ import annotations

import logging
from datetime import timedelta

from penstock.tables import Table, TableError

logger = logging.getLogger(__name__)

EXPIRE_EVERY = 10
"""In compactions. An expiry reads the log."""


def keep_up(table: Table, version: int, compact_interval: int, keep: timedelta | None) -> None:
    """`version` has just been committed. What fails here is tried again later: the commit counts without it."""
    if not compact_interval or version % compact_interval:
        return
    try:
        table.compact()
        if keep is not None and version % (compact_interval * EXPIRE_EVERY) == 0:
            table.expire(keep)
    except TableError as error:
        logger.warning("%s: compaction after version %d: %s", table.directory, version, error)
