"""The flusher port: handed the files of one commit cycle, it says when all are stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.disk import File


class Flusher(Protocol):
    def flush(
        self,
        files: Sequence[File],
        directories: Sequence[str],
        on_stable: Callable[[list[OSError | None]], None],
    ) -> None:
        """Make `files`, then the names in `directories`, stable.

        `on_stable` runs on the event loop with one outcome per file; an error of a
        directory counts against every file in it. Never blocks the caller.
        """
        ...
