"""Subscription by regular expression, in RE2's syntax as in Kafka.

The expression comes from a client and runs in the broker, so its cost must be linear in the
length of a topic's name: RE2 guarantees that, `re` does not. The size of the compiled form
bounds the cost per name. Results are kept per name, so a new topic costs each expression one
match, however many groups and topics there are.

Even so, a thousand names may take a second, and RE2 holds the interpreter while it matches one.
The host of the groups therefore runs `match` in another process first and passes the result to
`Expression.learn`. Then the answer for these topics is ready when a group needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

from penstock.model.errors import ApiError, ErrorCode

MAX_LENGTH: Final = 32767
"""Maximum length of an expression, in bytes. A record key stores it as a string with a 16-bit length."""
MAX_PROGRAM: Final = 2000
"""Maximum instructions of the compiled form. Most expressions have fewer than a hundred; `\\p{L}+` has 1,200."""
MAX_PER_GROUP: Final = 100
EXPRESSIONS_KEPT: Final = 256
KNOWN_AT_A_TIME: Final = 500
"""Number of names looked up directly on the event loop."""


def matching_topics(regex: str, names: Collection[str], version: int | None = None) -> tuple[str, ...]:
    """Return the names that match entirely, sorted; INVALID_REGULAR_EXPRESSION if the expression is invalid.

    `version` identifies the content of `names`, as long as `names` is the same collection.
    """
    expression = expression_of(regex)
    keep(expression)
    return expression.among(names, version)


def is_prepared(regex: str, names: Collection[str], version: int) -> bool:
    """Whether the answer is already known."""
    expression = _kept.get(regex)
    return expression is not None and expression.knows(names, version)


def expression_of(regex: str) -> Expression:
    """Return the kept expression or a new one."""
    return _kept.get(regex) or Expression(regex)


def keep(expression: Expression) -> None:
    """Keep it among the last `EXPRESSIONS_KEPT`."""
    _kept.pop(expression.regex, None)
    _kept[expression.regex] = expression
    if len(_kept) > EXPRESSIONS_KEPT:
        del _kept[next(iter(_kept))]


def match(regex: str, names: Sequence[str]) -> list[bool]:
    """Return which names match entirely. INVALID_REGULAR_EXPRESSION if the expression is invalid."""
    program = _program(regex)
    return [program.fullmatch(name) is not None for name in names]


class Expression:
    """Known results of a regular expression. Callers that match in steps hold it, as `_kept` may drop it."""

    def __init__(self, regex: str) -> None:
        self.regex = regex
        self.makes_sense = False  # as far as known
        self.refusal: ApiError | None = None
        """The error from `match`, kept because clients retry."""
        self.known: dict[str, bool] = {}
        self._learning: Sequence[str] | None = None
        self._learned = 0
        self._found: list[str] = []
        """The matching names among those learned so far."""
        self._answer: tuple[Collection[str], int, tuple[str, ...]] | None = None

    def knows(self, names: Collection[str], version: int) -> bool:
        answer = self._answer
        return self.refusal is not None or (answer is not None and answer[0] is names and answer[1] == version)

    def learn(self, names: Sequence[str], matched: Sequence[bool]) -> None:
        """Store the result of `match` for these names; so the expression is valid."""
        self.makes_sense = True
        self.known.update(zip(names, matched, strict=True))

    def unknown(self, names: Sequence[str], limit: int) -> list[str] | None:
        """Return up to `limit` names without a known result. None: all are known. Empty: call again, more names
        remain.

        Continues where it stopped as long as `names` is the same object.
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
        """Prepare the answer: all of `prepared` are known, which is `names`, sorted."""
        if self._learning is prepared and self._learned == len(prepared):
            self._answer = names, version, tuple(self._found)
            self._learning, self._found = None, []
        elif self.refusal is None:
            self.among(names, version)

    def _forget_topics_gone(self, there_are: int) -> None:
        if len(self.known) > 2 * there_are + 1000:
            self.known.clear()  # most entries are of deleted topics

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
    """Return the compiled form."""
    # Imported on first use: few groups subscribe by regular expression, and every broker must start fast.
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
