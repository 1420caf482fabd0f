"""Waiters of a Raft server: proposals wait for their commit, readers for an index, others for the end of leadership.

A proposal is known by its token until the core gives it a place in the log, and by that place afterwards. It has
succeeded when an entry of that index and term is committed. Must not know: messages, disks, roles.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TypeVar

from penstock.core.raft.exchange import Accepted, Refusal, Refused
from penstock.core.raft.messages import Entry
from penstock.model.errors import ApiError, ErrorCode

T = TypeVar("T")

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_CODES = {
    Refusal.NOT_LEADER: ErrorCode.NOT_CONTROLLER,
    Refusal.TRANSFERRING: ErrorCode.NOT_CONTROLLER,
    Refusal.TERM_NOT_COMMITTED: ErrorCode.NOT_CONTROLLER,
    Refusal.TOO_MUCH_UNCOMMITTED: ErrorCode.REQUEST_TIMED_OUT,
    Refusal.CHANGE_IN_PROGRESS: ErrorCode.REQUEST_TIMED_OUT,
    Refusal.NOT_CAUGHT_UP: ErrorCode.REQUEST_TIMED_OUT,
    Refusal.NOT_A_VOTER: ErrorCode.VOTER_NOT_FOUND,
    Refusal.NOT_AN_OBSERVER: ErrorCode.VOTER_NOT_FOUND,
    Refusal.ALREADY_A_MEMBER: ErrorCode.DUPLICATE_VOTER,
    Refusal.LAST_VOTER: ErrorCode.INVALID_REQUEST,
}


class ProposalRefused(ApiError):
    """The core refused the proposal. Nothing has changed."""

    def __init__(self, refused: Refused) -> None:
        where = f"; node {refused.leader} leads" if refused.refusal is Refusal.NOT_LEADER and refused.leader else ""
        super().__init__(_CODES[refused.refusal], refused.refusal.value + where)
        self.refusal = refused.refusal
        self.leader = refused.leader


class ProposalTimes:
    """The times from a proposal to its application here. `counts` has one entry more than BOUNDS_S, for longer
    times.
    """

    __slots__ = ("counts", "failed", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.failed = 0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class Proposals:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tokens = 0
        self._by_token: dict[int, asyncio.Future[int]] = {}
        self._by_index: dict[int, tuple[int, asyncio.Future[int]]] = {}
        self._readers: dict[asyncio.Future[bool], int] = {}
        self._successors: dict[asyncio.Future[bool], None] = {}

    def begin(self) -> tuple[int, asyncio.Future[int]]:
        self._tokens += 1
        future = self._by_token[self._tokens] = self._loop.create_future()
        return self._tokens, future

    async def when_applied(self, index: int, timeout_s: float) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self._readers[future] = index
        try:
            return await self._within(future, timeout_s)
        finally:
            self._readers.pop(future, None)

    async def when_not_leading(self, timeout_s: float) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self._successors[future] = None
        try:
            return await self._within(future, timeout_s)
        finally:
            self._successors.pop(future, None)

    async def _within(self, future: asyncio.Future[bool], timeout_s: float) -> bool:
        timer = self._loop.call_later(timeout_s, _resolve, future, False)
        try:
            return await future
        finally:
            timer.cancel()

    # # ---- outcomes of the core

    def accepted(self, accepted: Accepted) -> None:
        future = self._by_token.pop(accepted.token, None)
        if future is None:
            return  # failed already: the disk was full at the time of the write
        if accepted.index:
            self._by_index[accepted.index] = accepted.term, future
        else:
            _resolve(future, 0)

    def refused(self, refused: Refused) -> None:
        future = self._by_token.pop(refused.token, None)
        if future is not None:
            _fail(future, ProposalRefused(refused))

    def committed(self, entry: Entry) -> None:
        waiting = self._by_index.pop(entry.index, None)
        if waiting is not None:
            term, future = waiting
            if term == entry.term:
                _resolve(future, entry.index)
            else:
                _fail(future, ApiError(ErrorCode.NOT_CONTROLLER, "another leader replaced it"))

    def applied_to(self, index: int) -> None:
        for future, wanted in list(self._readers.items()):
            if wanted <= index:
                _resolve(future, True)

    def leadership_lost(self, error: Exception) -> None:
        """Proposals in the log may still be committed by another leader: their outcome is not known here."""
        waiting, self._by_index = self._by_index, {}
        for _, future in waiting.values():
            _fail(future, error)
        for successor in list(self._successors):
            _resolve(successor, True)

    def fail_all(self, error: Exception) -> None:
        self.leadership_lost(error)
        waiting, self._by_token = self._by_token, {}
        for future in waiting.values():
            _fail(future, error)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[int], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
