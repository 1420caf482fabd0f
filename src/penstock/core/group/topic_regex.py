"""Subscription by regular expression, in RE2's syntax as Kafka has it.

The expression comes from a client and runs in the broker, so its cost must be linear in the
length of a topic's name: RE2 does that, `re` does not. What it costs a name is bounded by the
size of its compiled form. What an expression said of a name is kept, so that a new topic costs
each expression one match, however many groups and topics there are.

Even so a thousand names may take a second, and RE2 holds the interpreter while it matches one.
Whoever runs the groups has `match` called in another process first, and tells what it said
(`Expression.learn`); then the answer for these topics is there when a group asks.
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
"""Names that are only looked up: that is done on the loop."""


def matching_topics(regex: str, names: Collection[str], version: int | None = None) -> tuple[str, ...]:
    """The names that match as a whole, sorted; INVALID_REGULAR_EXPRESSION if the expression makes no sense.

    `version`: names it, as long as `names` is the same collection.
    """
    expression = expression_of(regex)
    keep(expression)
    return expression.among(names, version)


def is_prepared(regex: str, names: Collection[str], version: int) -> bool:
    """Whether the answer is known already."""
    expression = _kept.get(regex)
    return expression is not None and expression.knows(names, version)


def expression_of(regex: str) -> Expression:
    """The one that is kept, or a new one."""
    return _kept.get(regex) or Expression(regex)


def keep(expression: Expression) -> None:
    """Among the last `EXPRESSIONS_KEPT`."""
    _kept.pop(expression.regex, None)
    _kept[expression.regex] = expression
    if len(_kept) > EXPRESSIONS_KEPT:
        del _kept[next(iter(_kept))]


def match(regex: str, names: Sequence[str]) -> list[bool]:
    """Which of the names match as a whole. INVALID_REGULAR_EXPRESSION where the expression makes no sense."""
    program = _program(regex)
    return [program.fullmatch(name) is not None for name in names]


class Expression:
    """What is known of a regular expression. Whoever matches it in steps holds on to it: `_kept` may lose it."""

    def __init__(self, regex: str) -> None:
        self.regex = regex
        self.makes_sense = False  # as far as is known
        self.refusal: ApiError | None = None
        """What `match` said of the expression. Kept: clients ask again."""
        self.known: dict[str, bool] = {}
        self._learning: Sequence[str] | None = None
        self._learned = 0
        self._found: list[str] = []
        """Of the first so many of those."""
        self._answer: tuple[Collection[str], int, tuple[str, ...]] | None = None

    def knows(self, names: Collection[str], version: int) -> bool:
        answer = self._answer
        return self.refusal is not None or (answer is not None and answer[0] is names and answer[1] == version)

    def learn(self, names: Sequence[str], matched: Sequence[bool]) -> None:
        """What `match` said of these names: then the expression makes sense."""
        self.makes_sense = True
        self.known.update(zip(names, matched, strict=True))

    def unknown(self, names: Sequence[str], limit: int) -> list[str] | None:
        """Up to `limit` names of which nothing is known yet. None: all are known. Empty: ask again, there are more to
        look through.

        Goes on where it stopped as long as `names` is the same object.
        """
        if self.refusal is not None:
            return None
        if self._learning is not names:
            self._learning, self._learned, self._found = names, 0, []
            self._forget_topics_gone(len(names))
        known, at = self.known, self._learned
        end = min(at + KNOWN_AT_A_TIME, len(names))
        while at < end and (is_match := known.get(names[at])) is not None:
            if is_match:
                self._found.append(names[at])
            at += 1
        self._learned = at
        if at == len(names):
            return None
        return [name for name in names[at:end] if name not in known][:limit]

    def settle(self, names: Collection[str], version: int, prepared: Sequence[str]) -> None:
        """Have the answer ready: all of `prepared` are known, which are `names`, sorted."""
        if self._learning is prepared and self._learned == len(prepared):
            self._answer = names, version, tuple(self._found)
            self._learning, self._found = None, []
        elif self.refusal is None:
            self.among(names, version)

    def _forget_topics_gone(self, there_are: int) -> None:
        if len(self.known) > 2 * there_are + 1000:
            self.known.clear()  # most of it is about topics that are gone

    def among(self, names: Collection[str], version: int | None) -> tuple[str, ...]:
        if self.refusal is not None:
            raise ApiError(self.refusal.code, self.refusal.message)
        answer = self._answer
        if answer is not None and answer[0] is names and answer[1] == version:
            return answer[2]
        if not self.makes_sense:
            _program(self.regex)
            self.makes_sense = True
        known = self.known
        self._forget_topics_gone(len(names))
        found: list[str] = []
        for name in names:
            is_match = known.get(name)
            if is_match is None:
                is_match = known[name] = _program(self.regex).fullmatch(name) is not None
            if is_match:
                found.append(name)
        matched = tuple(sorted(found))
        if version is not None:
            self._answer = names, version, matched
        return matched


_kept: dict[str, Expression] = {}


@lru_cache(EXPRESSIONS_KEPT)
def _program(regex: str) -> Any:
    """The compiled form."""
    # Imported on first use: few groups subscribe by expression, every broker starts.
    import re2

    if len(regex.encode()) > MAX_LENGTH:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is longer than 32767 bytes.")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {said}.",
        ) from error
    if compiled.programsize > MAX_PROGRAM:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex is too complex: its compiled form has {compiled.programsize} instructions, "
            f"{MAX_PROGRAM} are allowed.",
        )
    return compiled
