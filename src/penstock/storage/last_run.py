"""The log as the last run left it: its checkpoints, and whether that run closed the log itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LastRun:
    recovery_point: int = 0
    """Everything below was stable."""
    log_start_offset: int = 0
    cleaned_offset: int = 0
    """Compacted up to here."""
    was_clean: bool = False
    """Sizes and indexes are as they were written."""


NO_LAST_RUN: Final = LastRun()
"""Nothing is known: a new log, or one that is checked from its first byte."""
