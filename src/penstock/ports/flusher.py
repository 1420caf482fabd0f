"""The flusher port: handed what one log wants stable, it says when it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.ports.disk import File


class Flusher(Protocol):
    def flush(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[OSError | None], None]
    ) -> None:
        """Make `files`, then the names in `directories`, stable.

        `on_stable` runs on the event loop with the first error, if there was one. Never blocks
        the caller.
        """
        ...
