"""Subscription by regular expression, in RE2's syntax as Kafka has it.

The expression comes from a client and runs in the broker, so its cost must be linear in the
length of a topic's name: RE2 does that, `re` does not. Its compiled form is bounded too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.model.errors import ApiError, ErrorCode

MAX_LENGTH: Final = 32767
"""Of an expression; it stands in the key of a record as a string with a 16-bit length."""


def matching_topics(regex: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that match as a whole, sorted; INVALID_REGULAR_EXPRESSION if the expression makes no sense."""
    # Imported on first use: few groups subscribe by expression, every broker starts.
    import re2

    if len(regex.encode()) > MAX_LENGTH:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is longer than 32767 bytes.")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(regex, options)
    except re2.error as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {_reason(error)}.",
        ) from error
    return tuple(sorted(name for name in names if compiled.fullmatch(name)))


def _reason(error: BaseException) -> str:
    text = error.args[0] if error.args else ""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
