"""Observes replicas and passes commits, appends, cuts and decisions about partitions to their judges.

Knows the names in production code. Must not know: clients, faults. Invariant: listening changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.coordination.shard_host import partition_of
from penstock.core.metadata.image import MetadataImage, PartitionState, TopicState
from penstock.core.metadata.partition_change import Standing, Wanted
from penstock.core.metadata.records import BrokerRegistered, MetadataRecord, PartitionChanged, TopicDeleted
from penstock.records.batch import BatchHeader
from penstock.replica.partition import Partition
from penstock.sim.checks.brokers import BrokerChecker
from penstock.sim.checks.chains import ChainChecker, Key
from penstock.sim.checks.elections import check_elected
from penstock.sim.checks.leases import SLACK_S, LeaseChecker
from penstock.sim.checks.platter import PlatterChecker
from penstock.sim.checks.starts import StartChecker
from penstock.sim.checks.unclean import UncleanElection
from penstock.sim.cluster import SimCluster
from penstock.sim.judges.history import Place, Violation
from penstock.sim.judges.judging import Judging
from penstock.sim.judges.transaction_ears import TransactionEars
from penstock.sim.machine.loop import NS
from penstock.sim.machine.process import current_process
from penstock.sim.places import replaced
from penstock.sim.workload.writers.unclean import UNCLEAN
from penstock.storage.checkpoints import RECOVERY_POINTS
from penstock.storage.durability import NO_DESCRIPTOR

PARTITION = "penstock.replica.partition:Partition"
IMAGE = "penstock.core.metadata.image"
MIN_ISR = "min.insync.replicas"
ACCESS = "penstock.cluster.controller_access:ControllerAccess"
LIFECYCLE = "penstock.cluster.broker_lifecycle:BrokerLifecycle"


class ReplicaEars:
    def __init__(
        self,
        cluster: SimCluster,
        judging: Judging,
        brokers: BrokerChecker,
        platters: PlatterChecker,
        transactions: TransactionEars,
    ) -> None:
        self._cluster = cluster
        self._loop = cluster.world.loop
        self._judging = judging
        self._brokers = brokers
        self._platters = platters
        self._chains = ChainChecker()
        self._transactions = transactions
        self._starts = StartChecker(self._chains)
        self._chains.on_committed = self._was_committed
        transactions.markers.catch_up = self._look_at_leaders
        self._leases = LeaseChecker()
        self.unclean: dict[str, None] = {UNCLEAN.topic: None}
        """Topics that are judged only by how much they lose."""
        self.elections: dict[tuple[str, int], list[UncleanElection]] = {}
        self._left: dict[tuple[str, int, int], float] = {}  # time when a replica was last in sync
        self._trimmed: dict[Place, None] = {}  # older segments may remain before a gap; the log begins after it
        self._deleted: dict[str, None] = {}  # topic ids, recorded by the first node that applies the deletion
        self._replicas: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = {}  # newest epoch and replicas

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in (
                (f"{PARTITION}._committed", self._overhear_commit),
                (f"{PARTITION}.begin_cut", self._overhear_cut),
                (f"{PARTITION}.begin_anew", self._overhear_cut),
                ("penstock.replica.divergence:begin_cut_to_epoch", self._overhear_divergence),
                ("penstock.replica.repair:Repairs._cut", self._overhear_repair),
                ("penstock.replica.offset_files:OffsetFiles._write", self._overhear_offsets),
                (f"{IMAGE}:_change", self._overhear_decision),
                ("penstock.core.metadata.partition_change:change_partition", self._overhear_election),
                (f"{IMAGE}:MetadataImage._replay_topic", self._overhear_topic),
                (f"{IMAGE}:MetadataImage._replay_broker", self._overhear_broker),
                ("penstock.storage.log:Log.begin_flush", self._overhear_flush),
                ("penstock.storage.log:Log.end_flush", self._overhear_flush),
                (f"{PARTITION}.append", self._overhear_append),
                (f"{ACCESS}.heartbeat", self._overhear_heartbeat),
                (f"{LIFECYCLE}.register", self._overhear_registration),
            ):
                stack.enter_context(replaced(place, make))
            yield

    # -- commits ------------------------------------------------------------------------

    def _overhear_commit(self, committed: Any) -> Any:
        def overheard(partition: Partition, high_watermark: int) -> None:
            if partition.topic in self.unclean:
                committed(partition, high_watermark)
                return
            self._brokers.moved(partition.node_id, partition)
            if partition.is_leader:
                with self._judging.judging():
                    self._check_minimum(partition, high_watermark)
                with self._judging.judging():
                    self._look_at_chain(partition, high_watermark)
                with self._judging.judging():
                    if partition.is_durable:
                        self._look_at_platters(partition, high_watermark)
            committed(partition, high_watermark)

        return overheard

    def _check_minimum(self, leader: Partition, high_watermark: int) -> None:
        """Otherwise records could be lost with a leader that was alone. Uses the node's own metadata, because the
        setting may have just changed."""
        overrides = self._cluster.nodes[leader.node_id].membership.image.topic_overrides(leader.topic)
        configured = int(overrides.get(MIN_ISR, leader.config.min_insync_replicas))
        minimum = leader.metadata.effective_min_isr(configured)
        if len(leader.replicas) > 1 and len(leader.isr) < minimum:
            raise Violation(
                "the high watermark waits for min.insync.replicas",
                f"{leader!r}: {leader.node_id} (epoch {leader.leader_epoch}) moves it to {high_watermark} with in-sync "
                f"replicas {list(leader.isr)}, but at least {minimum} are required",
            )

    def _look_at_chain(self, leader: Partition, high_watermark: int) -> None:
        node, key = leader.node_id, (leader.topic_id, leader.index)
        if _may_have_gaps(leader):
            self._chains.compacts(key)
        if node in self._brokers.excused:
            self._chains.lose_sight(key)
            self._transactions.lose_sight(leader)
            return
        disk = self._cluster.machines[node].disk
        self._chains.committed(node, leader, key, leader.log, high_watermark, disk)

    def _look_at_leaders(self) -> None:
        """Becoming a leader does not show what is committed."""
        for node in self._cluster.living.values():
            for partition in getattr(node, "partitions", ()):
                is_judged = partition.topic not in self.unclean and partition.log.offline is None
                if partition.is_leader and is_judged and not partition.log.is_being_cut:
                    with self._judging.judging():
                        self._look_at_chain(partition, partition.high_watermark)

    def _was_committed(self, leader: object, header: BatchHeader, batch: bytes) -> None:
        assert isinstance(leader, Partition)
        self._transactions.committed(leader, header, batch)

    def look_at_members(self, replicas: Mapping[int, Iterable[Partition]]) -> None:
        """Check that in-sync replicas hold what their leaders committed. `replicas`: by living node."""
        hosted: dict[Key, dict[int, Partition]] = {}
        for node, partitions in replicas.items():
            for partition in partitions:
                key = partition.topic_id, partition.index
                hosted.setdefault(key, {})[node] = partition
                if _may_have_gaps(partition):
                    self._chains.compacts(key)
        for key, others in hosted.items():
            leader = max(others.values(), key=lambda one: (one.leader_epoch, one.is_leader))
            if leader.is_leader:
                self._look_at_chain(leader, leader.high_watermark)  # a new leader commits nothing by becoming leader
                members = {number: others[number].log for number in leader.isr if number in others}
                with self._judging.judging():
                    self._starts.look(leader, key, members, self._brokers.excused)
            for number in leader.isr if leader.is_leader else ():
                member = others.get(number)
                if member is not None and member.partition_epoch <= leader.partition_epoch:
                    limit = min(leader.high_watermark, member.log.log_end_offset)
                    disk, is_excused = self._cluster.machines[number].disk, number in self._brokers.excused
                    self._chains.holds(number, member, key, member.log, limit, disk, is_excused=is_excused)

    def look_anew(self, number: int) -> None:
        """At everything that this node holds."""
        self._chains.forget(number)

    def is_compacted(self, topic_id: bytes, index: int) -> bool:
        """Whether this was so at any time until now."""
        return self._chains.is_compacted((topic_id, index))

    def _look_at_platters(self, leader: Partition, high_watermark: int) -> None:
        def is_excused(member: int) -> bool:
            has_yet_to_hear = not self._is_durable_on(member, leader) or self._counts_from_before(member, leader)
            return has_yet_to_hear or member in self._brokers.excused or self._has_moved_on(leader, member)

        place = Place(leader.topic, leader.index)
        if leader.log.log_start_offset > 0 or leader.config.retention_bytes >= 0:
            self._trimmed[place] = None
        self._platters.committed(
            place,
            high_watermark,
            leader.isr,
            may_have_gaps=self.is_compacted(leader.topic_id, leader.index) or place in self._trimmed,
            is_excused=is_excused,
        )

    def _is_durable_on(self, member: int, leader: Partition) -> bool:
        """A changed setting reaches brokers one after the other."""
        node = self._cluster.living.get(member)
        hosted = () if node is None else getattr(node, "partitions", ())
        key = leader.topic_id, leader.index
        return all(replica.is_durable for replica in hosted if (replica.topic_id, replica.index) == key)

    def _counts_from_before(self, member: int, leader: Partition) -> bool:
        """Records a member fetched before the topic became durable still count: if it crashes now, the controller does
        not trust it."""
        follower = None if leader.followers is None else leader.followers.by_id.get(member)
        node = self._cluster.living.get(leader.node_id)
        topic = None if node is None else node.image.topics_by_id.get(leader.topic_id)
        if follower is None or topic is None or not topic.durable_from_epoch:
            return False
        return follower.end_offset > follower.claimed_offset

    def _has_moved_on(self, leader: Partition, member: int) -> bool:
        """The topic was deleted, or the replica moved away, and this leader does not know yet."""
        key = leader.topic_id.hex(), leader.index
        return key[0] in self._deleted or (key in self._replicas and member not in self._replicas[key][1])

    # -- cuts ---------------------------------------------------------------------------

    def _overhear_cut(self, cut: Any) -> Any:
        def overheard(partition: Partition, offset: int, **may_wait: bool) -> Any:
            before = partition.log.log_end_offset
            begun = cut(partition, offset, **may_wait)
            if partition.topic not in self.unclean:
                self._brokers.cut(partition.node_id, partition)
            if partition.log.log_end_offset < before:
                place = Place(partition.topic, partition.index)
                with self._judging.judging():
                    self._platters.cut(partition.node_id, place, partition.log.log_end_offset)
            return begun

        return overheard

    def _overhear_offsets(self, write: Any) -> Any:
        def overheard(files: Any, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
            process = current_process()
            number = int(process.host.rpartition("-")[2]) if process is not None else 0
            node = self._cluster.nodes.get(number)
            if name == RECOVERY_POINTS and node is not None and number not in self._brokers.excused:
                for partition in getattr(node, "partitions", ()):
                    place = Place(partition.topic, partition.index)
                    owner, recovery_point = partition.log, offsets.get(place, 0)
                    if owner.persisted_recovery_point < recovery_point <= owner.log_end_offset:
                        epochs = [entry for entry in owner.epochs.entries() if entry[1] > owner.log_start_offset]
                        with self._judging.judging():
                            self._platters.raised(number, place, recovery_point, epochs)
            write(files, name, offsets)

        return overheard

    def _overhear_divergence(self, cut: Any) -> Any:
        def overheard(partition: Partition, epoch: int, end_offset: int, **may_wait: bool) -> Any:
            owner = partition.log
            before, latest = owner.log_end_offset, owner.epochs.latest
            begun = cut(partition, epoch, end_offset, **may_wait)
            is_due = end_offset >= 0 and (latest > epoch or (latest == epoch and before > end_offset))
            if is_due and partition.log.log_end_offset >= before:
                self._judging.failed(
                    Violation(
                        "a follower cuts records its leader does not have",
                        f"{partition!r} on {partition.node_id} ends at {before} in epoch {latest}; its leader "
                        f"{partition.leader} has epoch {epoch} up to {end_offset}, and nothing was cut",
                    )
                )
            return begun

        return overheard

    def _overhear_repair(self, cut: Any) -> Any:
        async def overheard(repairs: Any, partition: Partition, offset: int) -> None:
            with self._judging.judging():
                self._check_damaged(partition, offset)
            await cut(repairs, partition, offset)

        return overheard

    def _check_damaged(self, partition: Partition, offset: int) -> None:
        """Compare with the disk, which is more reliable than the reader that reported damage."""
        owner, disk = partition.log, self._cluster.machines[partition.node_id].disk
        key = partition.topic_id, partition.index
        if self._brokers.is_in_sync(partition.node_id, key) and partition.leader >= 0:
            raise Violation(
                "a replica leaves the in-sync replicas before it is repaired",
                f"{partition!r} on {partition.node_id} is cut at {offset}; in sync are {list(partition.isr)}",
            )
        paths = [f"{owner.directory}/{name}" for name in disk.names(owner.directory) if name.endswith(".log")]
        offsets = range(owner.log_start_offset, owner.persisted_recovery_point)
        if self._chains.is_sound(key, disk, paths, offsets, partition.leader_epoch):
            raise Violation(
                "repair cuts no intact replica",
                f"{partition!r} on {partition.node_id} is cut at {offset}, but all of {owner!r} is valid",
            )

    # -- decisions ----------------------------------------------------------------------

    def _overhear_decision(self, change: Any) -> Any:
        def overheard(before: PartitionState, changed: PartitionChanged) -> PartitionState:
            key = changed.topic_id, before.index
            if before.partition_epoch >= self._replicas.get(key, (-1, ()))[0]:  # the first node to learn of it
                self._note_unclean(key, before, changed)
            state: PartitionState = change(before, changed)
            leaders = before.leader, state.leader
            self._leases.decided(key, state.leader_epoch, leaders, self._loop.world_time())
            if state.partition_epoch > self._replicas.get(key, (-1, ()))[0]:
                self._replicas[key] = state.partition_epoch, state.replicas
            return state

        return overheard

    def _note_unclean(self, key: tuple[str, int], before: PartitionState, change: PartitionChanged) -> None:
        now_s = self._loop.world_time()
        for member in before.isr:
            self._left[*key, member] = now_s
        leader = before.leader if change.leader is None else change.leader
        if leader >= 0 and leader not in (before.leader, *before.isr, *before.elr, *before.adding):
            left_s = self._left.get((*key, leader), 0.0)
            session_ms = max(node.config.broker_session_timeout_ms for node in self._cluster.nodes.values())
            known_s = now_s + 2 * session_ms / 1000 + SLACK_S
            self.elections.setdefault(key, []).append(UncleanElection(now_s, leader, left_s, known_s))

    def _overhear_election(self, change: Any) -> Any:
        def overheard(
            topic: TopicState, partition: PartitionState, wanted: Wanted, standing: Standing, *rest: Any
        ) -> PartitionChanged | None:
            asked = wanted.isr
            record: PartitionChanged | None = change(topic, partition, wanted, standing, *rest)
            if record is not None and record.leader is not None and record.leader >= 0:
                with self._judging.judging():
                    check_elected(standing.image, topic.name, partition, asked, record.leader)
            return record

        return overheard

    def _overhear_topic(self, replay: Any) -> Any:
        def overheard(image: MetadataImage, record: MetadataRecord) -> None:
            if isinstance(record, TopicDeleted):
                self._deleted[record.topic_id] = None
            replay(image, record)

        return overheard

    def _overhear_broker(self, replay: Any) -> Any:
        def overheard(image: MetadataImage, record: MetadataRecord) -> None:
            replay(image, record)
            if isinstance(record, BrokerRegistered):
                number = record.broker_id
                keys = [
                    (topic.topic_id, state.index)
                    for topic, state in image.all_partitions()
                    if number in state.elr and topic.name not in self.unclean
                ]
                with self._judging.judging():
                    self._brokers.registered(number, record.epoch, keys)

        return overheard

    # -- flushes ------------------------------------------------------------------------

    def _overhear_flush(self, flush: Any) -> Any:
        """A process without free descriptors has lost nothing and retries."""

        def overheard(owner: Any, *args: Any) -> Any:
            was_online = owner.offline is None
            result = flush(owner, *args)
            error, process = owner.offline, current_process()
            is_out = was_online and isinstance(error, OSError) and error.errno in NO_DESCRIPTOR
            if is_out and process is not None and self._cluster.is_serving(int(process.host.rpartition("-")[2])):
                story = f"{owner.directory} on {process.name}: {error}"
                self._judging.failed(Violation("missing descriptors take nothing offline", story))
            return result

        return overheard

    # -- leases -------------------------------------------------------------------------

    def _overhear_append(self, append: Any) -> Any:
        def overheard(partition: Partition, *args: Any) -> int:
            offset: int = append(partition, *args)
            process = current_process()
            if process is not None:
                awake_s = self._loop.world_time() - process.slept_ns / NS
                session_s = self._cluster.nodes[partition.node_id].config.broker_session_timeout_ms / 1000
                name, key = f"{partition.topic}-{partition.index}", (partition.topic_id.hex(), partition.index)
                with self._judging.judging():
                    self._leases.appended(partition.node_id, name, key, partition.leader_epoch, awake_s, session_s)
                    if partition.host.lease is not None:
                        self._leases.takes_in(process.name, name, self._loop.time(), session_s)
            return offset

        return overheard

    def _overhear_heartbeat(self, heartbeat: Any) -> Any:
        async def overheard(access: Any, *args: Any, **named: Any) -> Any:
            sent_s = self._loop.time()
            answer = await heartbeat(access, *args, **named)
            if answer.is_caught_up and not answer.is_fenced:
                self._answered(sent_s)
            return answer

        return overheard

    def _overhear_registration(self, register: Any) -> Any:
        """A session begins when the broker reads its registration. Before that it leads nothing."""

        async def overheard(lifecycle: Any) -> None:
            await register(lifecycle)
            self._answered(self._loop.time())

        return overheard

    def may_not_know(self, number: int, topic: str, key: str) -> bool:
        """Whether this broker was the coordinator of `key` until a short while ago, and may not know that it no longer
        is.
        """
        process = self._cluster.machines[number].process
        awake_s = self._loop.world_time() - (process.slept_ns / NS if process is not None else 0)
        for node in self._cluster.nodes.values():
            known = node.membership.image.topics.get(topic)
            if known is not None:
                asked = self._cluster.nodes.get(number)  # none: it was stopped after its answer
                session_s = self._cluster.session_s if asked is None else asked.config.broker_session_timeout_ms / 1000
                place = known.topic_id.hex(), partition_of(key, len(known.partitions))
                return self._leases.may_not_know(place, number, awake_s, session_s)
        return False

    def _answered(self, sent_s: float) -> None:
        process = current_process()
        if process is not None:
            self._leases.answered(process.name, sent_s)


def _may_have_gaps(partition: Partition) -> bool:
    return "compact" in partition.config.cleanup_policy or partition.log.cleaned_offset > 0
