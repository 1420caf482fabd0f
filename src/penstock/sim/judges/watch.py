"""Observes the nodes of a cluster while they run, without changing them, and informs the checkers.

Among the judges, only this module and the `ears` modules beside it know names of production code. It checks after a
turn of the loop, at most every few milliseconds of virtual time. Must not know: clients, faults. Invariant: nothing
here changes what nodes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.coordination.groups import OFFSETS_TOPIC
from penstock.core.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC
from penstock.records.batch import BatchHeader, read_header
from penstock.replica.partition import Partition
from penstock.sim.broker import DATA, SimBroker
from penstock.sim.checks.brokers import BrokerChecker
from penstock.sim.checks.files import batches, check_equal_keys, check_equal_logs
from penstock.sim.checks.platter import PlatterChecker
from penstock.sim.checks.topics import TopicFacts
from penstock.sim.checks.unclean import UncleanElection
from penstock.sim.cluster import SimCluster, host_of
from penstock.sim.judges.history import Place, Violation
from penstock.sim.judges.judging import Judging
from penstock.sim.judges.loop_meter import LoopMeter
from penstock.sim.judges.quorum_ears import QuorumEars
from penstock.sim.judges.replica_ears import ReplicaEars
from penstock.sim.judges.transaction_ears import TransactionEars
from penstock.sim.machine.process import SimProcess, current_process
from penstock.sim.probes import Probes

LOOK_EVERY_S = 0.004
MEMBERS_EVERY = 12
"""Number of checks per check of the batches of all in-sync replicas."""


class Watch:
    def __init__(self, cluster: SimCluster, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._cluster = cluster
        self._loop = cluster.world.loop
        self._look_every_s = look_every_s
        self._next_look_s = 0.0
        self._processes: dict[int, SimProcess] = {}
        self._versions: dict[int, tuple[int, int]] = {}  # of the image last checked
        self.judging = Judging(self._loop.world_time, lambda: self._loop.steps)
        platters = PlatterChecker({number: machine.disk for number, machine in cluster.machines.items()})
        self.brokers = BrokerChecker()
        cluster.on_died = self.brokers.forget
        self._quorum_ears = QuorumEars(cluster, self.judging, platters, self._speaker)
        self.quorum = self._quorum_ears.quorum
        self.transactions = TransactionEars(cluster, self.judging)
        self._replica_ears = ReplicaEars(cluster, self.judging, self.brokers, platters, self.transactions)
        self.unclean = self._replica_ears.unclean
        """Topics that may lose committed records: see `checks.unclean`."""
        self.probes = Probes(cluster)
        self.meter = LoopMeter(self._loop, self.judging, self._is_counted_on)
        self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._loop.after_turn = self._after_turn
        try:
            with ExitStack() as stack:
                for ears in (self._quorum_ears, self._replica_ears, self.transactions, self.meter, self.probes):
                    stack.enter_context(ears.listening())
                yield
        finally:
            self._loop.after_turn = None

    def may_not_know(self, host: str, group: str) -> bool:
        """Whether the broker there was replaced as the group's coordinator so recently that it may not know."""
        return self._replica_ears.may_not_know(int(host.rpartition("-")[2]), OFFSETS_TOPIC, group)

    def excuse(self, number: int) -> None:
        """Its disk was damaged: missing records are not a broker's fault."""
        self.brokers.excused[number] = None

    def lost_metadata(self, number: int) -> None:
        """It has forgotten its votes."""
        self.quorum.emptied(number)

    def lost_disk(self, number: int) -> None:
        """Its disk is empty: missing records are not a broker's fault, and its votes are forgotten."""
        self.excuse(number)
        self.quorum.emptied(number)

    def found_damage(self, host: str, what: str) -> None:
        """A broker reports damage."""
        number = int(host.partition("#")[0].rpartition("-")[2])
        if number not in self.brokers.excused:
            self.failed(Violation("intact data is not taken for damaged", f"{host}: {what}"))

    def pardon(self) -> None:
        """All damage was repaired: from now on no node is excused, and what was repaired is judged."""
        for number in self.brokers.excused:
            self._replica_ears.look_anew(number)
        self.brokers.excused.clear()

    def failed(self, error: Exception) -> None:
        """Ends the run after the other judges have had a moment."""
        self.judging.failed(error)

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

    def _is_counted_on(self, process: SimProcess) -> bool:
        """Excludes the driver, because its reads of files are those of judges."""
        is_broker = process.host.startswith(host_of(0)[:-1])
        return is_broker and self._cluster.is_serving(int(process.host.rpartition("-")[2]))

    def _after_turn(self) -> None:
        if self.meter.work:
            self.meter.end_turn()
        if self.judging.breaches and self.judging.is_over and (verdict := self.judging.verdict) is not None:
            raise verdict.error
        now = self._loop.world_time()
        if now >= self._next_look_s:
            self._next_look_s = now + self._look_every_s
            with self.judging.judging():
                self.look()

    def look(self) -> None:
        self.looks += 1
        replicas: dict[int, list[Partition]] = {}
        unclean = self.unclean
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
                        if topic.name in self.unclean:
                            continue
                        self.brokers.look_at_image(number, topic.name, topic.topic_id, topic.partitions)
            if _part(node, "partitions") is not None:
                replicas[number] = [
                    partition
                    for hosted in node.partitions.by_name.values()
                    for partition in hosted
                    if partition is not None
                    # A log that starts again may end lower while it is not read.
                    if partition.log.offline is None
                    and not partition.log.is_being_cut
                    and partition.topic not in unclean
                ]
        self.brokers.look(replicas)
        for partitions in replicas.values():
            self.transactions.look(partitions)
        if self.looks % MEMBERS_EVERY == 0:
            self._replica_ears.look_at_members(replicas)

    # -- how the cluster is -------------------------------------------------------------

    def ailments(self) -> list[str]:
        """Reasons why the cluster is not well, one sentence each; empty if it is."""
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
                        found.append(f"{name} is led by {state.leader} according to {number}")
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
        """The leader of the metadata quorum's latest known term."""
        found: tuple[int, int] | None = None
        for number, node in self._cluster.living.items():
            membership = _part(node, "membership")
            if membership is not None and membership.quorum.is_leader:
                found = max(found or (-1, -1), (membership.quorum.term, number))
        return None if found is None else found[1]

    def led(self) -> list[tuple[int, tuple[int, ...]]]:
        """Leader and replicas of each partition with a leader, according to the controller's node."""
        number = self.controller()
        if number is None:
            return []
        topics = self._cluster.living[number].membership.image.topics.values()
        states = [state for topic in topics for state in topic.partitions]
        return [(state.leader, state.replicas) for state in states if state.leader in self._cluster.ids]

    def held_up(self, number: int) -> list[str]:
        """Replicated partitions that this node leads, by its own and the controller's metadata, and whose last records
        are not stable on its disk. None if no other leader can be elected, because too few voters have a disk that
        responds."""
        node = self._cluster.living.get(number)
        controller = self.controller()
        if node is None or controller is None or not self._can_decide_without(number):
            return []
        topics = self._cluster.living[controller].image.topics
        return [
            f"{partition.topic}-{partition.index}"
            for partition in _part(node, "partitions") or ()
            if partition.is_leader and len(partition.replicas) > 1 and partition.is_durable
            if partition.log.stable_offset < partition.log.log_end_offset
            # The node itself may not learn of it: its metadata log is on the same disk.
            if partition.topic in topics and topics[partition.topic].partitions[partition.index].leader == number
        ]

    def _can_decide_without(self, number: int) -> bool:
        return all(
            2 * sum(voter != number for voter in membership.quorum.status.configuration.voters)
            > len(membership.quorum.status.configuration.voters)
            for node in self._cluster.living.values()
            if (membership := _part(node, "membership")) is not None
        )

    def offline(self) -> list[int]:
        """Nodes with a log that stays offline until a restart."""
        return [
            number
            for number, node in self._cluster.living.items()
            if any(partition.log.offline is not None for partition in _part(node, "partitions") or ())
        ]

    def stalled(self, what: str) -> None:
        self.failed(Violation("other brokers take over from a hung disk", what))

    def high_watermarks(self, number: int) -> dict[Place, int]:
        """High watermarks of this node's replicas, according to the leaders. While the cluster is well."""
        living = self._cluster.living
        return {
            Place(topic.name, state.index): living[state.leader].partitions.get(topic.name, state.index).high_watermark
            for topic in living[number].image.topics.values()
            for state in topic.partitions
            if number in state.replicas and state.leader in living
        }

    def undisturbed(self) -> frozenset[Place]:
        """Partitions that one process led the whole time."""
        image = next(iter(self._cluster.living.values())).image
        return frozenset(
            Place(topic.name, state.index)
            for topic in image.topics.values()
            for state in topic.partitions
            if state.leader_epoch == 0 and self._cluster.machines[state.leader].incarnations == 1
        )

    def leader_epochs(self, place: Place) -> frozenset[int]:
        """The state of the cluster as known to living brokers."""
        images = [node.image for node in self._cluster.living.values()]
        return frozenset(image.topics[place.topic].partitions[place.partition].leader_epoch for image in images)

    def leader_log(self, place: Place) -> Iterator[tuple[BatchHeader, bytes]]:
        """The committed records, from the disk of the leader. While the cluster is well."""
        living = self._cluster.living
        state = next(iter(living.values())).image.topics[place.topic].partitions[place.partition]
        high_watermark = living[state.leader].partitions.get(place.topic, place.partition).high_watermark
        for next_offset, batch in batches(self._cluster.machines[state.leader].disk, f"{DATA}/{place}"):
            if next_offset <= high_watermark:
                yield read_header(batch), batch

    def log_starts(self, place: Place) -> dict[int, int]:
        """The log start offset of every replica. While the cluster is well."""
        living = self._cluster.living
        state = next(iter(living.values())).image.topics[place.topic].partitions[place.partition]
        return {
            number: living[number].partitions.get(place.topic, place.partition).log.log_start_offset
            for number in state.replicas
        }

    def least_bytes(self, place: Place) -> int:
        """The size of the smallest replica. While the cluster is well."""
        disks = [self._cluster.machines[number].disk for number in self.log_starts(place)]
        return min(sum(len(data) for _, data in batches(disk, f"{DATA}/{place}")) for disk in disks)

    # -- in the end ---------------------------------------------------------------------

    def topics(self) -> dict[str, TopicFacts]:
        """While the cluster is well, when all nodes agree."""
        image = next(iter(self._cluster.living.values())).image
        return {
            name: TopicFacts(
                tuple(state.replicas for state in topic.partitions), image.configs.get((RESOURCE_TOPIC, name), {})
            )
            for name, topic in image.topics.items()
        }

    def broker_settings(self) -> dict[str, Mapping[str, str]]:
        """By node id, and for all brokers under an empty name. While the cluster is well."""
        image = next(iter(self._cluster.living.values())).image
        return {name: settings for (kind, name), settings in image.configs.items() if kind == RESOURCE_BROKER}

    def unclean_elections(self, place: Place) -> list[UncleanElection]:
        """While the cluster is well."""
        topic = next(iter(self._cluster.living.values())).image.topics[place.topic]
        return self._replica_ears.elections.get((topic.topic_id.hex(), place.partition), [])

    def voters(self) -> dict[int, tuple[int, ...]]:
        """The voters of the metadata quorum, as each node knows them."""
        return {
            number: node.membership.quorum.status.configuration.voters for number, node in self._cluster.living.items()
        }

    def check_ending(self) -> None:
        """When the cluster is well and no client writes: replicas are equal."""
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
                if "compact" in policy or self._replica_ears.is_compacted(topic.topic_id, state.index):
                    check_equal_keys(place, logs, high_watermark)
                else:
                    check_equal_logs(place, logs, high_watermark, max(self.log_starts(place).values()))


def _part(node: SimBroker, name: str) -> Any:
    """A part of a node that may still be starting."""
    return getattr(node, name, None)
