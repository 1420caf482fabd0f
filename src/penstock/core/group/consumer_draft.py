"""A consumer group in the making: each record is replayed on a copy as soon as it is made.

So what comes next in the same decision sees it, by the code that will run on the group itself
when the shard replays the records. The steps are in the order a heartbeat takes them; which of
them to take is decided in `consumer_protocol`.
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
    """What an update of a member means for its partitions."""

    is_new: bool  # the member may have to give up what it no longer subscribes to
    needs_target: bool  # others may have to


UNCHANGED = SubscriptionChange(False, False)


class Draft:
    """A group with the records made so far already in it."""

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
        """`leads_to`: how many epochs further the group is after what happened."""
        self.events.append(StoryEvent(self.now_ms, self.group.epoch + leads_to, what, member_id, why))

    def bump(self) -> None:
        group = self.group
        self.emit(ConsumerGroupMetadata(group.group_id, GroupEpoch(group.epoch + 1, group.hash_of(self.topics))))

    # --- members ---

    def update_member(self, member_id: str, member: MemberMetadata) -> SubscriptionChange:
        """As in Kafka, an expression that is new to the group and matches nothing yet leaves the target as it is."""
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
                    f"The members of the group subscribe by {MAX_PER_GROUP} expressions already.",
                )
            self._resolve(regex)
            is_unmatched = old_regex is None and not group.regexes[regex].topics
        return SubscriptionChange(True, names_changed or not is_unmatched)

    def replace_static(self, old_id: str, new_id: str) -> None:
        """The instance came back under a new member id: it gets what it had."""
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
        """Whether subscribed topics came, went or grew since the group last looked."""
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
        """A new target for the group epoch; a record for each member whose part changed."""
        group = self.group
        subscribed: dict[tuple[str, ...], frozenset[bytes]] = {}  # most members say the same
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
