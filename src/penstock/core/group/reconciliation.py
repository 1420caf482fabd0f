"""The steps of one member from its current assignment to its target.

A partition moves in three steps and never has two owners:

1. its owner is asked to revoke it (UNREVOKED_PARTITIONS) and keeps its epoch until it confirms;
2. the owner moves to the epoch of the target; the partition is free;
3. the next owner, which waited (UNRELEASED_PARTITIONS), gets it with its next heartbeat.

    state                   fact                                     next state
    STABLE                  has the target's epoch                   unchanged (without unsubscribed partitions)
    STABLE                  has an older epoch                       next
    UNREVOKED_PARTITIONS    still owns partitions to revoke          unchanged (more to revoke if unsubscribed)
    UNREVOKED_PARTITIONS    does not                                 next
    UNRELEASED_PARTITIONS   any                                      next
    UNKNOWN                 owns nothing                             next
    UNKNOWN                 may own partitions                       FENCED_MEMBER_EPOCH

    next: UNREVOKED_PARTITIONS if there are partitions to revoke, else UNRELEASED_PARTITIONS if another member
    owns part of the target, else STABLE. The last two have the epoch of the target.

Pure: takes the member's state and facts, returns the member's new state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.core.group.assignors import EMPTY, Assignment
from penstock.core.group.consumer_records import MemberAssignment, MemberState, epochs_of
from penstock.model.errors import ApiError, ErrorCode


class Facts(NamedTuple):
    target_epoch: int
    target: Assignment
    subscribed: frozenset[bytes]  # ids of the subscribed topics
    owned: Assignment | None  # partitions the member reports; None if not reported
    is_taken: Callable[[bytes, int], bool]  # by another member
    subscription_changed: bool = False


def reconcile(member: MemberAssignment, facts: Facts) -> MemberAssignment:
    """Return the same object if nothing changes."""
    match member.state:
        case MemberState.STABLE if member.epoch == facts.target_epoch:
            return _drop_unsubscribed(member, facts) if facts.subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS if _owns_any(facts.owned, member.pending_revocation):
            return _drop_unsubscribed(member, facts) if facts.subscription_changed else member
        case MemberState.UNKNOWN:
            if facts.owned is None or facts.owned:
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
    return _next(member, facts)


def _next(member: MemberAssignment, facts: Facts) -> MemberAssignment:
    keep: dict[bytes, frozenset[int]] = {}
    revoke: dict[bytes, frozenset[int]] = {}
    free: dict[bytes, frozenset[int]] = {}
    is_waiting = False
    for topic in sorted({*facts.target, *member.assigned}):
        target = facts.target.get(topic, frozenset()) if topic in facts.subscribed else frozenset()
        assigned = member.assigned.get(topic, frozenset())
        if kept := assigned & target:
            keep[topic] = kept
        if lost := assigned - target:
            revoke[topic] = lost
        wanted = target - assigned
        available = frozenset(index for index in wanted if not facts.is_taken(topic, index))
        is_waiting |= len(available) < len(wanted)
        if available:
            free[topic] = available
    if revoke and _owns_any(facts.owned, revoke):
        return member._replace(
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=keep or EMPTY,
            pending_revocation=revoke,
            since=epochs_of(member.since, member.epoch, keep, revoke),
        )
    since = epochs_of(member.since, member.epoch, keep)
    for topic, partitions in free.items():
        keep[topic] = keep.get(topic, frozenset()) | partitions
    moved = MemberAssignment(
        epoch=facts.target_epoch,
        previous_epoch=member.epoch if member.epoch != facts.target_epoch else member.previous_epoch,
        state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
        assigned=keep or EMPTY,
        since=epochs_of(since, facts.target_epoch, keep),
    )
    return member if moved == member else moved


def _drop_unsubscribed(member: MemberAssignment, facts: Facts) -> MemberAssignment:
    """Revoke unsubscribed partitions at once, without waiting for a new target."""
    dropped = {topic: held for topic, held in member.assigned.items() if topic not in facts.subscribed}
    if not dropped:
        return member
    assigned = {topic: held for topic, held in member.assigned.items() if topic not in dropped}
    pending = dict(member.pending_revocation)
    for topic, held in dropped.items():
        pending[topic] = pending.get(topic, frozenset()) | held
    if _owns_any(facts.owned, pending):
        member = member._replace(state=MemberState.UNREVOKED_PARTITIONS, pending_revocation=pending)
    return _trimmed(member._replace(assigned=assigned))


def _trimmed(member: MemberAssignment) -> MemberAssignment:
    return member._replace(since=epochs_of(member.since, member.epoch, member.assigned, member.pending_revocation))


def _owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """A member that does not report its partitions may own any."""
    if owned is None:
        return True
    return any(not held.isdisjoint(partitions.get(topic, frozenset())) for topic, held in owned.items())


def is_subset(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(held <= assigned.get(topic, frozenset()) for topic, held in owned.items())
