"""Rules that brokers must never break, checked while they run by looking at their partitions.

- A leader epoch of a partition has one leader. Leader epochs and partition epochs increase on every replica.
- The high watermark of a replica increases while its process lives, and is between the start and the end of its log.
  A follower's high watermark never exceeds what some leader had committed. (A follower with a damaged disk is excused:
  it is cut before the damage.)
- The log of a leader does not shrink within its epoch. A replica that is in sync for the controller never cuts its log
  below committed records, even if it fetches them again at once: it could be elected in between. A log start only
  increases.
- Records below the high watermark of any leader are in the log of each of its in-sync replicas, from the moment the
  leader adds it to the ISR, and in the log of every later leader.
- A reassignment removes no replica before all target replicas are in sync.
- A broker that returns stays eligible only if it still has everything up to the high watermark.
- The ISR a broker uses at a partition epoch is the one in the controller's log at that epoch.

Accepts any objects with the attributes below, so tests can pass their own. Must not know: nodes, clients, faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.sim.judges.history import Violation


class LogEnds(Protocol):
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...


class ReplicaLike(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def index(self) -> int: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def isr(self) -> Sequence[int]: ...
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def adding(self) -> Sequence[int]: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log(self) -> LogEnds: ...


class StateLike(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def isr(self) -> Sequence[int]: ...
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def adding(self) -> Sequence[int]: ...


Key = tuple[bytes, int]


class SeenReplica(NamedTuple):
    """The state of one replica, as last seen."""

    is_leader: bool
    leader_epoch: int
    partition_epoch: int
    high_watermark: int
    log_start: int
    log_end: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


class SeenCut(NamedTuple):
    """A cut of a replica's log, as observed."""

    node: int
    name: str
    key: Key
    log_end: int
    committed: int
    """The value at that moment."""


