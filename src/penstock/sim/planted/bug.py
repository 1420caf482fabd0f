"""A defect that can be planted: its replacements in production code, and the judge that must find it.

Places are named as text (`sim.places`). Must not know: which defects exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from penstock.sim.places import Make, replaced


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    story: str
    judge: str
    """The promise it breaks: a history that breaks another promise, or ends in a defect, has not found the bug."""
    changes: tuple[tuple[str, Make], ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in self.changes:
                stack.enter_context(replaced(place, make))
            yield
