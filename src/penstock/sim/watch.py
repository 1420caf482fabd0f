"""Looking at the nodes of a cluster while they run, without touching them, and telling the checkers.

This is the one place that knows what production calls things: `Node.partitions`, `Node.membership`, and what is
overheard: the metadata's state machine, where high watermarks move, where logs are cut. It looks after a turn of the
loop, at most every few milliseconds of virtual time. Must not know: clients, faults. Invariant: nothing it does changes
what nodes do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.cluster.metadata_machine import MetadataMachine
from penstock.cluster.quorum import Quorum
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage, PartitionState
from penstock.core.metadata.records import MetadataRecord, PartitionChanged, TopicDeleted
from penstock.core.raft.messages import Message, VoteResponse
from penstock.replica.partition import Partition
from penstock.sim.broker import DATA, SimBroker
from penstock.sim.checks.brokers import BrokerChecker
from penstock.sim.checks.chains import ChainChecker
from penstock.sim.checks.files import batches, check_equal_keys, check_equal_logs
from penstock.sim.checks.leases import LeaseChecker
from penstock.sim.checks.platter import PlatterChecker
from penstock.sim.checks.quorum import QuorumChecker
from penstock.sim.checks.snapshots import SnapshotChecker
from penstock.sim.checks.topics import TopicFacts
from penstock.sim.cluster import SimCluster
from penstock.sim.history import Place, Violation
from penstock.sim.loop import NS
from penstock.sim.places import replaced
from penstock.sim.probes import Probes
from penstock.sim.process import SimProcess, current_process

LOOK_EVERY_S = 0.004
MACHINE = "penstock.cluster.metadata_machine:MetadataMachine"
QUORUM = "penstock.cluster.quorum:Quorum"
LOG = "penstock.replica.committed_log:CommittedLog"


class Watch:
    def __init__(self, cluster: SimCluster, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._cluster = cluster
        self._loop = cluster.world.loop
        self._look_every_s = look_every_s
        self._next_look_s = 0.0
        self._processes: dict[int, SimProcess] = {}
        self._versions: dict[int, tuple[int, int]] = {}  # of the image that was last looked at
        self._trimmed: dict[Place, None] = {}  # older segments may be left behind a gap: the log begins after it
        self._deleted: dict[str, None] = {}  # topic ids, by whoever applies it first
        self._replicas: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = {}  # the newest: partition epoch, replicas
        self._failure: Exception | None = None
        self.brokers = BrokerChecker()
        self.chains = ChainChecker()
        self.quorum = QuorumChecker()
        self.leases = LeaseChecker()
        self.platters = PlatterChecker({number: machine.disk for number, machine in cluster.machines.items()})
        self.probes = Probes(cluster)
        self.snapshots = SnapshotChecker()
        self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._loop.after_turn = self._after_turn
        try:
            with self._overhearing(), self.probes.listening():
                yield
        finally:
            self._loop.after_turn = None

    @contextmanager
    def _overhearing(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in (
                (f"{MACHINE}.apply", self._overheard_apply),
                (f"{MACHINE}.restore", self._overheard_restore),
                (f"{QUORUM}.start", self._overheard_start),
                ("penstock.cluster.raft_driver:RaftDriver._send", self._overheard_votes),
                (f"{LOG}._committed", self._overheard_commit),
                (f"{LOG}.truncate_to", self._overheard_cut),
                (f"{LOG}.truncate_fully_and_start_at", self._overheard_cut),
                ("penstock.core.metadata.image:_change", self._overheard_decision),
                ("penstock.core.metadata.image:MetadataImage._replay_topic", self._overheard_topic),
                ("penstock.replica.partition:Partition.append", self._overheard_append),
            ):
                stack.enter_context(replaced(place, make))
            yield

    def _overheard_apply(self, apply: Any) -> Any:
        def overheard(machine: MetadataMachine, index: int, data: bytes) -> None:
            with self._judging():
                self.quorum.applied(self._speaker(), index, bytes(data))
                if self.platters.is_first(index):
                    self.platters.applied(index, self._voters_since(index))
            self.snapshots.applied(index, bytes(data))
            apply(machine, index, data)

        return overheard

    def _overheard_restore(self, restore: Any) -> Any:
        def overheard(machine: MetadataMachine, index: int, data: bytes) -> None:
            node = self._speaker()
            self.quorum.restored(node, index)
            with self._judging():
                self.snapshots.restored(node, index, bytes(data))
            restore(machine, index, data)

        return overheard

    def _voters_since(self, index: int) -> list[tuple[int, ...]]:
        """Who may have committed it: as the node knows it that applies it first, which is the one that led then."""
        node = self._cluster.nodes[self._speaker()]
        configurations = node.membership.quorum._core.node.configurations
        return [configuration.voters for configuration in configurations.since(index)]

    def _overheard_start(self, start: Any) -> Any:
        def overheard(quorum: Quorum) -> None:
            node = self._speaker()
            with self._judging():
                self.quorum.started(node, quorum.term)
            start(quorum)

        return overheard

    def _overheard_votes(self, send: Any) -> Any:
        def overheard(quorum: Quorum, messages: list[Message]) -> None:
            for message in messages:
                if isinstance(message, VoteResponse) and message.granted:
                    self.quorum.promised(quorum.node_id, message.term)
            send(quorum, messages)

        return overheard

    def _overheard_commit(self, committed: Any) -> Any:
        def overheard(partition: Partition, high_watermark: int) -> None:
            self.brokers.moved(partition.node_id, partition)
            if partition.is_leader:
                with self._judging():
                    self._look_at_chain(partition, high_watermark)
                    if partition.is_durable:
                        self._look_at_platters(partition, high_watermark)
            committed(partition, high_watermark)

        return overheard

    def _overheard_cut(self, cut: Any) -> Any:
        def overheard(partition: Partition, offset: int) -> None:
            cut(partition, offset)
            self.brokers.cut(partition.node_id, partition)

        return overheard

    def _overheard_decision(self, change: Any) -> Any:
        def overheard(state: PartitionState, changed: PartitionChanged) -> None:
            change(state, changed)
            key = changed.topic_id, state.index
            self.leases.decided(key, state.leader_epoch, self._loop.world_time())
            if state.partition_epoch > self._replicas.get(key, (-1, ()))[0]:
                self._replicas[key] = state.partition_epoch, state.replicas

        return overheard

    def _overheard_topic(self, replay: Any) -> Any:
        def overheard(image: MetadataImage, record: MetadataRecord) -> None:
            if isinstance(record, TopicDeleted):
                self._deleted[record.topic_id] = None
            replay(image, record)

        return overheard

    def _overheard_append(self, append: Any) -> Any:
        def overheard(partition: Partition, *args: Any) -> int:
            offset: int = append(partition, *args)
            process = current_process()
            if process is not None:
                awake_s = self._loop.world_time() - process.slept_ns / NS
                session_s = self._cluster.nodes[partition.node_id].config.broker_session_timeout_ms / 1000
                name, key = f"{partition.topic}-{partition.index}", (partition.topic_id.hex(), partition.index)
                with self._judging():
                    self.leases.appended(partition.node_id, name, key, partition.leader_epoch, awake_s, session_s)
            return offset

        return overheard

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Inside of a node, which would take the error for its own."""
        try:
            yield
        except Violation as violation:
            self.failed(violation)

    def _look_at_chain(self, leader: Partition, high_watermark: int) -> None:
        node = leader.node_id
        if node not in self.brokers.excused and not _may_have_gaps(leader):
            key, disk = (leader.topic_id, leader.index), self._cluster.machines[node].disk
            self.chains.committed(node, repr(leader), key, leader.log, high_watermark, disk)

    def _look_at_platters(self, leader: Partition, high_watermark: int) -> None:
        def is_excused(member: int) -> bool:
            return member in self.brokers.excused or self._has_moved_on(leader, member)

        place = Place(leader.topic, leader.index)
        if leader.log.log_start_offset > 0 or leader.config.retention_bytes >= 0:
            self._trimmed[place] = None
        self.platters.committed(
            place,
            high_watermark,
            leader.isr,
            may_have_gaps=_may_have_gaps(leader) or place in self._trimmed,
            is_excused=is_excused,
        )

    def _has_moved_on(self, leader: Partition, member: int) -> bool:
        """The topic was deleted, or the replica moved away, and this leader has not heard of it yet."""
        key = leader.topic_id.hex(), leader.index
        return key[0] in self._deleted or (key in self._replicas and member not in self._replicas[key][1])

    def excuse(self, number: int) -> None:
        """Its disk was damaged: what it lacks is no broker's fault."""
        self.brokers.excused[number] = None

    def found_damage(self, host: str, what: str) -> None:
        """A broker says so."""
        number = int(host.partition("#")[0].rpartition("-")[2])
        if number not in self.brokers.excused:
            self.failed(Violation("what is sound is not taken for damaged", f"{host}: {what}"))

    def pardon(self) -> None:
        """All damage was repaired: from here on nobody is excused."""
        self.brokers.excused.clear()

    def failed(self, error: Exception) -> None:
        """Ends the run after this turn."""
        if self._failure is None:
            self._failure = error

    def _speaker(self) -> int:
        process = current_process()
        assert process is not None, "a node runs in a process"
        self._notice(int(process.host.rpartition("-")[2]), process)
        return int(process.host.rpartition("-")[2])

    def _notice(self, number: int, process: SimProcess) -> None:
        if self._processes.get(number) is not process:
            self._processes[number] = process
            self._versions.pop(number, None)
            self.brokers.forget(number)
            self.quorum.forget(number)

    def _after_turn(self) -> None:
        if self._failure is not None:
            raise self._failure
        now = self._loop.time()
        if now >= self._next_look_s:
            self._next_look_s = now + self._look_every_s
            self.look()

    def look(self) -> None:
        self.looks += 1
        replicas: dict[int, list[Partition]] = {}
        for number, node in self._cluster.living.items():
            process = self._cluster.machines[number].process
            assert process is not None
            self._notice(number, process)
            membership = _part(node, "membership")
            if membership is not None:
                self.quorum.look(number, membership.quorum.term, membership.quorum.is_leader)
                image = membership.image
                if self._versions.get(number) != (id(image), image.partitions_version):
                    self._versions[number] = id(image), image.partitions_version
                    for topic in image.topics.values():
                        self.brokers.look_at_image(number, topic.name, topic.topic_id, topic.partitions)
            if _part(node, "partitions") is not None:
                replicas[number] = [partition for partition in node.partitions if partition.log.offline is None]
        self.brokers.look(replicas)

    # -- how the cluster is -------------------------------------------------------------

    def ailments(self) -> list[str]:
        """What keeps the cluster from being well, one sentence each; none: it is."""
        living = self._cluster.living
        found = [f"node {number} is down" for number in self._cluster.started if number not in living]
        images = {n: node.image for n, node in living.items() if _part(node, "image") is not None}
        if len(images) < len(living):
            return [*found, "a node has no metadata yet"]
        for number, image in images.items():
            for topic in image.topics.values():
                for state in topic.partitions:
                    name = f"{topic.name}-{state.index}"
                    if state.leader not in living:
                        found.append(f"{name} is led by {state.leader}, says {number}")
                    elif sorted(state.isr) != sorted(state.replicas):
                        found.append(f"{name}: in sync {list(state.isr)} of {list(state.replicas)}, says {number}")
                    elif state.is_reassigning:
                        found.append(f"{name}: moves to {list(state.target_replicas)}, says {number}")
        if not found:
            found += self._unequal_images()
        return found

    def _unequal_images(self) -> list[str]:
        living = list(self._cluster.living.items())
        first, image = living[0][0], living[0][1].image.snapshot_records()
        return [
            f"nodes {first} and {number} have different metadata"
            for number, node in living[1:]
            if node.image.snapshot_records() != image
        ]

    def is_well(self) -> bool:
        return not self.ailments()

    def controller(self) -> int | None:
        """The leader of the metadata quorum's latest term, as far as anybody knows."""
        found: tuple[int, int] | None = None
        for number, node in self._cluster.living.items():
            membership = _part(node, "membership")
            if membership is not None and membership.quorum.is_leader:
                found = max(found or (-1, -1), (membership.quorum.term, number))
        return None if found is None else found[1]

    def led(self) -> list[tuple[int, tuple[int, ...]]]:
        """Leader and replicas of each partition that is led, as the controller's node sees it."""
        number = self.controller()
        if number is None:
            return []
        topics = self._cluster.living[number].membership.image.topics.values()
        states = [state for topic in topics for state in topic.partitions]
        return [(state.leader, state.replicas) for state in states if state.leader in self._cluster.ids]

    def high_watermarks(self, number: int) -> dict[Place, int]:
        """Of what this node has a replica of, as the leaders have it. While the cluster is well."""
        living = self._cluster.living
        return {
            Place(topic.name, state.index): living[state.leader].partitions.get(topic.name, state.index).high_watermark
            for topic in living[number].image.topics.values()
            for state in topic.partitions
            if number in state.replicas and state.leader in living
        }

    def undisturbed(self) -> frozenset[Place]:
        """Partitions that one process led from beginning to end."""
        image = next(iter(self._cluster.living.values())).image
        return frozenset(
            Place(topic.name, state.index)
            for topic in image.topics.values()
            for state in topic.partitions
            if state.leader_epoch == 0 and self._cluster.machines[state.leader].incarnations == 1
        )

    def leader_epochs(self, place: Place) -> frozenset[int]:
        """As living brokers know it."""
        images = [node.image for node in self._cluster.living.values()]
        return frozenset(image.topics[place.topic].partitions[place.partition].leader_epoch for image in images)

    def log_starts(self, place: Place) -> dict[int, int]:
        """Of every replica. While the cluster is well."""
        living = self._cluster.living
        state = next(iter(living.values())).image.topics[place.topic].partitions[place.partition]
        return {
            number: living[number].partitions.get(place.topic, place.partition).log.log_start_offset
            for number in state.replicas
        }

    def least_bytes(self, place: Place) -> int:
        """Of the smallest replica. While the cluster is well."""
        disks = [self._cluster.machines[number].disk for number in self.log_starts(place)]
        return min(sum(len(data) for _, data in batches(disk, f"{DATA}/{place}")) for disk in disks)

    # -- in the end ---------------------------------------------------------------------

    def topics(self) -> dict[str, TopicFacts]:
        """While the cluster is well: all have the same."""
        image = next(iter(self._cluster.living.values())).image
        return {
            name: TopicFacts(
                tuple(state.replicas for state in topic.partitions), image.configs.get((RESOURCE_TOPIC, name), {})
            )
            for name, topic in image.topics.items()
        }

    def voters(self) -> dict[int, tuple[int, ...]]:
        """Of the metadata quorum, as each node has them."""
        return {
            number: node.membership.quorum.status.configuration.voters for number, node in self._cluster.living.items()
        }

    def check_ending(self) -> None:
        """Once the cluster is well and nobody writes: replicas hold the same."""
        image = next(iter(self._cluster.living.values())).image
        for topic in image.topics.values():
            policy = image.configs.get((RESOURCE_TOPIC, topic.name), {}).get("cleanup.policy", "")
            for state in topic.partitions:
                place = Place(topic.name, state.index)
                logs = {
                    number: (self._cluster.machines[number].disk, f"{DATA}/{place}")
                    for number in state.replicas
                    if number in self._cluster.living and number not in self.brokers.excused
                }
                leader = self._cluster.living.get(state.leader)
                if leader is None:
                    raise Violation("every partition has a leader", f"{place} has none in the end")
                high_watermark = leader.partitions.get(place.topic, place.partition).high_watermark
                if "compact" in policy:
                    check_equal_keys(place, logs, high_watermark)
                else:
                    check_equal_logs(place, logs, high_watermark, max(self.log_starts(place).values()))


def _may_have_gaps(partition: Partition) -> bool:
    return "compact" in partition.config.cleanup_policy or partition.log.cleaned_offset > 0


def _part(node: SimBroker, name: str) -> Any:
    """Of a node that may still be starting."""
    return getattr(node, name, None)
