"""The roles of a replica on a broker, and the reaction of each role to every event, as one table.

    New ------------- CUT_BEGINS --> Held           files of a former partition are still in its way
    Held ------------ CUT_ENDS ----> New
    any but Deleted - FOLLOW ------> Follower       another broker leads, or nobody
    Follower -------- CUT_BEGINS --> BeingCut       its log diverges from the leader's log
    BeingCut -------- CUT_ENDS ----> Follower
    any but Deleted - LEAD --------> Leader         this broker leads, in a new leader epoch
    any but Deleted - LEAD_ALONE --> SoleLeader     the same, with the only replica
    Leader ---------- GO_ON_ALONE -> SoleLeader     a reassignment took the other replicas away
    SoleLeader ------ GO_ON -------> Leader         a reassignment added replicas
    any ------------- DELETE ------> Deleted        the topic is gone, or this replica of it

While a worker has the log (Held, BeingCut) the role does not change: metadata waits until the cut has ended. Only a
deletion does not wait.

An offline log is not a role. A leader with such a log stays leader until the controller elects another one, and the log
itself refuses every use.

`TRANSITIONS` has the next role and the act. A missing pair is an `IllegalTransition`: a defect. A leader's log is never
cut, and a deleted partition accepts only the end of a cut and events that it ignores or refuses. Must not know: logs,
disks, clocks.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from penstock.core.metadata.image import PartitionState
from penstock.model.errors import PenstockError


class Role(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum's own hash, of the name, runs in Python every time

    NEW = "new replica"
    HELD = "new replica that is held back"
    FOLLOWER = "follower"
    BEING_CUT = "follower whose log is being cut"
    SOLE_LEADER = "leader without followers"
    LEADER = "leader with followers"
    DELETED = "deleted replica"


class Input(Enum):
    """Every event of a replica: first those of the metadata, then those of this broker."""

    __hash__ = object.__hash__

    OUTDATED = "metadata older than the known metadata"
    FOLLOW = "another broker leads, or nobody"
    LEAD = "this broker leads several replicas in a new leader epoch"
    LEAD_ALONE = "this broker leads the only replica in a new leader epoch"
    GO_ON = "this broker leads several replicas in the known leader epoch"
    GO_ON_ALONE = "this broker leads the only replica in the known leader epoch"
    CUT_BEGINS = "a cut of its log begins"
    CUT_ENDS = "the cut of its log ends"
    LOG_OFFLINE = "its log went offline"
    LOG_REOPENED = "its log was opened again"
    LEASE_OVER = "the lease of this broker is over"
    DELETE = "it is deleted"


class Act(Enum):
    __hash__ = object.__hash__

    IGNORE = "nothing"
    PUT_OFF = "remember it until the cut has ended"
    FOLLOW = "let parked fetches look again"
    RESIGN = "fail all waiters: this broker no longer leads"
    TAKE_OVER = "begin a leader epoch: the followers' positions are unknown"
    GO_ON_LEADING = "take over the replicas and in-sync replicas"
    HAND_OVER = "the log is with a worker from now on"
    REFUSE = "refuse: a worker has the log, or it is closed"
    TAKE_BACK = "use the log again, and apply what was postponed"
    FAIL = "fail all waiters with a storage error, and withdraw"
    USE = "use the log that was opened"
    LEAD_WITH = "use the log that was opened, and count its records"
    FAIL_APPENDS = "fail waiting producers: this broker may no longer lead"
    FORGET = "fail all waiters: the replica is gone"


class IllegalTransition(PenstockError):
    """A defect: a replica got an event that its role rules out."""


class Transition(NamedTuple):
    role: Role
    """The role from now on."""
    act: Act


LEADING: Final = frozenset({Role.SOLE_LEADER, Role.LEADER})

_A = Act
_NEW, _HELD, _FOLLOWER, _BEING_CUT = Role.NEW, Role.HELD, Role.FOLLOWER, Role.BEING_CUT
_SOLE, _LEADER, _DELETED = Role.SOLE_LEADER, Role.LEADER, Role.DELETED
_STAY: Final = None  # keeps its role

_COLUMNS = (_NEW, _HELD, _FOLLOWER, _BEING_CUT, _SOLE, _LEADER, _DELETED)
_Cell = tuple[Role | None, Act] | None
_IGNORE: _Cell = (_STAY, _A.IGNORE)
_PUT_OFF: _Cell = (_STAY, _A.PUT_OFF)
_REFUSE: _Cell = (_STAY, _A.REFUSE)
_FAIL: _Cell = (_STAY, _A.FAIL)
_FOLLOW: _Cell = (_FOLLOWER, _A.FOLLOW)
_RESIGN: _Cell = (_FOLLOWER, _A.RESIGN)
_LEAD: _Cell = (_LEADER, _A.TAKE_OVER)
_LEAD_ALONE: _Cell = (_SOLE, _A.TAKE_OVER)
_GO_ON: _Cell = (_LEADER, _A.GO_ON_LEADING)
_ALONE: _Cell = (_SOLE, _A.GO_ON_LEADING)
_HOLD: _Cell = (_HELD, _A.HAND_OVER)
_CUT: _Cell = (_BEING_CUT, _A.HAND_OVER)
_USE: _Cell = (_STAY, _A.USE)
_COUNT: _Cell = (_STAY, _A.LEAD_WITH)
_UNHOLD: _Cell = (_NEW, _A.TAKE_BACK)
_BACK: _Cell = (_FOLLOWER, _A.TAKE_BACK)
_LEASE: _Cell = (_STAY, _A.FAIL_APPENDS)
_FORGET: _Cell = (_DELETED, _A.FORGET)
# fmt: off
_ROWS: dict[Input, tuple[_Cell, ...]] = {
    #                    new          held      follower     being cut  sole leader  leader       deleted
    Input.OUTDATED:     (_IGNORE,     _PUT_OFF, _IGNORE,     _PUT_OFF,  _IGNORE,     _IGNORE,     None),
    Input.FOLLOW:       (_FOLLOW,     _PUT_OFF, _FOLLOW,     _PUT_OFF,  _RESIGN,     _RESIGN,     None),
    Input.LEAD:         (_LEAD,       _PUT_OFF, _LEAD,       _PUT_OFF,  _LEAD,       _LEAD,       None),
    Input.LEAD_ALONE:   (_LEAD_ALONE, _PUT_OFF, _LEAD_ALONE, _PUT_OFF,  _LEAD_ALONE, _LEAD_ALONE, None),
    Input.GO_ON:        (_LEAD,       _PUT_OFF, _LEAD,       _PUT_OFF,  _GO_ON,      _GO_ON,      None),
    Input.GO_ON_ALONE:  (_LEAD_ALONE, _PUT_OFF, _LEAD_ALONE, _PUT_OFF,  _ALONE,      _ALONE,      None),
    Input.CUT_BEGINS:   (_HOLD,       _REFUSE,  _CUT,        _REFUSE,   None,        None,        _REFUSE),
    Input.CUT_ENDS:     (None,        _UNHOLD,  None,        _BACK,     None,        None,        _IGNORE),
    Input.LOG_OFFLINE:  (_FAIL,       _FAIL,    _FAIL,       _FAIL,     _FAIL,       _FAIL,       _IGNORE),
    Input.LOG_REOPENED: (_USE,        None,     _USE,        None,      _COUNT,      _COUNT,      None),
    Input.LEASE_OVER:   (_IGNORE,     _IGNORE,  _IGNORE,     _IGNORE,   _IGNORE,     _LEASE,      _IGNORE),
    Input.DELETE:       (_FORGET,     _FORGET,  _FORGET,     _FORGET,   _FORGET,     _FORGET,     None),
}
# fmt: on

TRANSITIONS: Final[dict[tuple[Role, Input], Transition]] = {
    (role, given): Transition(cell[0] or role, cell[1])
    for given, row in _ROWS.items()
    for role, cell in zip(_COLUMNS, row, strict=True)
    if cell is not None
}


def transition_of(role: Role, given: Input) -> Transition:
    try:
        return TRANSITIONS[role, given]
    except KeyError:
        raise IllegalTransition(f"a {role.value} cannot handle this event: {given.value}") from None


def heard(known: PartitionState, told: PartitionState, node_id: int) -> Input:
    """The event for new metadata `told` on broker `node_id`, whose current metadata is `known`."""
    if told.partition_epoch < known.partition_epoch or told.leader_epoch < known.leader_epoch:
        return Input.OUTDATED
    if told.leader != node_id:
        return Input.FOLLOW
    is_alone = len(told.replicas) <= 1
    if told.leader_epoch > known.leader_epoch:
        return Input.LEAD_ALONE if is_alone else Input.LEAD
    return Input.GO_ON_ALONE if is_alone else Input.GO_ON
