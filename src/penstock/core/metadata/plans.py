"""Reassignment plans: drain a broker, balance all brokers, or change the number of replicas. No image changes here.

A plan names only partitions that change, keeps as many racks as possible, and gives new replicas only to running
brokers. `reassignment` carries it out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from itertools import pairwise, permutations, product

from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState
from penstock.core.metadata.placement import Counts, Placer, candidates
from penstock.model.errors import ApiError, ErrorCode

Plan = dict[str, dict[int, tuple[int, ...]]]
"""Topic -> partition -> replicas."""
Assignments = dict[tuple[str, int], tuple[int, ...]]
"""(topic, partition) -> replicas."""


def drain_plan(image: MetadataImage, broker_id: int) -> Plan:
    """Move every replica off the broker. Each successor takes its place in the list, so leaders stay balanced."""
    placer = Placer([each for each in candidates(image) if each.is_live and each.broker_id != broker_id], image)
    plan: Plan = {}
    for topic in image.topics.values():
        own = Counts.of(topic.partitions)
        for partition in topic.partitions:
            before = partition.target_replicas
            if broker_id not in before:
                continue
            after = before
            for replica in before:
                # An unregistered broker cannot be in a new assignment either.
                if replica == broker_id or replica not in image.brokers:
                    after = _replace(placer, own, after, replica, f"{topic.name}-{partition.index}")
            for counts in (own, placer.total):
                counts.add(before, -1)
                counts.add(after)
            plan.setdefault(topic.name, {})[partition.index] = after
    return plan


def _replace(placer: Placer, own: Counts, replicas: tuple[int, ...], leaving: int, name: str) -> tuple[int, ...]:
    at = replicas.index(leaving)
    others = [replica for replica in replicas if replica != leaving]
    if all(each.broker_id in others for each in placer.brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{name} has {len(replicas)} replica(s) and no other running broker can take the replica of broker "
            f"{leaving}: add a broker first.",
        )
    return (*replicas[:at], _successor(placer, own, others, is_first=at == 0), *replicas[at + 1 :])


def _successor(placer: Placer, own: Counts, others: list[int], is_first: bool) -> int:
    def burden(broker: int) -> tuple[int, ...]:
        leaders = (own.leaders[broker], placer.total.leaders[broker]) if is_first else ()
        return (
            placer.rack_uses(broker, others),
            *leaders,
            own.replicas[broker],
            placer.total.replicas[broker],
            broker,
        )

    return min((each.broker_id for each in placer.brokers if each.broker_id not in others), key=burden)


def balance_plan(image: MetadataImage) -> Plan:
    """Move replicas from loaded to less loaded brokers, for example after a broker was added; then balance leaders."""
    placer = Placer([each for each in candidates(image) if each.is_live], image)
    running = [each.broker_id for each in placer.brokers]
    moved: Assignments = {
        (topic.name, each.index): each.target_replicas
        for topic, each in image.all_partitions()
        if can_be_balanced(image, each)
    }
    before = dict(moved)
    _even_replicas(placer, running, moved)
    _even_leaders(placer.total, running, moved)
    return _changes(before, moved)


def can_be_balanced(image: MetadataImage, partition: PartitionState) -> bool:
    """A move ends when all target replicas are in sync. With one of them down, or no leader, it would not end."""
    return partition.leader != NO_LEADER and all(
        replica in image.brokers and not image.brokers[replica].is_fenced for replica in partition.target_replicas
    )


def _even_replicas(placer: Placer, running: list[int], moved: Assignments) -> None:
    """The most loaded broker gives first."""
    counts = placer.total.replicas
    held: dict[int, dict[tuple[str, int], None]] = {broker: {} for broker in running}
    for key, replicas in moved.items():
        for replica in replicas:
            held[replica][key] = None
    has_changed = True
    while has_changed:
        has_changed = False
        givers = dict.fromkeys(running)
        while givers:
            giver = max(givers, key=lambda broker: (counts[broker], -broker))
            given = _gift(placer, running, moved, held[giver], giver)
            if given is None:
                del givers[giver]  # until other brokers have given
                continue
            key, taker = given
            placer.total.add(moved[key], -1)
            moved[key] = tuple(taker if replica == giver else replica for replica in moved[key])
            placer.total.add(moved[key])
            del held[giver][key]
            held[taker][key] = None
            has_changed = True


def _gift(
    placer: Placer, running: list[int], moved: Assignments, held: Collection[tuple[str, int]], giver: int
) -> tuple[tuple[str, int], int] | None:
    """Choose a partition to give, and its receiver: the least loaded broker if possible."""
    counts = placer.total.replicas
    least = min((counts[broker] for broker in running if broker != giver), default=0)
    best: tuple[tuple[str, int], int] | None = None
    for key in held:
        taker = _receiver(placer, running, moved[key], giver)
        if taker is not None and (best is None or counts[taker] < counts[best[1]]):
            best = key, taker
            if counts[taker] == least:
                break
    return best


def _changes(before: Assignments, moved: Assignments) -> Plan:
    plan: Plan = {}
    for (name, index), replicas in moved.items():
        if replicas != before[name, index]:
            plan.setdefault(name, {})[index] = replicas
    return plan


def factor_plan(image: MetadataImage, replication_factor: int, topics: Collection[str] | None = None) -> Plan:
    """Give each partition of these topics, or of all, this many replicas. Existing replicas stay; if there are too
    many, the most valuable stay. Where replicas are added, leaders are balanced among the new lists."""
    placer = Placer([each for each in candidates(image) if each.is_live], image)
    running = [each.broker_id for each in placer.brokers]
    before: Assignments = {}
    moved: Assignments = {}
    grown: Assignments = {}
    for topic in image.topics.values():
        if topics is not None and topic.name not in topics:
            continue
        own = Counts.of(topic.partitions)
        for partition in topic.partitions:
            key = topic.name, partition.index
            before[key] = partition.target_replicas
            kept = _kept(image, placer, partition, replication_factor)
            moved[key] = after = _more(placer, own, kept, replication_factor, f"{topic.name}-{partition.index}")
            for counts in (own, placer.total):
                counts.add(before[key], -1)
                counts.add(after)
            if len(after) > len(kept) and all(replica in running for replica in after):
                grown[key] = after
    _even_leaders(placer.total, running, grown)
    return _changes(before, moved | grown)


def _kept(image: MetadataImage, placer: Placer, partition: PartitionState, replication_factor: int) -> tuple[int, ...]:
    """Keep replicas in sync first, then eligible, then running, over as many racks as possible; then the first."""
    kept = [replica for replica in partition.target_replicas if replica in image.brokers]

    def worth(replica: int) -> tuple[bool, ...]:
        others = [other for other in kept if other != replica]
        return (
            replica in partition.isr,
            replica in (*partition.elr, *partition.last_known_elr),
            not image.brokers[replica].is_fenced,
            not placer.rack_uses(replica, others),
        )

    while len(kept) > replication_factor:
        kept.remove(min(reversed(kept), key=worth))
    return tuple(kept)


def _more(placer: Placer, own: Counts, kept: tuple[int, ...], replication_factor: int, name: str) -> tuple[int, ...]:
    replicas = list(kept)
    while len(replicas) < replication_factor:
        if all(each.broker_id in replicas for each in placer.brokers):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{name} cannot have {replication_factor} replicas: {len(placer.brokers)} broker(s) are running, add "
                "or start more brokers first.",
            )
        replicas.append(_successor(placer, own, replicas, is_first=not replicas))
    return tuple(replicas)


def _receiver(placer: Placer, running: list[int], replicas: tuple[int, ...], donor: int) -> int | None:
    """Return the receiver of the donor's replica: a broker with at least two fewer, in a rack that is no worse."""
    counts = placer.total.replicas
    others = [replica for replica in replicas if replica != donor]
    racks = placer.rack_uses(donor, others)
    possible = [
        broker
        for broker in running
        if broker not in replicas and counts[broker] + 1 < counts[donor] and placer.rack_uses(broker, others) <= racks
    ]
    return min(possible, key=lambda broker: (counts[broker], broker), default=None)


