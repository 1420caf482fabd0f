"""The flusher port: makes the files of one log stable and reports when they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.disk import File


class Flusher(Protocol):
    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        """Make `files`, then the names in `directories`, stable.

        `on_stable` runs on the event loop with the first error, if any. Never blocks the caller.
        """
        ...
