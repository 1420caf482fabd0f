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
from typing import Any, Final

from penstock.model.errors import ApiError, ErrorCode

MAX_LENGTH: Final = 32767
"""Of an expression, in bytes: it stands in the key of a record as a string with a 16-bit length."""
MAX_PROGRAM: Final = 2000
"""Instructions of the compiled form. Most expressions have less than a hundred; `\\p{L}+` has 1,200."""
MAX_PER_GROUP: Final = 100
EXPRESSIONS_KEPT: Final = 256
KNOWN_AT_A_TIME: Final = 500
"""Names that are only looked up: a thread holds the interpreter for as long as it does that."""


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
    """Match up to `limit` names that are not known yet. Whether all are. May run in a thread, one at a time.

    Goes on where it stopped as long as `names` is the same object: each call costs what it matches."""
    found = _compiled(regex)
    return isinstance(found, ApiError) or found.learn(names, limit)


def settle(regex: str, names: Collection[str], version: int, prepared: Sequence[str]) -> None:
    """Have the answer ready: all of `prepared` are known, which are `names`, sorted."""
    found = _compiled(regex)
    if not isinstance(found, ApiError):
        found.settle(names, version, prepared)


class _Expression:
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._known: dict[str, bool] = {}
        self._learning: Sequence[str] | None = None
        self._learned = 0
        self._found: list[str] = []
        """Of the first so many of those."""
        self._answer: tuple[Collection[str], int, tuple[str, ...]] | None = None

    def knows(self, names: Collection[str], version: int) -> bool:
        answer = self._answer
        return answer is not None and answer[0] is names and answer[1] == version

    def learn(self, names: Sequence[str], limit: int) -> bool:
        if self._learning is not names:
            self._learning, self._learned, self._found = names, 0, []
            self._forget_topics_gone(len(names))
        known = self._known
        at, end = self._learned, min(self._learned + KNOWN_AT_A_TIME, len(names))
        while at < end and limit > 0:
            name = names[at]
            is_match = known.get(name)
            if is_match is None:
                is_match = known[name] = self._compiled.fullmatch(name) is not None
                limit -= 1
            if is_match:
                self._found.append(name)
            at += 1
        self._learned = at
        return at == len(names)

    def settle(self, names: Collection[str], version: int, prepared: Sequence[str]) -> None:
        if self._learning is prepared and self._learned == len(prepared):
            self._answer = names, version, tuple(self._found)
            self._learning, self._found = None, []
        else:
            self.among(names, version)

    def _forget_topics_gone(self, there_are: int) -> None:
        if len(self._known) > 2 * there_are + 1000:
            self._known.clear()  # most of it is about topics that are gone

    def among(self, names: Collection[str], version: int | None) -> tuple[str, ...]:
        answer = self._answer
        if answer is not None and answer[0] is names and answer[1] == version:
            return answer[2]
        known = self._known
        self._forget_topics_gone(len(names))
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