def _even_leaders(counts: Counts, running: list[int], moved: Assignments) -> None:
    """Balance leaders overall, then within each topic. Another order of the same replicas moves no data."""
    is_even = False
    while not is_even:  # ends: neither step undoes what the other gained
        _even_all(counts, running, moved)
        is_even = not _even_topics(counts, running, moved)


def _even_all(counts: Counts, running: list[int], moved: Assignments) -> None:
    for key, replicas in moved.items():
        first = min((each for each in replicas if each in running), key=counts.leaders.__getitem__, default=replicas[0])
        if counts.leaders[first] + 1 < counts.leaders[replicas[0]]:
            _put_first(counts, moved, key, first)
    # The rest needs first places passed on over several brokers.
    while True:
        passes = _passes(running, moved)
        path = min(
            (found for broker in running if (found := _path_down(counts, passes, broker))),
            key=len,
            default=None,
        )
        if path is None:
            return
        for giver, taker in pairwise(path):
            _put_first(counts, moved, passes[giver][taker], taker)


def _even_topics(counts: Counts, running: list[int], moved: Assignments) -> bool:
    """If a broker leads two more partitions of a topic than another, it passes one leadership to the other. If it would
    then lead fewer partitions in total, it gets one in exchange, of a topic in which the other leads more. Return
    whether anything changed."""
    leads: dict[str, Counter[int]] = {}
    firsts: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
    for key, replicas in moved.items():
        leads.setdefault(key[0], Counter())[replicas[0]] += 1
        firsts.setdefault((key[0], replicas[0]), {})[key] = None

    def pass_on(key: tuple[str, int], giver: int, taker: int) -> None:
        _put_first(counts, moved, key, taker)
        leads[key[0]].update({giver: -1, taker: 1})
        del firsts[key[0], giver][key]
        firsts.setdefault((key[0], taker), {})[key] = None

    def passable(topic: str, giver: int, taker: int) -> tuple[str, int] | None:
        return next((key for key in firsts.get((topic, giver), ()) if taker in moved[key]), None)

    def returnable(topic: str, giver: int, taker: int) -> tuple[str, int] | None:
        others = (other for other in leads if other != topic and leads[other][taker] > leads[other][giver])
        return next((key for other in others if (key := passable(other, taker, giver)) is not None), None)

    has_changed = False
    is_settled = False
    while not is_settled:
        is_settled = True
        for topic, (giver, taker) in product(leads, permutations(running, 2)):
            given = passable(topic, giver, taker) if leads[topic][giver] > leads[topic][taker] + 1 else None
            if given is None:
                continue
            if counts.leaders[giver] <= counts.leaders[taker]:
                back = returnable(topic, giver, taker)
                if back is None:
                    continue
                pass_on(back, taker, giver)
            pass_on(given, giver, taker)
            has_changed, is_settled = True, False
    return has_changed


def _put_first(counts: Counts, moved: Assignments, key: tuple[str, int], broker: int) -> None:
    counts.add(moved[key], -1)
    moved[key] = (broker, *(replica for replica in moved[key] if replica != broker))
    counts.add(moved[key])


def _passes(running: list[int], moved: Assignments) -> dict[int, dict[int, tuple[str, int]]]:
    """For each pair of brokers: a partition whose first place one could pass to the other."""
    passes: dict[int, dict[int, tuple[str, int]]] = {broker: {} for broker in running}
    for key, replicas in moved.items():
        if replicas[0] in passes:
            for other in replicas[1:]:
                if other in passes:
                    passes[replicas[0]].setdefault(other, key)
    return passes


def _path_down(counts: Counts, passes: dict[int, dict[int, tuple[str, int]]], start: int) -> list[int] | None:
    """The shortest path from a broker to one with at least two fewer first places."""
    paths = deque([[start]])
    seen = {start: None}
    while paths:
        path = paths.popleft()
        if counts.leaders[path[-1]] + 1 < counts.leaders[start]:
            return path
        for other in passes[path[-1]]:
            if other not in seen:
                seen[other] = None
                paths.append([*path, other])
    return None
