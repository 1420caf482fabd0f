"""Subscription by regular expression, in RE2's syntax as Kafka has it.

The expression comes from a client and runs in the broker, so its cost must be linear in the
length of a topic's name: RE2 does that, `re` does not. What it costs a name is bounded by the
size of its compiled form. What an expression said of a name is kept, so that a new topic costs
each expression one match, however many groups and topics there are.

Even so a thousand names may take a second. Whoever runs the groups calls `prepare` in a worker
first; then the answer for these topics is there when a group asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from penstock.model.errors import ApiError, ErrorCode

MAX_LENGTH: Final = 32767
"""Of an expression, in bytes: it stands in the key of a record as a string with a 16-bit length."""
MAX_PROGRAM: Final = 2000
"""Instructions of the compiled form. Most expressions have less than a hundred; `\\p{L}+` has 1,200."""
MAX_PER_GROUP: Final = 100
EXPRESSIONS_KEPT: Final = 256


def matching_topics(regex: str, names: Collection[str], version: int | None = None) -> tuple[str, ...]:
    """The names that match as a whole, sorted; INVALID_REGULAR_EXPRESSION if the expression makes no sense.

    `version`: names it, as long as `names` is the same collection.
    """
    return _expression(regex).among(names, version)


def is_prepared(regex: str, names: Collection[str], version: int) -> bool:
    """Whether the answer is known already."""
    found = _compiled(regex) if regex in _seen else None
    return isinstance(found, ApiError) or (found is not None and found.knows(names, version))


def prepare(regex: str, names: Sequence[str], limit: int) -> bool:
    """Match up to `limit` names that are not known yet. Whether all are. May run in a thread, one at a time."""
    found = _compiled(regex)
    return isinstance(found, ApiError) or found.learn(names, limit)


def settle(regex: str, names: Collection[str], version: int) -> None:
    """All of them are known: have the answer ready."""
    found = _compiled(regex)
    if not isinstance(found, ApiError):
        found.among(names, version)


class _Expression:
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._known: dict[str, bool] = {}
        self._answer: tuple[Collection[str], int, tuple[str, ...]] | None = None

    def knows(self, names: Collection[str], version: int) -> bool:
        answer = self._answer
        return answer is not None and answer[0] is names and answer[1] == version

    def learn(self, names: Sequence[str], limit: int) -> bool:
        known = self._known
        missing = [name for name in names if name not in known]
        for name in islice(missing, limit):
            known[name] = self._compiled.fullmatch(name) is not None
        return len(missing) <= limit

    def among(self, names: Collection[str], version: int | None) -> tuple[str, ...]:
        answer = self._answer
        if answer is not None and answer[0] is names and answer[1] == version:
            return answer[2]
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
        matched = tuple(sorted(found))
        if version is not None:
            self._answer = names, version, matched
        return matched


def _expression(regex: str) -> _Expression:
    found = _compiled(regex)
    if isinstance(found, ApiError):
        raise ApiError(found.code, found.message)
    return found


_seen: dict[str, None] = {}
"""Expressions that were compiled, the last ones: whether `_compiled` has one must not take compiling it."""


@lru_cache(EXPRESSIONS_KEPT)
def _compiled(regex: str) -> _Expression | ApiError:
    """What cannot be compiled is kept, too: clients ask again."""
    _seen.pop(regex, None)
    _seen[regex] = None
    if len(_seen) > EXPRESSIONS_KEPT:
        _seen.pop(next(iter(_seen)), None)
    # Imported on first use: few groups subscribe by expression, every broker starts.
    import re2

    if len(regex.encode()) > MAX_LENGTH:
        return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is longer than 32767 bytes.")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        return ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {said}.",
        )
    if compiled.programsize > MAX_PROGRAM:
        return ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex is too complex: its compiled form has {compiled.programsize} instructions, "
            f"{MAX_PROGRAM} are allowed.",
        )
    return _Expression(compiled)
