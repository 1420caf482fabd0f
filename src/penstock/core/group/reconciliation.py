"""One member's way from what it has to what it is to have.

A partition changes hands in three steps, and never has two owners:
1. its owner is asked to revoke it (UNREVOKED_PARTITIONS) and keeps its epoch until it says that it did;
2. the owner moves on to the epoch of the target; the partition is free;
3. the next owner, who waited (UNRELEASED_PARTITIONS), gets it with its next heartbeat.

    state                   with this fact                           goes to
    STABLE                  epoch is the target's                    itself (less what it no longer subscribes to)
    STABLE                  epoch is older                           next
    UNREVOKED_PARTITIONS    still owns what it should revoke         itself (and more, if it subscribes to less)
    UNREVOKED_PARTITIONS    does not                                 next
    UNRELEASED_PARTITIONS   any                                      next
    UNKNOWN                 owns nothing                             next
    UNKNOWN                 may own something                        FENCED_MEMBER_EPOCH

    next: UNREVOKED_PARTITIONS if there is something to revoke, else UNRELEASED_PARTITIONS if something of
    the target has another owner, else STABLE. The last two have the epoch of the target.

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
    subscribed: frozenset[bytes]  # ids of the topics that the member subscribes to
    owned: Assignment | None  # what the member says it has; None if it did not say
    is_taken: Callable[[bytes, int], bool]  # by another member
    subscription_changed: bool = False


def reconcile(member: MemberAssignment, facts: Facts) -> MemberAssignment:
    """The same object if nothing changes."""
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
    """Revoke at once what the member no longer subscribes to, without waiting for a new target."""
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
    """Who does not say what it owns may own everything."""
    if owned is None:
        return True
    return any(not held.isdisjoint(partitions.get(topic, frozenset())) for topic, held in owned.items())


def is_subset(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(held <= assigned.get(topic, frozenset()) for topic, held in owned.items())
