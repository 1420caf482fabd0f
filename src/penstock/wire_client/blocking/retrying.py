"""Retries: the pauses between them, and the error when the time is up.

Must not know: what is retried. Everything that is retried here must be harmless when it is done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire_client.requests.errors import (
    NoSuchTopic,
    RequestTimedOut,
    WireClientError,
)
from penstock.wire_client.requests.retriable import LOST, Again, may

T = TypeVar("T")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0


class Pauses:
    """Pauses of 50 ms, 100 ms, ... 1 s."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def sleep(self, deadline: float) -> None:
        time.sleep(max(0.0, min(self._next_s, deadline - time.monotonic())))
        self._next_s = min(self._next_s * 2, LAST_PAUSE_S)


def until_done(ask: Callable[[float], T], timeout_s: float, when_lost: Callable[[WireClientError], float]) -> T:
    """Calls `ask` with its deadline, and again after a lost broker or a retriable error.

    `when_lost` returns the share of the time to retry after a loss, from 0 to 1. If the controller is missing, that
    explains a later lack of answers, so that error is raised in the end.
    """
    begin = time.monotonic()
    deadline = begin + timeout_s
    pauses = Pauses()
    no_controller: ApiError | None = None
    while True:
        failure: WireClientError | ApiError
        share = 1.0
        try:
            return ask(deadline)
        except LOST as error:
            share = when_lost(error)
            failure = no_controller or error
        except NoSuchTopic:
            raise
        except ApiError as error:
            if not may(Again.ASK, error.code):
                raise
            failure = error
            no_controller = error if error.code is ErrorCode.NOT_CONTROLLER else None
        waited_s = time.monotonic() - begin
        if waited_s >= timeout_s * share:
            said = (failure.unanswered if isinstance(failure, RequestTimedOut) else "") or str(failure)
            sentence = f"{said.rstrip('.')} (tried for {waited_s:.1f} s)"
            raise ApiError(failure.code, sentence) if isinstance(failure, ApiError) else type(failure)(sentence)
        pauses.sleep(begin + timeout_s * share)
