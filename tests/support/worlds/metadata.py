"""A cluster made of its metadata alone, on a seed: brokers crash, leaders append, followers copy, replicas are moved.

The controller's decisions are the real ones; logs are lists of (leader epoch, number). Every entry is encoded, decoded,
replayed and judged: what must hold of a partition's state, and that a leader has all that was ever committed, unless
losing it was allowed. At the end everything is healed, and then everything must be in order.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.core.metadata import brokers, decisions, partitions, plans, reassignment
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage, PartitionState, TopicState
from penstock.core.metadata.records import (
    ConfigChanged,
    MetadataRecord,
    TopicDeleted,
    decode_entry,
    encode_entry,
)
from penstock.core.metadata.requests import ElectionKind, IsrChange, Registration, ReplicaEpoch
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic

Key = tuple[bytes, int]
BROKERS = (1, 2, 3, 4, 5)
RACKS = ("a", "b", "c")


@dataclass
class Broker:
    is_running: bool = False
    life: int = 0
    epoch: int = -1  # of the last clean end, as in Kafka's clean-shutdown file
    directory: int = 0


@dataclass
class Logs:
    """Of one partition: what each broker has, and what was committed."""

    of: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    committed: list[tuple[int, int]] = field(default_factory=list)
    fetched: dict[int, int] = field(default_factory=dict)  # what the leader knows of each follower
    epoch_start: int = 0
    target: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    is_lost: bool = False  # those that had it have crashed without a flush, or their disks were replaced


class Violation(AssertionError):
    pass


class MetadataWorld:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.image = MetadataImage()
        self.entries: list[bytes] = []
        self.brokers = {broker: Broker() for broker in BROKERS}
        self.logs: dict[Key, Logs] = {}
        self.settings: dict[str, dict[str, int]] = {}
        self.numbers = 0
        self.is_racked = self.random.random() < 0.5
        self.story: list[str] = []

    # -- what is configured -------------------------------------------------------------

    def min_isr(self, topic: str) -> int:
        return self.settings[topic]["min_isr"]

    def unclean_ok(self, topic: str) -> bool:
        return bool(self.settings[topic]["unclean"])

    def is_durable(self, topic: str) -> bool:
        return bool(self.settings[topic]["durable"])

    # -- running ------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for broker in BROKERS[:3]:
            self.restart(broker)
            self.unfence(broker)
        actions = [
            (self.create_topic, 2),
            (self.add_partitions, 1),
            (self.delete_topic, 0.3),
            (self.change_setting, 1),
            (self.kill_one, 4),
            (self.restart_one, 5),
            (self.unfence_one, 8),
            (self.fence_one, 5),
            (self.shut_down_one, 3),
            (self.unregister_one, 0.3),
            (self.elect_one, 2),
            (self.balance_leaders, 1),
            (self.reassign_one, 4),
            (self.cancel_one, 2),
            (self.drain_one, 0.5),
            (self.append_one, 20),
            (self.fetch_one, 40),
            (self.alter_isr_one, 20),
        ]
        choices, weights = [action for action, _ in actions], [weight for _, weight in actions]
        for _ in range(steps):
            self.random.choices(choices, weights)[0]()
        self.heal()

    def apply(
        self, records: Sequence[MetadataRecord], *, forgivable: bool = False, vouched: tuple[int, ...] = ()
    ) -> None:
        """`forgivable`: committed records may be lost. `vouched`: a leader says that these are in sync."""
        entry = encode_entry(records)
        if decode_entry(entry) != list(records):
            raise Violation(f"{records} do not survive the log")
        before = {key: dataclasses.replace(state) for key, (_, state) in self.by_key().items()}
        self.entries.append(entry)
        for record in records:
            self.story.append(str(record))
            self.image.replay(record)
        for key, (topic, state) in self.by_key().items():
            logs = self.logs.setdefault(key, Logs())
            self.judge(topic, state, logs, before.get(key), forgivable, vouched)

    def by_key(self) -> dict[Key, tuple[TopicState, PartitionState]]:
        return {(topic.topic_id, each.index): (topic, each) for topic, each in self.image.all_partitions()}

    # -- judging ------------------------------------------------------------------------

    def judge(
        self,
        topic: TopicState,
        state: PartitionState,
        logs: Logs,
        before: PartitionState | None,
        forgivable: bool,
        vouched: tuple[int, ...],
    ) -> None:
        def demand(condition: bool, what: str) -> None:
            if not condition:
                raise Violation(f"{topic.name}: {what}: {before} became {state}")

        image = self.image
        demand(state.leader == -1 or state.leader in state.isr, "the leader is not in the ISR")
        demand(state.leader == -1 or image.is_live(state.leader), "the leader is fenced")
        demand(all(image.is_live(replica) for replica in state.isr), "a fenced replica is in the ISR")
        demand(not state.isr or state.leader != -1, "replicas are in sync with nobody")
        for name in ("replicas", "isr", "elr", "adding", "removing"):
            members = getattr(state, name)
            demand(len(set(members)) == len(members), f"{name} names one twice")
            demand(set(members) <= set(state.replicas), f"{name} is not among the replicas")
        demand(not set(state.elr) & set(state.isr), "ELR and ISR overlap")
        minimum = state.effective_min_isr(self.min_isr(topic.name))
        demand(not state.elr or len(state.isr) < minimum, "an ELR beside an ISR that commits")
        if before is None:
            logs.of = {replica: [] for replica in state.replicas}
            return
        if before == state:
            return
        demand(state.partition_epoch > before.partition_epoch, "the partition epoch did not grow")
        has_moved = state.leader != before.leader
        demand(state.leader_epoch >= before.leader_epoch + has_moved, "the leader epoch did not grow")
        demand(
            state.leader_epoch > before.leader_epoch or set(before.replicas) <= set(state.replicas),
            "a replica was removed within an epoch",
        )
        self.judge_holders(topic, state, logs, before, forgivable, {*before.isr, *before.elr, *vouched})
        if before.is_reassigning and not state.is_reassigning:
            demand(state.replicas in (logs.target, logs.original), f"neither {logs.target} nor {logs.original}")
        new = set(state.replicas) - set(before.replicas)
        demand(new <= set(logs.target), "a replica nobody asked for")
        for replica in new:
            logs.of[replica] = []
        for replica in set(before.replicas) - set(state.replicas):
            del logs.of[replica]

    def judge_holders(
        self,
        topic: TopicState,
        state: PartitionState,
        logs: Logs,
        before: PartitionState,
        forgivable: bool,
        holders: set[int],
    ) -> None:
        if not state.isr and not state.elr and holders:
            if not forgivable and not self.unclean_ok(topic.name):
                raise Violation(f"{topic.name}: all that had the data are forgotten: {before} became {state}")
            logs.is_lost = True
        if state.leader_epoch == before.leader_epoch:
            return
        logs.fetched = {}
        if state.leader == -1:
            return
        log = logs.of[state.leader]
        logs.epoch_start = len(log)
        if state.leader in holders:
            # One that is dead and not fenced yet may be elected; it must register anew before it can act.
            if self.brokers[state.leader].is_running and log[: len(logs.committed)] != logs.committed:
                raise Violation(
                    f"{topic.name}: leader {state.leader} misses committed records: {before} became {state}"
                )
            return
        if not (self.unclean_ok(topic.name) or forgivable or logs.is_lost):
            raise Violation(f"{topic.name}: an unclean election nobody allowed: {before} became {state}")
        while logs.committed != log[: len(logs.committed)]:
            logs.committed.pop()
        logs.is_lost = False

    # -- brokers ------------------------------------------------------------------------

    def pick(self, *, running: bool | None = None, registered: bool | None = None) -> int | None:
        found = [
            broker
            for broker in BROKERS
            if running in (None, self.brokers[broker].is_running) and registered in (None, broker in self.image.brokers)
        ]
        return self.random.choice(found) if found else None

    def kill_one(self) -> None:
        broker = self.pick(running=True)
        if broker is None:
            return
        mine = self.brokers[broker]
        mine.is_running, mine.epoch = False, -1
        for (topic_id, _), logs in self.logs.items():
            topic = self.image.topics_by_id.get(topic_id)
            log = logs.of.get(broker)
            if topic is not None and log and not self.is_durable(topic.name):
                del log[self.random.randint(0, len(log)) :]

    def restart_one(self) -> None:
        broker = self.pick(running=False)
        if broker is None:
            return
        if self.random.random() < 0.1:
            self.brokers[broker].directory += 1
            self.brokers[broker].epoch = -1
            for logs in self.logs.values():
                if broker in logs.of:
                    logs.of[broker] = []
        self.restart(broker)

    def restart(self, broker: int) -> None:
        mine = self.brokers[broker]
        known = self.image.brokers.get(broker)
        if known is not None and not mine.is_running and known.directory_id == str(mine.directory):
            kept = known.epoch == mine.epoch
        else:
            kept = False
        mine.life += 1
        mine.is_running = True
        before = {key: dataclasses.replace(state) for key, (_, state) in self.by_key().items()}
        records = brokers.register(
            self.image,
            Registration(
                broker,
                "",
                bytes([broker, mine.life % 256, *bytes(14)]),
                {"PLAINTEXT": ("host", 9000 + broker)},
                RACKS[broker % 3] if self.is_racked else None,
                mine.epoch,
                directory_id=str(mine.directory),
            ),
            self,
            is_clean=mine.epoch != -1,
        )
        is_other_disk = known is None or known.directory_id != str(mine.directory)
        forgivable = is_other_disk or not kept
        if forgivable and not is_other_disk:
            for key, state in before.items():
                topic = self.image.topics_by_id[key[0]]
                if self.is_durable(topic.name) and not self.unclean_ok(topic.name):
                    self.demand_kept(records, topic, state, broker)
        self.apply(records, forgivable=forgivable)

    def demand_kept(
        self, records: Sequence[MetadataRecord], topic: TopicState, state: PartitionState, broker: int
    ) -> None:
        """A crash takes no eligibility on a durable topic."""
        shadow = MetadataImage()
        for record in (*self.image.snapshot_records(), *records):
            shadow.replay(record)
        after = shadow.topics[topic.name].partitions[state.index]
        if (state.isr or state.elr) and not (after.isr or after.elr):
            raise Violation(f"{topic.name} is durable and lost {broker}: {state} became {after}")

    def unfence_one(self) -> None:
        broker = self.pick(running=True, registered=True)
        if broker is not None:
            self.unfence(broker)

    def unfence(self, broker: int) -> None:
        self.apply(brokers.unfence(self.image, broker, self))

    def fence_one(self) -> None:
        broker = self.pick(registered=True)
        if broker is not None:
            self.apply(brokers.fence(self.image, broker, self))

    def shut_down_one(self) -> None:
        broker = self.pick(running=True, registered=True)
        if broker is None:
            return
        self.apply(brokers.begin_controlled_shutdown(self.image, broker, self))
        if brokers.awaits_successor(self.image, broker) == 0 and self.random.random() < 0.7:
            self.apply(brokers.fence(self.image, broker, self))
            self.brokers[broker].is_running = False
            self.brokers[broker].epoch = self.image.brokers[broker].epoch

    def unregister_one(self) -> None:
        broker = self.pick(running=False, registered=True)
        if broker is not None and len(self.image.brokers) > 3:
            self.apply(brokers.unregister(self.image, broker, self))

    # -- topics -------------------------------------------------------------------------

    def create_topic(self) -> None:
        if len(self.image.topics) >= 4:
            return
        name = f"t{len(self.entries)}"
        self.settings[name] = {
            "min_isr": self.random.randint(1, 3),
            "unclean": self.random.random() < 0.2,
            "durable": self.random.random() < 0.6,
        }
        topic_id = self.random.randbytes(16)
        self.attempt(
            lambda: decisions.create_topic(
                self.image, [], NewTopic(name, self.random.randint(1, 3), self.random.randint(1, 3)), topic_id
            ),
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )

    def add_partitions(self) -> None:
        topic = self.a_topic()
        if topic is not None and len(topic.partitions) < 5:
            count = len(topic.partitions) + 1
            self.attempt(
                lambda: decisions.create_partitions(self.image, [], topic.name, count, None),
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )

    def delete_topic(self) -> None:
        topic = self.a_topic()
        if topic is not None:
            self.apply([TopicDeleted(topic.topic_id.hex())])

    def change_setting(self) -> None:
        topic = self.a_topic()
        if topic is None:
            return
        name, settings = topic.name, self.settings[topic.name]
        if self.random.random() < 0.5:
            settings["unclean"] = not settings["unclean"]
            self.apply(partitions.elect_leaderless(self.image, self))
            return
        if self.random.random() < 0.3:
            if any(self.image.is_live(broker) and not mine.is_running for broker, mine in self.brokers.items()):
                return  # of a crash that nobody has noticed yet the change cannot know
            now_durable = [] if settings["durable"] else [name]
            if self.attempt(
                lambda: partitions.settings_changed(self.image, [name], self, now_durable),
                ErrorCode.INVALID_CONFIG,
            ):
                settings["durable"] = not settings["durable"]
            return
        settings["min_isr"] = self.random.randint(1, 3)
        change = ConfigChanged(RESOURCE_TOPIC, name, {"min.insync.replicas": str(settings["min_isr"])})
        self.apply([change, *partitions.settings_changed(self.image, [name], self)])

    def a_topic(self) -> TopicState | None:
        topics = list(self.image.topics.values())
        return self.random.choice(topics) if topics else None

    def a_partition(self) -> tuple[TopicState, PartitionState, Logs] | None:
        found = list(self.image.all_partitions())
        if not found:
            return None
        topic, state = self.random.choice(found)
        return topic, state, self.logs[topic.topic_id, state.index]

    def attempt(self, decide: object, *refusals: ErrorCode, forgivable: bool = False) -> bool:
        assert callable(decide)
        try:
            records = decide()
        except ApiError as error:
            if error.code not in refusals:
                raise
            return False
        self.apply(records, forgivable=forgivable)
        return True

    # -- leaders and replicas -----------------------------------------------------------

    def elect_one(self) -> None:
        found = self.a_partition()
        if found is None:
            return
        topic, state, _ = found
        kind = self.random.choice(list(ElectionKind))
        if kind is ElectionKind.UNCLEAN and self.random.random() < 0.8:
            return
        self.attempt(
            lambda: partitions.elect(self.image, topic.name, state.index, kind, self),
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            forgivable=kind is ElectionKind.UNCLEAN,
        )

    def balance_leaders(self) -> None:
        self.apply(partitions.preferred_imbalance(self.image, self))

    def reassign_one(self) -> None:
        found = self.a_partition()
        registered = list(self.image.brokers)
        if found is not None and registered:
            topic, state, _ = found
            target = self.random.sample(registered, self.random.randint(1, min(3, len(registered))))
            self.reassign(topic, state, tuple(target))

    def reassign(self, topic: TopicState, state: PartitionState, target: tuple[int, ...]) -> None:
        logs = self.logs[topic.topic_id, state.index]
        if not state.is_reassigning:
            logs.original = state.replicas
        else:
            logs.original = tuple(replica for replica in state.replicas if replica not in state.adding)
        logs.target = target
        self.apply(reassignment.begin(self.image, topic.name, state.index, target, self))

    def cancel_one(self) -> None:
        found = self.a_partition()
        if found is not None:
            topic, state, logs = found
            logs.original = tuple(replica for replica in state.replicas if replica not in state.adding)
            self.attempt(
                lambda: reassignment.cancel(self.image, topic.name, state.index, self),
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )

    def drain_one(self) -> None:
        broker = self.random.choice(BROKERS)
        try:
            plan = plans.drain_plan(self.image, broker)
        except ApiError as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise
            return
        for name, moves in plan.items():
            for index, target in moves.items():
                if broker in target:
                    raise Violation(f"{name}-{index} would stay on {broker}: {target}")
                topic = self.image.topics[name]
                self.reassign(topic, topic.partitions[index], target)

    # -- data ---------------------------------------------------------------------------

    def can_act(self, broker: int) -> bool:
        return broker != -1 and self.brokers[broker].is_running and self.image.is_live(broker)

    def append_one(self) -> None:
        found = self.a_partition()
        if found is not None and self.can_act(found[1].leader):
            _, state, logs = found
            self.numbers += 1
            logs.of[state.leader].append((state.leader_epoch, self.numbers))
            self.advance(*found)

    def fetch_one(self) -> None:
        found = self.a_partition()
        if found is not None:
            self.fetch(*found, self.random.choice(found[1].replicas), self.random.randint(0, 3))

    def fetch(self, topic: TopicState, state: PartitionState, logs: Logs, follower: int, limit: int) -> None:
        if follower == state.leader or not self.can_act(state.leader) or not self.brokers[follower].is_running:
            return
        source, copy = logs.of[state.leader], logs.of[follower]
        while copy != source[: len(copy)]:
            copy.pop()
        logs.fetched[follower] = len(copy)
        self.advance(topic, state, logs)
        copy += source[len(copy) : len(copy) + limit]

    def advance(self, topic: TopicState, state: PartitionState, logs: Logs) -> None:
        if len(state.isr) < state.effective_min_isr(self.min_isr(topic.name)):
            return
        log = logs.of[state.leader]
        if log[: len(logs.committed)] != logs.committed:
            raise Violation(f"{topic.name}: leader {state.leader} serves without committed records: {state}")
        mark = min(len(log) if broker == state.leader else logs.fetched.get(broker, 0) for broker in state.isr)
        if mark > len(logs.committed):
            logs.committed = log[:mark]

    def alter_isr_one(self) -> None:
        found = self.a_partition()
        if found is not None and self.can_act(found[1].leader):
            topic, state, logs = found
            if self.random.random() < 0.25 and len(state.isr) > 1:
                leaves = self.random.choice([broker for broker in state.isr if broker != state.leader])
                self.alter(topic, state, tuple(broker for broker in state.isr if broker != leaves))
            else:
                self.expand(topic, state, logs)

    def expand(self, topic: TopicState, state: PartitionState, logs: Logs) -> None:
        needed = max(len(logs.committed), logs.epoch_start)
        caught_up = [
            broker
            for broker in state.replicas
            if broker not in state.isr and self.image.is_active(broker) and logs.fetched.get(broker, -1) >= needed
        ]
        if caught_up:
            self.alter(topic, state, (*state.isr, self.random.choice(caught_up)))

    def alter(self, topic: TopicState, state: PartitionState, isr: tuple[int, ...]) -> None:
        leader = state.leader
        self.apply(
            partitions.alter_partition(
                self.image,
                leader,
                self.image.brokers[leader].epoch,
                IsrChange(
                    topic.topic_id,
                    state.index,
                    state.leader_epoch,
                    state.partition_epoch,
                    tuple(ReplicaEpoch(broker, self.image.brokers[broker].epoch) for broker in isr),
                ),
                self,
            ),
            vouched=isr,
        )
        state = topic.partitions[state.index]
        if state.leader == leader:
            self.advance(topic, state, self.logs[topic.topic_id, state.index])

    # -- the end ------------------------------------------------------------------------

    def heal(self) -> None:
        for broker in BROKERS:
            known = self.image.brokers.get(broker)
            if known is None or known.in_controlled_shutdown or not self.brokers[broker].is_running:
                self.restart(broker)
            self.unfence(broker)
        for _ in range(8):
            for topic, state in list(self.image.all_partitions()):
                logs = self.logs[topic.topic_id, state.index]
                for follower in state.replicas:
                    self.fetch(topic, state, logs, follower, 1 << 30)
                    self.fetch(topic, state, logs, follower, 0)
                if self.can_act(state.leader):
                    self.expand(topic, state, logs)
        self.balance_leaders()
        for topic, state in self.image.all_partitions():
            logs = self.logs[topic.topic_id, state.index]
            if state.leader == -1:
                if not logs.is_lost:
                    raise Violation(f"{topic.name}: healed, and nobody leads {state}")
                continue
            if state.is_reassigning or sorted(state.isr) != sorted(state.replicas) or state.elr:
                raise Violation(f"{topic.name}: healed, and not in order: {state}")
            if state.leader != state.replicas[0]:
                raise Violation(f"{topic.name}: the preferred leader does not lead {state}")
        self.judge_replays()

    def judge_replays(self) -> None:
        replayed, restored = MetadataImage(), MetadataImage()
        for entry in self.entries:
            for record in decode_entry(entry):
                replayed.replay(record)
        snapshot = decode_entry(encode_entry(self.image.snapshot_records()))
        for record in snapshot:
            restored.replay(record)
        if replayed != self.image or restored != self.image or restored.snapshot_records() != snapshot:
            raise Violation("the log, the snapshot and the image differ")
