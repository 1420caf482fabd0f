"""The states of a classic group as two tables.

    Empty ----------------- PREPARE ---> PreparingRebalance   members join, replies are parked
    PreparingRebalance ---- FORM ------> CompletingRebalance  a generation; the leader assigns
    CompletingRebalance --- STORE -----> Stable               the assignment is in the log
    Stable, Completing ---- PREPARE ---> PreparingRebalance   a member came, left or changed
    PreparingRebalance ---- STORE_EMPTY > Empty               all members are gone
    Empty ----------------- DELETE ----> Dead                 deleted

`MOVES` gives the next state of a move. `ANSWERS` gives the action for a request in each state,
after its sender was checked. A pair missing in the tables is an `IllegalMove`: a defect, never a reply.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.model.errors import ErrorCode, PenstockError


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Move(Enum):
    PREPARE = "prepare"
    FORM = "form"
    STORE = "store"
    STORE_EMPTY = "store empty"
    DELETE = "delete"


class Request(Enum):
    JOIN_NEW = "join of a new member"
    REJOIN_SAME = "join of a follower without changes"
    REJOIN_CHANGED = "join of a member with other protocols, or of the leader of a stable group"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"
    COMMIT = "commit of a member"
    COMMIT_SIMPLE = "commit of a consumer that is not a member"
    MEMBER_GONE = "a member left or timed out"
    DELETE = "delete the group"


class Act(Enum):
    """Action for a request that is not refused."""

    ANSWER = "answer now"
    PARK = "park until the phase ends"
    REBALANCE = "begin a rebalance, park"
    CHECK = "check whether the join phase is complete"
    NOTHING = "nothing"


class IllegalMove(PenstockError):
    """A defect: the group's state does not allow the move."""


MOVES: Final[dict[tuple[State, Move], State]] = {
    (State.EMPTY, Move.PREPARE): State.PREPARING,
    (State.COMPLETING, Move.PREPARE): State.PREPARING,
    (State.STABLE, Move.PREPARE): State.PREPARING,
    (State.PREPARING, Move.FORM): State.COMPLETING,
    (State.COMPLETING, Move.STORE): State.STABLE,
    (State.STABLE, Move.STORE): State.STABLE,  # a static member returned with a new id
    (State.EMPTY, Move.STORE): State.STABLE,  # while the log is loaded
    (State.PREPARING, Move.STORE_EMPTY): State.EMPTY,
    (State.STABLE, Move.STORE_EMPTY): State.EMPTY,  # while the log is loaded
    (State.EMPTY, Move.STORE_EMPTY): State.EMPTY,
    (State.EMPTY, Move.DELETE): State.DEAD,
    (State.STABLE, Move.DELETE): State.DEAD,  # while the log is loaded: compaction kept only the tombstone
    # During a rebalance: a consumer with the new protocol joined, and the group becomes a consumer group.
    (State.PREPARING, Move.DELETE): State.DEAD,
    (State.COMPLETING, Move.DELETE): State.DEAD,
}

_UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
_REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
_GONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
_NON_EMPTY = ErrorCode.NON_EMPTY_GROUP

_COLUMNS = (State.EMPTY, State.PREPARING, State.COMPLETING, State.STABLE, State.DEAD)
# fmt: off
_ROWS: dict[Request, tuple[Act | ErrorCode, ...]] = {
    Request.JOIN_NEW:       (Act.REBALANCE, Act.PARK,     Act.REBALANCE, Act.REBALANCE, _GONE),
    Request.REJOIN_SAME:    (_UNKNOWN,      Act.PARK,     Act.ANSWER,    Act.ANSWER,    _GONE),
    Request.REJOIN_CHANGED: (_UNKNOWN,      Act.PARK,     Act.REBALANCE, Act.REBALANCE, _GONE),
    Request.SYNC:           (_UNKNOWN,      _REBALANCING, Act.PARK,      Act.ANSWER,    _GONE),
    Request.HEARTBEAT:      (_UNKNOWN,      _REBALANCING, Act.ANSWER,    Act.ANSWER,    _GONE),
    Request.COMMIT:         (_UNKNOWN,      Act.ANSWER,   _REBALANCING,  Act.ANSWER,    _GONE),
    Request.COMMIT_SIMPLE:  (Act.ANSWER,    _UNKNOWN,     _UNKNOWN,      _UNKNOWN,      _GONE),
    Request.MEMBER_GONE:    (Act.NOTHING,   Act.CHECK,    Act.REBALANCE, Act.REBALANCE, Act.NOTHING),
    Request.DELETE:         (Act.ANSWER,    _NON_EMPTY,   _NON_EMPTY,    _NON_EMPTY,    ErrorCode.GROUP_ID_NOT_FOUND),
}
# fmt: on

ANSWERS: Final[dict[tuple[State, Request], Act | ErrorCode]] = {
    (state, request): row[column] for request, row in _ROWS.items() for column, state in enumerate(_COLUMNS)
}


def moved(state: State, move: Move) -> State:
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalMove(f"a group in state {state.value} cannot {move.value}") from None
