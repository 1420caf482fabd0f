"""Reports about classic groups for people: events of the story, and one log line per rebalance."""

from __future__ import annotations

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.embedded_protocol import read_assignment
from penstock.core.group.story import WHY_CHARACTERS, Holding, Stories, StoryEvent, What, holding, many, shares_of
from penstock.core.shard.exchange import Outcome
from penstock.model.errors import ApiError


class Narrator:
    def __init__(self, stories: Stories) -> None:
        self._stories = stories

    def tell(
        self,
        group: ClassicGroup,
        now_ms: int,
        what: What,
        member: str,
        why: str = "",
        *,
        is_reason: bool = True,
    ) -> None:
        """Record an event of a member. If `is_reason`, it explains the next rebalance."""
        self._stories.tell(group.group_id, StoryEvent(now_ms, group.generation, what, member, why))
        if is_reason:
            group.reasons.add(f"{member} {what.value}" + (f" ({why[:WHY_CHARACTERS]})" if why else ""))

    def empty(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The last member is gone."""
        self._stories.tell(group.group_id, StoryEvent(now_ms, group.generation, What.EMPTY))
        out.notices.append(f"group {group.group_id} is empty at generation {group.generation + 1}{_why(group)}")

    def assigned(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """A rebalance is complete: log the shares of the members and the reasons."""
        held = _holdings(group, assignments)
        counts = tuple((label, sum(len(partitions) for _, partitions in one)) for label, one in held.items())
        name, holdings = group.protocol_name or "", tuple(held.values())
        event = StoryEvent(now_ms, group.generation, What.ASSIGNED, group.leader, name, counts, holdings)
        self._stories.tell(group.group_id, event)
        spread = shares_of([count for _, count in counts])
        out.notices.append(
            f"group {group.group_id} is stable at generation {group.generation}: {many(len(group.members), 'member')} "
            f"({name}){spread}{_why(group)}"
        )


def _holdings(group: ClassicGroup, assignments: dict[str, bytes]) -> dict[str, Holding]:
    """Holdings by member, where the assignment can be read."""
    held: dict[str, Holding] = {}
    if group.uses_consumer_protocol:
        for member in group.members.values():
            try:
                partitions, _ = read_assignment(assignments.get(member.member_id, b""))
            except ApiError:
                continue
            held[member.label] = holding(partitions)
    return held


def _why(group: ClassicGroup) -> str:
    reasons = group.reasons.take()
    return f"; because {', '.join(reasons)}" if reasons else ""
