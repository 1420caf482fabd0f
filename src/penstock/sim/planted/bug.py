"""A defect that can be planted: what it replaces in production code, and whose business it is to find it.

Places are named as text (`sim.places`). Must not know: which defects there are.
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
    """The promise it breaks: a history that breaks another one, or ends in a defect, has not found it."""
    changes: tuple[tuple[str, Make], ...]
    rare_seed: int | None = None
    """That of a history which shows it, where hundreds of others do not. It is played first."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in self.changes:
                stack.enter_context(replaced(place, make))
            yield
