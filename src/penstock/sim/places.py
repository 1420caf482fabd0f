"""Places in production code, named as text, where something else may stand for a while: a defect, or somebody who
listens. A place that is no longer there is a named error, and not a bug that can no longer be found or a state that is
no longer counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from penstock.sim.machine.loop import SimError

Make = Callable[[Any], Any]
"""From the original to what takes its place."""


class NoSuchPlace(SimError):
    """Production code has changed: whoever named the place needs another one."""


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
        raise NoSuchPlace(f"there is no {place} any more: whoever names it in penstock.sim is to say where it is now")
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
