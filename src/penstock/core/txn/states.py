"""The lifecycle of a transactional id as two tables.

    Empty, Complete* ---- INIT -----> Empty               a producer begins, with an epoch of its own
    Empty, Complete* ---- ADD ------> Ongoing             the first partition of a transaction
    Ongoing ------------- ADD ------> Ongoing             further partitions
    Ongoing ------------- COMMIT ---> PrepareCommit       decided; markers are on their way
    Ongoing ------------- ABORT ----> PrepareAbort        decided; markers are on their way
    Ongoing ------------- FENCE ----> PrepareEpochFence   another producer begins, or the time is over
    PrepareEpochFence --- ABORT ----> PrepareAbort        in the same step: this state is never stored
    Empty, Complete* ---- ABORT ----> PrepareAbort        of a transaction without partitions (version 2)
    Prepare* ------------ COMPLETE -> Complete*           all markers are written
    Empty, Complete* ---- EXPIRE ---> Dead                forgotten

`MOVES` has the state after each move, `ANSWERS` the answer to a request in each state once its producer id and epoch
are valid. A pair that is in neither table is an `IllegalMove`: a defect, never a reply.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from penstock.model.errors import ErrorCode, PenstockError


class State(IntEnum):
    """With Kafka's numbers, as stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's spelling in ListTransactions: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class Move(Enum):
    INIT = "init"
    ADD = "add partitions"
    COMMIT = "commit"
    ABORT = "abort"
    FENCE = "fence"
    COMPLETE = "complete"
    EXPIRE = "expire"


class Request(Enum):
    INIT = "a producer begins"
    ADD = "partitions are added"
    COMMIT_V1 = "commit of a client that keeps its epoch"
    ABORT_V1 = "abort of a client that keeps its epoch"
    COMMIT = "commit of a client whose epoch rises at each end"
    ABORT = "abort of a client whose epoch rises at each end"
    COMMIT_AGAIN = "the same commit again: its epoch has risen already"
    ABORT_AGAIN = "the same abort again: its epoch has risen already"


class Act(Enum):
    """The action for a request that is not refused."""

    INIT = "raise the epoch"
    FENCE = "abort the open transaction, then let the client try again"
    ADD = "add"
    COMMIT = "decide to commit"
    ABORT = "decide to abort"
    ABORT_EMPTY = "abort a transaction that has no partitions: only the epoch rises"
    CONFIRM = "say once more that it is done"


class IllegalMove(PenstockError):
    """A defect: a transactional id got a move or request that its state does not allow."""


_IDLE: Final = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

MOVES: Final[dict[tuple[State, Move], State]] = {
    **{(state, Move.INIT): State.EMPTY for state in _IDLE},
    **{(state, Move.ADD): State.ONGOING for state in (*_IDLE, State.ONGOING)},
    **{(state, Move.ABORT): State.PREPARE_ABORT for state in (*_IDLE, State.ONGOING, State.PREPARE_EPOCH_FENCE)},
    **{(state, Move.EXPIRE): State.DEAD for state in _IDLE},
    (State.ONGOING, Move.COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, Move.FENCE): State.PREPARE_EPOCH_FENCE,
    (State.PREPARE_COMMIT, Move.COMPLETE): State.COMPLETE_COMMIT,
    (State.PREPARE_ABORT, Move.COMPLETE): State.COMPLETE_ABORT,
}

_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_WRONG = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED

_COLUMNS = (
    State.EMPTY,
    State.ONGOING,
    State.PREPARE_COMMIT,
    State.PREPARE_ABORT,
    State.COMPLETE_COMMIT,
    State.COMPLETE_ABORT,
)
# Dead and PrepareEpochFence exist only within one decision: no request meets them.
_ROWS: dict[Request, tuple[Act | ErrorCode, ...]] = {
    Request.INIT: (Act.INIT, Act.FENCE, _BUSY, _BUSY, Act.INIT, Act.INIT),
    Request.ADD: (Act.ADD, Act.ADD, _BUSY, _BUSY, Act.ADD, Act.ADD),
    Request.COMMIT_V1: (_WRONG, Act.COMMIT, _BUSY, _WRONG, Act.CONFIRM, _WRONG),
    Request.ABORT_V1: (_WRONG, Act.ABORT, _WRONG, _BUSY, _WRONG, Act.CONFIRM),
    # While a transaction ends, these are about the next one, which the client has begun: its epoch is the next one.
    Request.COMMIT: (_WRONG, Act.COMMIT, _BUSY, _BUSY, _WRONG, _WRONG),
    Request.ABORT: (Act.ABORT_EMPTY, Act.ABORT, _BUSY, _BUSY, Act.ABORT_EMPTY, Act.ABORT_EMPTY),
    Request.COMMIT_AGAIN: (_FENCED, _FENCED, _BUSY, _WRONG, Act.CONFIRM, _WRONG),
    Request.ABORT_AGAIN: (_FENCED, _FENCED, _WRONG, _BUSY, _WRONG, Act.CONFIRM),
}
# fmt: on

ANSWERS: Final[dict[tuple[State, Request], Act | ErrorCode]] = {
    (state, request): row[column] for request, row in _ROWS.items() for column, state in enumerate(_COLUMNS)
}


def moved(state: State, move: Move) -> State:
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalMove(f"a transactional id in state {state.title} cannot {move.value}") from None


def answer(state: State, request: Request) -> Act | ErrorCode:
    try:
        return ANSWERS[state, request]
    except KeyError:
        raise IllegalMove(f"a transactional id in state {state.title} has no answer: {request.value}") from None