class DecidedPartition(NamedTuple):
    """A partition in the controller's log at one partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]


class BrokerChecker:
    def __init__(self) -> None:
        self._facts: dict[int, dict[Key, tuple[ReplicaLike, LogEnds, SeenReplica]]] = {}  # by node
        self._leaders: dict[tuple[Key, int], int] = {}
        self._committed: dict[Key, tuple[int, str]] = {}  # the highest high watermark, and its replica
        self._decided: dict[tuple[Key, int], DecidedPartition] = {}
        self._latest: dict[Key, int] = {}  # the highest partition epoch in any image
        self._cuts: list[SeenCut] = []  # since the last check
        self._states: dict[tuple[int, Key], int] = {}  # the partition epoch last seen in a node's image
        self._opened: dict[tuple[int, Key], tuple[str, int]] = {}  # the end of a log when first seen
        self._registered: dict[int, int] = {}  # the latest broker epoch of a node
        # partitions that it may lead since its last start, with their committed end
        self._eligible: dict[int, dict[Key, int]] = {}
        self.excused: dict[int, None] = {}
        """Nodes with a damaged disk: their gaps are no violation of others."""

    def look(self, replicas: Mapping[int, Collection[ReplicaLike]]) -> None:
        """`replicas`: the replicas of each living node."""
        self._judge_cuts()
        changed: list[tuple[int, ReplicaLike, SeenReplica]] = []
        for node, partitions in replicas.items():
            known_facts = self._facts.setdefault(node, {})
            for replica in partitions:
                key, log = (replica.topic_id, replica.index), replica.log
                seen = (
                    replica.is_leader,
                    replica.leader_epoch,
                    replica.partition_epoch,
                    replica.high_watermark,
                    log.log_start_offset,
                    log.log_end_offset,
                    replica.isr,
                    replica.replicas,
                )
                known = known_facts.get(key)
                is_known = known is not None and known[0] is replica
                if known is not None and is_known and known[2] == seen:
                    if known[1] is not log:
                        known_facts[key] = replica, log, known[2]
                    continue
                facts = SeenReplica(*seen[:6], tuple(replica.isr), tuple(replica.replicas))
                if known is not None and is_known:
                    is_excused, is_reopened = node in self.excused, known[1] is not log
                    _check_growth(node, replica, known[2], facts, is_excused=is_excused, is_reopened=is_reopened)
                elif (node, key) not in self._opened:  # or the replica was moved away and back, and starts again
                    self._opened[node, key] = f"{replica.topic}-{replica.index}", facts.log_end
                    # A replica being added was removed meanwhile and is no longer eligible.
                    if key in self._eligible.get(node, ()) and node not in replica.adding:
                        self._check_eligible(node, key)
                known_facts[key] = replica, log, facts
                changed.append((node, replica, facts))
        if not changed:
            return
        hosted: dict[Key, dict[int, ReplicaLike]] = {}
        for node, partitions in replicas.items():
            for replica in partitions:
                hosted.setdefault((replica.topic_id, replica.index), {})[node] = replica
        changed.sort(key=lambda entry: not entry[2].is_leader)  # leaders first: followers are compared
        for node, replica, facts in changed:
            self._judge(node, replica, facts, hosted[replica.topic_id, replica.index])

    def moved(self, node: int, replica: ReplicaLike) -> None:
        """The high watermark has just moved. Its leader may be dead at the next check, while followers know it."""
        if replica.is_leader:
            self._commits(node, (replica.topic_id, replica.index), replica.high_watermark, replica.leader_epoch)

    def cut(self, node: int, replica: ReplicaLike) -> None:
        """The log was just cut. Judged again at the next check: the controller may have decided meanwhile, and a
        replica that was not in sync may be by then."""
        key, end = (replica.topic_id, replica.index), replica.log.log_end_offset
        committed, _ = self._committed.get(key, (0, ""))
        if end < committed and node not in self.excused and self.is_in_sync(node, key):
            self._cuts.append(SeenCut(node, f"{replica.topic}-{replica.index}", key, end, committed))

    def _judge_cuts(self) -> None:
        cuts, self._cuts = self._cuts, []
        for cut in cuts:
            if self.is_in_sync(cut.node, cut.key):
                decided = self._decided[cut.key, self._latest[cut.key]]
                raise Violation(
                    "nothing committed is cut",
                    f"{cut.name} on {cut.node}, one of the in-sync replicas {list(decided.isr)}, is cut to "
                    f"{cut.log_end}, but {cut.committed} is committed",
                )

    def registered(self, node: int, epoch: int, eligible: Iterable[Key]) -> None:
        """The controller knows that this broker restarted, and which partitions it stays eligible for: it must have
        returned with everything committed there. Nothing is committed while a replica outside the ISR is
        eligible."""
        if epoch > self._registered.get(node, -1):
            self._registered[node] = epoch
            self._eligible[node] = {key: self._committed.get(key, (0, ""))[0] for key in eligible}
            for key in self._eligible[node]:
                self._check_eligible(node, key)

    def _check_eligible(self, node: int, key: Key) -> None:
        name, log_end = self._opened.get((node, key), ("", 0))
        committed = self._eligible[node][key]
        if name and log_end < committed and node not in self.excused:
            raise Violation(
                "an eligible replica has everything committed",
                f"{name}: {node} came back with a log that ends at {log_end}, but {committed} was committed, and it "
                "stays eligible to lead",
            )

    def is_in_sync(self, node: int, key: Key) -> bool:
        """The in-sync replicas by the latest decision known to any node."""
        decided = self._decided.get((key, self._latest.get(key, -1)))
        return decided is not None and node in decided.isr

    def _commits(self, node: int, key: Key, high_watermark: int, leader_epoch: int) -> None:
        if high_watermark > self._committed.get(key, (0, ""))[0]:
            self._committed[key] = high_watermark, f"{node} (epoch {leader_epoch})"

    def forget(self, node: int) -> None:
        """The process is gone; the next one may start with lower values."""
        self._facts.pop(node, None)
        self._eligible.pop(node, None)
        for opened in [opened for opened in self._opened if opened[0] == node]:
            del self._opened[opened]
        for key in [key for key in self._states if key[0] == node]:
            del self._states[key]

    def _judge(self, node: int, replica: ReplicaLike, facts: SeenReplica, others: Mapping[int, ReplicaLike]) -> None:
        key, name = (replica.topic_id, replica.index), f"{replica.topic}-{replica.index}"
        end = facts.log_end
        if not facts.log_start <= facts.high_watermark <= end and node not in self.excused:
            raise Violation(
                "the high watermark is within the log",
                f"{name} on {node}: high watermark {facts.high_watermark}, log from {facts.log_start} to {end}",
            )
        self._check_isr(node, name, key, facts)
        if not facts.is_leader:
            self._check_follower(node, name, key, facts)
            return
        leader = self._leaders.setdefault((key, facts.leader_epoch), node)
        if leader != node:
            raise Violation(
                "an epoch has one leader", f"{name}, epoch {facts.leader_epoch}: both {leader} and {node} lead it"
            )
        committed, whose = self._committed.get(key, (0, ""))
        latest = self._decided.get((key, self._latest.get(key, -1)))  # all nodes that know the offset may be down
        is_newest = (latest is None or facts.leader_epoch >= latest.leader_epoch) and all(
            facts.leader_epoch >= other.leader_epoch for other in others.values()
        )
        if end < committed and is_newest and node not in self.excused:
            raise Violation(
                "a leader has everything committed",
                f"{name}: {node} leads epoch {facts.leader_epoch} with a log that ends at {end}, but {whose} had the "
                f"high watermark at {committed}",
            )
        self._commits(node, key, facts.high_watermark, facts.leader_epoch)
        self._check_replicas(node, name, facts, others)

    def _check_follower(self, node: int, name: str, key: Key, facts: SeenReplica) -> None:
        committed, whose = self._committed.get(key, (0, "nobody"))
        is_alone = facts.isr == (node,) or facts.replicas == (node,)  # no other broker leads
        if facts.high_watermark > committed and not is_alone:
            raise Violation(
                "a follower's high watermark is a leader's",
                f"{name}: {node} follows epoch {facts.leader_epoch} with the high watermark at {facts.high_watermark}; "
                f"the highest of a leader was {committed}, of {whose}",
            )

    def _check_replicas(self, node: int, name: str, facts: SeenReplica, others: Mapping[int, ReplicaLike]) -> None:
        for member in facts.isr:
            other = others.get(member)
            if other is None or member in self.excused or other.partition_epoch > facts.partition_epoch:
                continue  # gone, damaged, or ahead of this leader, which may be deposed
            if other.log.log_end_offset < facts.high_watermark:
                raise Violation(
                    "the high watermark waits for every in-sync replica",
                    f"{name}: {node} (epoch {facts.leader_epoch}) has it at {facts.high_watermark} with in-sync "
                    f"replicas {list(facts.isr)}, and the log of {member} ends at {other.log.log_end_offset}",
                )

    def _check_isr(self, node: int, name: str, key: Key, facts: SeenReplica) -> None:
        decided = self._decided.get((key, facts.partition_epoch))
        if decided is not None and (decided.isr != facts.isr or decided.leader_epoch != facts.leader_epoch):
            raise Violation(
                "in-sync replicas are the controller's",
                f"{name} on {node} uses {list(facts.isr)} and leader epoch {facts.leader_epoch} at partition epoch "
                f"{facts.partition_epoch}; the controller's log says {list(decided.isr)} and {decided.leader_epoch}",
            )

    def look_at_image(self, node: int, topic: str, topic_id: bytes, states: Iterable[StateLike]) -> None:
        for state in states:
            key = topic_id, state.index
            if self._states.get((node, key)) == state.partition_epoch:
                continue
            before = self._states.get((node, key), -1)
            self._states[node, key] = state.partition_epoch
            self._latest[key] = max(self._latest.get(key, -1), state.partition_epoch)
            if state.partition_epoch < before:
                raise Violation(
                    "epochs only grow",
                    f"{topic}-{state.index}: the image of {node} goes from partition epoch {before} back to "
                    f"{state.partition_epoch}",
                )
            decided = DecidedPartition(
                state.leader, state.leader_epoch, tuple(state.isr), tuple(state.replicas), tuple(state.adding)
            )
            known = self._decided.setdefault((key, state.partition_epoch), decided)
            if known != decided:
                raise Violation(
                    "images are equal",
                    f"{topic}-{state.index}, partition epoch {state.partition_epoch}: {node} has {decided}, "
                    f"others {known}",
                )
            self._check_removed(f"{topic}-{state.index}", self._decided.get((key, state.partition_epoch - 1)), decided)

    def _check_removed(self, name: str, before: DecidedPartition | None, now: DecidedPartition) -> None:
        if before is None or before.replicas == now.replicas:
            return
        removed = [
            replica for replica in before.replicas if replica not in now.replicas and replica not in before.adding
        ]
        if removed and not all(replica in now.isr for replica in now.replicas):
            raise Violation(
                "a replica is removed when new ones are in sync",
                f"{name}: {removed} leave {list(before.replicas)}, and of {list(now.replicas)} only {list(now.isr)} "
                "are in sync",
            )


def _check_growth(
    node: int,
    replica: ReplicaLike,
    before: SeenReplica,
    now: SeenReplica,
    *,
    is_excused: bool,
    is_reopened: bool = False,
) -> None:
    """`is_reopened`: after a failed sync a follower starts with its stable records, as after a restart."""
    name = f"{replica.topic}-{replica.index} on {node}"
    if now.leader_epoch < before.leader_epoch or now.partition_epoch < before.partition_epoch:
        raise Violation("epochs only grow", f"{name}: {before}, then {now}")
    may_be_cut = (is_excused or is_reopened) and not now.is_leader  # repaired or reopened
    if now.high_watermark < before.high_watermark and not may_be_cut:
        raise Violation("the high watermark only grows", f"{name}: {before}, then {now}")
    if now.log_start < before.log_start and not is_excused:
        raise Violation("a log start only grows", f"{name}: {before}, then {now}")
    is_same_leader = before.is_leader and now.is_leader and before.leader_epoch == now.leader_epoch
    if is_same_leader and now.log_end < before.log_end:
        raise Violation("a leader's log only grows", f"{name}: {before}, then {now}")
