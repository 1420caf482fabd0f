"""A followed partition as one table: whether it may be fetched, and whether its log agrees with the leader's.

    Unknown ------------- NAMED -------> Matching           a fetch in this leader epoch requests it
    Matching ------------ AGREED ------> Matched            the answer has arrived, and the logs agree
    Unknown, Matching,
    Matched ------------- DIVERGES ----> Held               the log is made to agree with the leader's
    Unknown, Matching --- REFUSED -----> Delayed            it is requested again after a pause
    Matched ------------- REFUSED -----> MatchedDelayed     the same; the logs still agree
    Held ---------------- FITTED ------> Unknown            unless it is held for another reason, too
    any ----------------- SESSION_LOST > Unknown            or Delayed, or Held: the agreement ends with the connection
    any ----------------- UNASSIGNED --> Gone               this broker no longer follows that leader

`MOVES` has the state after each input. A pair that is not in it is an `IllegalMove`: a defect, whatever the leader
answers, because the caller first checks with `Followed.counts` that the answer is not outdated.

A partition is held for up to three reasons at a time (`Hold`), and released when the last one ends. It may be delayed
at the same time: the rest of the delay follows the release.

Invariants
- The stable offset may be acknowledged only in Matched and MatchedDelayed: before that, the end of the log may be
  another leader's.
- A partition that is held or delayed is not fetched: the leader would answer at once, again and again.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.model.errors import PenstockError


class State(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum's own hash, of the name, runs in Python every time

    UNKNOWN = "Unknown"
    MATCHING = "Matching"
    MATCHED = "Matched"
    DELAYED = "Delayed"
    MATCHED_DELAYED = "MatchedDelayed"
    HELD = "Held"
    HELD_DELAYED = "HeldDelayed"
    GONE = "Gone"


class Hold(Enum):
    """Why a partition is not fetched until further notice."""

    __hash__ = object.__hash__

    FITTING = "its log is being made to agree with the leader's"
    DAMAGED = "its log is damaged and not repaired yet"
    WITHDRAWN = "its log cannot be used"


class Input(Enum):
    __hash__ = object.__hash__

    # from the metadata
    ASSIGNED = "be followed in another leader epoch"
    ASSIGNED_AGAIN = "be followed in the leader epoch of the last fetch"
    UNASSIGNED = "no longer be followed"
    # from the connection
    SESSION_LOST = "lose its fetch session"
    NAMED = "be named in a fetch"
    FETCH_REFUSED = "have the whole fetch refused"
    # from the answer to a fetch
    RECORDS = "get records, or a new log start"
    NOTHING_NEW = "get an empty answer"
    OUTDATED = "get the answer to an earlier fetch"
    DIVERGES = "be told where the logs diverge"
    OUT_OF_RANGE = "be outside the leader's log"
    BEGINS_INSIDE = "begin inside the leader's first batch"
    METADATA_IS_COMING = "get a fenced or unknown leader epoch as answer"
    REFUSED = "be refused"
    NOT_APPENDED = "fail to append the fetched records"
    AGREED = "agree with the leader's log"
    NOT_AGREED = "have been changed before the answer"
    # from the follower
    NOT_FITTED = "fail to truncate its log to the leader's"
    FITTED = "finish the truncation to the leader's log"
    DAMAGED = "be damaged"
    MENDED = "be repaired, or have to be used as it is"
    WITHDRAWN = "become unusable"
    TAKEN_UP = "become usable"
    THROTTLED = "be throttled"
    DELAY_OVER = "end its delay"


class IllegalMove(PenstockError):
    """A defect: a followed partition got an input that its state does not allow."""


HOLDS: Final[dict[Input, Hold]] = {
    Input.DIVERGES: Hold.FITTING,
    Input.OUT_OF_RANGE: Hold.FITTING,
    Input.BEGINS_INSIDE: Hold.FITTING,
    Input.DAMAGED: Hold.DAMAGED,
    Input.WITHDRAWN: Hold.WITHDRAWN,
}
LETS_GO: Final[dict[Input, Hold]] = {
    Input.FITTED: Hold.FITTING,
    Input.MENDED: Hold.DAMAGED,
    Input.TAKEN_UP: Hold.WITHDRAWN,
}
QUIET: Final = frozenset({Input.NAMED, Input.NOTHING_NEW, Input.AGREED, Input.NOT_AGREED})
"""After any other input the next fetch has to name the partition."""

DELAYED_STATES: Final = frozenset({State.DELAYED, State.MATCHED_DELAYED, State.HELD_DELAYED})
WAITING_STATES: Final = DELAYED_STATES | {State.HELD}

_COLUMNS = (
    State.UNKNOWN,
    State.MATCHING,
    State.MATCHED,
    State.DELAYED,
    State.MATCHED_DELAYED,
    State.HELD,
    State.HELD_DELAYED,
    State.GONE,
)
_UNK, _ING, _MAT, _DEL, _MDE, _HEL, _HDE, _GON = _COLUMNS
# fmt: off
_ROWS: dict[Input, tuple[State | None, ...]] = {
    #                          Unknown Matching Matched Delayed M.Delayed Held H.Delayed Gone
    Input.ASSIGNED:           (_UNK, _UNK, _UNK, _UNK, _UNK, _HEL, _HEL, None),
    Input.ASSIGNED_AGAIN:     (_UNK, _ING, _MAT, _UNK, _MAT, _HEL, _HEL, None),
    Input.UNASSIGNED:         (_GON, _GON, _GON, _GON, _GON, _GON, _GON, None),
    Input.SESSION_LOST:       (_UNK, _UNK, _UNK, _DEL, _DEL, _HEL, _HDE, None),
    Input.NAMED:              (_ING, _ING, _MAT, None, None, None, None, None),
    Input.FETCH_REFUSED:      (_DEL, None, None, _DEL, None, _HDE, _HDE, None),  # the session is lost before
    Input.RECORDS:            (_UNK, _ING, _MAT, None, None, None, None, None),
    Input.NOTHING_NEW:        (_UNK, _ING, _MAT, None, None, None, None, None),
    Input.OUTDATED:           (_UNK, _ING, _MAT, _DEL, _MDE, _HEL, _HDE, None),
    Input.DIVERGES:           (_HEL, _HEL, _HEL, None, None, None, None, None),
    Input.OUT_OF_RANGE:       (_HEL, _HEL, _HEL, None, None, None, None, None),
    Input.BEGINS_INSIDE:      (_HEL, _HEL, _HEL, None, None, None, None, None),
    Input.METADATA_IS_COMING: (_DEL, _DEL, _MDE, None, None, None, None, None),
    Input.REFUSED:            (_DEL, _DEL, _MDE, None, None, None, None, None),
    Input.NOT_APPENDED:       (_DEL, _DEL, _MDE, None, None, None, None, None),
    Input.AGREED:             (None, _MAT, None, None, None, None, None, None),
    Input.NOT_AGREED:         (None, _UNK, None, None, None, None, None, None),
    Input.NOT_FITTED:         (None, None, None, None, None, _HDE, _HDE, _GON),
    Input.FITTED:             (None, None, None, None, None, _UNK, _DEL, _GON),
    Input.DAMAGED:            (_HEL, _HEL, _HEL, _HDE, _HDE, _HEL, _HDE, None),
    Input.MENDED:             (_UNK, _ING, _MAT, _DEL, _MDE, _UNK, _DEL, None),  # it may be held for an earlier leader
    Input.WITHDRAWN:          (_HEL, _HEL, _HEL, _HDE, _HDE, _HEL, _HDE, None),
    Input.TAKEN_UP:           (None, None, None, None, None, _UNK, _DEL, None),
    Input.THROTTLED:          (_DEL, _DEL, _MDE, None, None, _HDE, None, None),
    Input.DELAY_OVER:         (None, None, None, _UNK, _MAT, None, _HEL, None),
}
# fmt: on

MOVES: Final[dict[tuple[State, Input], State]] = {
    (state, met): target
    for met, row in _ROWS.items()
    for state, target in zip(_COLUMNS, row, strict=True)
    if target is not None
}


def moved(state: State, met: Input) -> State:
    try:
        return MOVES[state, met]
    except KeyError:
        raise IllegalMove(f"a followed partition in state {state.value} cannot {met.value}") from None


class Followed:
    """One partition followed from one leader: its state, and the last fetch request for it."""

    __slots__ = ("asked_epoch", "asked_offset", "holds", "state")

    def __init__(self) -> None:
        self.state = State.UNKNOWN
        self.holds: frozenset[Hold] = frozenset()
        self.asked_epoch = -1
        self.asked_offset = -1

    def meet(self, met: Input) -> State:
        """IllegalMove changes nothing."""
        state = self.state
        target = moved(state, met)
        if target is state and not self.holds:
            return state  # the usual case: an expected answer
        if (begun := HOLDS.get(met)) is not None:
            self.holds |= {begun}
        elif (ended := LETS_GO.get(met)) is not None:
            self.holds -= {ended}
            if self.holds:
                return state  # still held
        elif target is State.GONE:
            self.holds = frozenset()
        self.state = target
        return target

    def assigned(self, leader_epoch: int) -> Input:
        """The input for a leader of this epoch: a new epoch, or the one of the last fetch."""
        return Input.ASSIGNED_AGAIN if leader_epoch == self.asked_epoch else Input.ASSIGNED

    def ask(self, leader_epoch: int, log_end_offset: int) -> None:
        """A fetch asks the leader of this epoch for the records from `log_end_offset` on."""
        self.asked_epoch, self.asked_offset = leader_epoch, log_end_offset

    def counts(self, leader_epoch: int, log_end_offset: int) -> bool:
        """Whether an answer that arrives now belongs to the current state of the partition."""
        return (
            self.asked_offset == log_end_offset
            and self.asked_epoch == leader_epoch
            and self.state not in WAITING_STATES
        )

    @property
    def is_matched(self) -> bool:
        return self.state is State.MATCHED or self.state is State.MATCHED_DELAYED

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING_STATES
