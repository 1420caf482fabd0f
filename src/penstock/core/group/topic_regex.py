"""Subscription by regular expression, in RE2's syntax as Kafka has it.

The expression comes from a client and runs in the broker, so its cost must be linear in the
length of a topic's name: RE2 does that, `re` does not. Its compiled form is bounded too. What
an expression said of a name is kept, so that a new topic costs each expression one match,
however many groups and topics there are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

from penstock.model.errors import ApiError, ErrorCode

MAX_LENGTH: Final = 32767
"""Of an expression, in bytes: it stands in the key of a record as a string with a 16-bit length."""
EXPRESSIONS_KEPT: Final = 128


def matching_topics(regex: str, names: Collection[str]) -> tuple[str, ...]:
    """The names that match as a whole, sorted; INVALID_REGULAR_EXPRESSION if the expression makes no sense."""
    return _compiled(regex).among(names)


class _Expression:
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._known: dict[str, bool] = {}

    def among(self, names: Collection[str]) -> tuple[str, ...]:
        known = self._known
        if len(known) > 2 * len(names) + 1000:
            known.clear()  # most of it is about topics that are gone
        found: list[str] = []
        for name in names:
            is_match = known.get(name)
            if is_match is None:
                is_match = known[name] = self._compiled.fullmatch(name) is not None
            if is_match:
                found.append(name)
        return tuple(sorted(found))


@lru_cache(EXPRESSIONS_KEPT)
def _compiled(regex: str) -> _Expression:
    # Imported on first use: few groups subscribe by expression, every broker starts.
    import re2

    if len(regex.encode()) > MAX_LENGTH:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is longer than 32767 bytes.")
    options = re2.Options()
    options.log_errors = False
    try:
        return _Expression(re2.compile(regex, options))
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {said}.",
        ) from error
