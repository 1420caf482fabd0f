"""Places in production code, named as text, that can be replaced for a while: by a defect, or by a listener. A missing
place is a named error, so that a planted bug or a counted state cannot silently disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from penstock.sim.machine.loop import SimError

Make = Callable[[Any], Any]
"""A function from the original to its replacement."""


class NoSuchPlace(SimError):
    """Production code has changed: the simulation must name another place."""


@contextmanager
def replaced(place: str, make: Make) -> Iterator[None]:
    """`place`: "package.module:Class.attribute" or "package.module:function"."""
    module, _, path = place.partition(":")
    owner: Any = import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    original = None if owner is None else vars(owner).get(name)
    if original is None:
        raise NoSuchPlace(f"{place} no longer exists: update its name in penstock.sim")
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
