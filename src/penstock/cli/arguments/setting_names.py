"""Better errors for names of settings that a broker does not know or cannot change while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Literal

from penstock.model.errors import PenstockError

FIXED = "Cannot update these configs dynamically"
UNKNOWN = "config name"  # as in Kafka's message "Unknown topic config name: retention.mss"


@contextmanager
def known_names(kind: Literal["topic", "broker", "group"], wanted: Iterable[str], listed: str) -> Iterator[None]:
    """Explains errors of this block about a name in `wanted`. `listed`: the command that shows all names."""
    try:
        yield
    except PenstockError as error:
        if FIXED in str(error):
            raise PenstockError(f"{error}; change the brokers' files and restart the brokers one by one") from error
        if UNKNOWN not in str(error):
            raise
        close = [
            match for name in wanted if name not in _names(kind) for match in get_close_matches(name, _names(kind), 1)
        ]
        meant = f"did you mean {', '.join(close)}? " if close else ""
        raise PenstockError(f"{error}; {meant}`{listed}` shows all names") from error


def _names(kind: Literal["topic", "broker", "group"]) -> tuple[str, ...]:
    if kind == "topic":
        from penstock.config.topic import TOPIC_KEYS

        return tuple(TOPIC_KEYS)
    if kind == "broker":
        from penstock.config.settings import BROKER_KEYS

        return tuple(BROKER_KEYS)
    from penstock.config.group import GROUP_KEYS

    return tuple(GROUP_KEYS)
