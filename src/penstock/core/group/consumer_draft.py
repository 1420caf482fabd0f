"""A draft of a consumer group: a copy on which each new record is replayed at once.

So later steps of the same decision see the record, through the code that also runs on the group
when the shard replays the records. The methods are in the order in which a heartbeat uses them;
`consumer_protocol` decides which steps to take.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from penstock.core.group.assignors import ASSIGNORS, EMPTY, Assignment, MemberSpec
from penstock.core.group.consumer_exchange import ConsumerSettings
from penstock.core.group.consumer_group import ConsumerGroup, Topics
from penstock.core.group.consumer_records import (
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerGroupRegex,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    GroupEpoch,
    MemberMetadata,
    ResolvedRegex,
    TargetEpoch,
)
from penstock.core.group.reconciliation import Facts, reconcile
from penstock.core.group.story import StoryEvent, What, holding
from penstock.core.group.topic_regex import MAX_PER_GROUP, matching_topics
from penstock.model.errors import ApiError, ErrorCode


class SubscriptionChange(NamedTuple):
    """The effect of a member's update on partitions."""

    is_new: bool  # the member may have to revoke unsubscribed partitions
    needs_target: bool  # the group needs a new target


UNCHANGED = SubscriptionChange(False, False)


class Draft:
    """A copy of the group with the new records applied."""

    def __init__(
        self, group: ConsumerGroup, topics: Topics, settings: ConsumerSettings, now_ms: int, wall_ms: int
    ) -> None:
        self.group = group.draft()
        self.records: list[ConsumerGroupRecord] = []
        self.events: list[StoryEvent] = []
        self.topics = topics
        self.settings = settings
        self.now_ms = now_ms
        self.wall_ms = wall_ms

    def emit(self, record: ConsumerGroupRecord) -> None:
        self.records.append(record)
        self.group.replay(record)

    def tell(self, what: What, member_id: str | None = None, why: str = "", *, leads_to: int = 1) -> None:
        """`leads_to`: the number of epochs by which the event advances the group."""
        self.events.append(StoryEvent(self.now_ms, self.group.epoch + leads_to, what, member_id, why))

    def bump(self) -> None:
        group = self.group
        self.emit(ConsumerGroupMetadata(group.group_id, GroupEpoch(group.epoch + 1, group.hash_of(self.topics))))

    # --- members ---

    def update_member(self, member_id: str, member: MemberMetadata) -> SubscriptionChange:
        """As in Kafka, a new regular expression that matches nothing yet does not change the target."""
        group = self.group
        old = group.members.get(member_id)
        if member == old:
            return UNCHANGED
        self.emit(ConsumerGroupMember(group.group_id, member_id, member))
        old_names, old_regex = (old.topic_names, old.topic_regex) if old is not None else ((), None)
        names_changed = member.topic_names != old_names
        regex = member.topic_regex
        if regex == old_regex:
            return SubscriptionChange(names_changed, names_changed)
        self._drop_unused_regexes()
        is_unmatched = False
        if regex is not None and regex not in group.regexes:
            if len(group.regexes) >= MAX_PER_GROUP:
                raise ApiError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"The group already subscribes with the maximum of {MAX_PER_GROUP} regular expressions.",
                )
            self._resolve(regex)
            is_unmatched = old_regex is None and not group.regexes[regex].topics
        return SubscriptionChange(True, names_changed or not is_unmatched)

    def replace_static(self, old_id: str, new_id: str) -> None:
        """The instance returned with a new member id, which takes over the old member's assignment."""
        group = self.group
        member, current, target = group.members[old_id], group.assignment_of(old_id), group.target.get(old_id, EMPTY)
        self._erase(old_id)
        self.emit(ConsumerGroupMember(group.group_id, new_id, member))
        self.emit(ConsumerGroupTargetMember(group.group_id, new_id, target))
        self.emit(ConsumerGroupCurrentMember(group.group_id, new_id, current._replace(epoch=0, previous_epoch=0)))

    def remove_members(self, member_ids: list[str]) -> None:
        for member_id in member_ids:
            self._erase(member_id)
        self._drop_unused_regexes()
        self.bump()

    def _erase(self, member_id: str) -> None:
        group_id = self.group.group_id
        self.emit(ConsumerGroupCurrentMember(group_id, member_id, None))
        self.emit(ConsumerGroupTargetMember(group_id, member_id, None))
        self.emit(ConsumerGroupMember(group_id, member_id, None))

    # --- topics ---

    def check_topics(self) -> bool:
        """Whether a subscribed topic was created, deleted or got more partitions since the last check."""
        group = self.group
        for regex in list(group.regexes):
            self._resolve(regex)
        return group.hash_of(self.topics) != group.metadata_hash

    def _resolve(self, regex: str) -> None:
        found = matching_topics(regex, self.topics.names(), self.topics.version)
        known = self.group.regexes.get(regex)
        if known is None or known.topics != found:
            resolved = ResolvedRegex(found, self.topics.version, self.wall_ms)
            self.emit(ConsumerGroupRegex(self.group.group_id, regex, resolved))

    def _drop_unused_regexes(self) -> None:
        used = {member.topic_regex for member in self.group.members.values()}
        for regex in [regex for regex in self.group.regexes if regex not in used]:
            self.emit(ConsumerGroupRegex(self.group.group_id, regex, None))

    # --- target and members' steps towards it ---

    def retarget(self) -> None:
        """Compute a target for the group epoch; write a record for each member whose part changed."""
        group = self.group
        subscribed: dict[tuple[str, ...], frozenset[bytes]] = {}  # most members subscribe alike
        specs: dict[str, MemberSpec] = {}
        for member_id, member in group.members.items():
            said = group.topic_names_of(member)
            if said not in subscribed:
                subscribed[said] = group.subscribed_ids(member, self.topics)
            specs[member_id] = MemberSpec(subscribed[said], group.target.get(member_id, EMPTY), member.instance_id)
        counts, names = {}, {}
        for name in group.subscribed_names():
            if (info := self.topics.find(name)) is not None:
                counts[info.topic_id] = info.partitions
                names[info.topic_id] = name
        assignor = group.preferred_assignor(self.settings.assignors[0])
        targets = ASSIGNORS[assignor](specs, counts)
        for member_id, target in targets.items():
            if target != group.target.get(member_id):
                self.emit(ConsumerGroupTargetMember(group.group_id, member_id, target))
        self.emit(ConsumerGroupTargetMetadata(group.group_id, TargetEpoch(group.epoch, self.wall_ms)))
        ordered = sorted(targets.items())
        shares = tuple((member_id, sum(map(len, target.values()))) for member_id, target in ordered)
        held = tuple(holding({names[topic_id]: had for topic_id, had in target.items()}) for _, target in ordered)
        self.events.append(StoryEvent(self.now_ms, group.epoch, What.ASSIGNED, None, assignor, shares, held))

    def step(self, member_id: str, owned: Assignment | None, subscription_changed: bool) -> None:
        group = self.group
        current = group.assignment_of(member_id)
        if not subscription_changed and group.is_reconciled(member_id):
            return
        facts = Facts(
            group.assignment_epoch,
            group.target.get(member_id, EMPTY),
            group.subscribed_ids(group.members[member_id], self.topics),
            owned,
            partial(group.is_taken_from, member_id),
            subscription_changed,
        )
        stepped = reconcile(current, facts)
        if stepped is not current:
            self.emit(ConsumerGroupCurrentMember(group.group_id, member_id, stepped))
