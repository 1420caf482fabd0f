"""The lifecycle of a shard on the broker that leads its partition, as one table.

    Initial --------- START ------> Loading    the log is read into memory, and all of it must be committed
    Loading --------- LOADED -----> Active     requests are decided
    Loading --------- NOT_LOADED -> Failed     the log cannot be read
    Active ---------- RELOAD -----> Loading    memory may have changes that the log lacks
    Active ---------- LOG_LOST ---> Failed     the log went offline or was deleted
    Failed ---------- START ------> Loading    another try
    any ------------- STOP -------> Closed     leadership has moved, or begins again here with a new shard

The states are those of Kafka's CoordinatorRuntime. `MOVES` has the state after each input; a pair that is not in it is
an `IllegalMove`: a defect. Requests are decided in Active and refused in any other state, in Initial and Loading always
with COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.model.errors import PenstockError


class State(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum's own hash, of the name, runs in Python every time

    INITIAL = "Initial"
    LOADING = "Loading"
    ACTIVE = "Active"
    FAILED = "Failed"
    CLOSED = "Closed"


class Input(Enum):
    __hash__ = object.__hash__

    START = "start to load"
    LOADED = "finish loading its log"
    NOT_LOADED = "fail to load its log"
    RELOAD = "be reloaded"
    LOG_LOST = "lose its log"
    STOP = "stop"


class IllegalMove(PenstockError):
    """A defect: a shard got an input that its state does not allow."""


MOVES: Final[dict[tuple[State, Input], State]] = {
    (State.INITIAL, Input.START): State.LOADING,
    (State.FAILED, Input.START): State.LOADING,
    (State.LOADING, Input.LOADED): State.ACTIVE,
    (State.LOADING, Input.NOT_LOADED): State.FAILED,
    (State.ACTIVE, Input.NOT_LOADED): State.FAILED,  # the first decision after the load failed
    (State.ACTIVE, Input.RELOAD): State.LOADING,
    (State.LOADING, Input.RELOAD): State.LOADING,  # the reload itself failed at once
    (State.ACTIVE, Input.LOG_LOST): State.FAILED,
    (State.INITIAL, Input.STOP): State.CLOSED,
    (State.LOADING, Input.STOP): State.CLOSED,
    (State.ACTIVE, Input.STOP): State.CLOSED,
    (State.FAILED, Input.STOP): State.CLOSED,
    (State.CLOSED, Input.STOP): State.CLOSED,  # this node stops, and then the topic is deleted
}

ABOUT_TO_SERVE: Final = frozenset({State.INITIAL, State.LOADING, State.ACTIVE})


def moved(state: State, met: Input) -> State:
    try:
        return MOVES[state, met]
    except KeyError:
        raise IllegalMove(f"a shard in state {state.value} cannot {met.value}") from None
