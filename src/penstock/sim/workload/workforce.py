"""The planned topics and clients of a history: created before its faults begin, and active until its end."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.model.new_topic import NewTopic
from penstock.sim.broker import CLUSTER_ID
from penstock.sim.judges.history import Place
from penstock.sim.plan import PLAIN_TOPIC, TopicPlan, TransactionPlan
from penstock.sim.stage import KEYED, Stage
from penstock.sim.tuning import CLEANUP_POLICY, PINNED, tuning
from penstock.sim.workload.caller import TROUBLE, Caller, KnownLeader
from penstock.sim.workload.groups.consumers import ConsumerMember
from penstock.sim.workload.groups.loners import Loner
from penstock.sim.workload.groups.members import Member
from penstock.sim.workload.operators.admin import Operator
from penstock.sim.workload.operators.tuner import BROKERS, Tuner
from penstock.sim.workload.reading.committed import CommittedReader
from penstock.sim.workload.reading.readers import WITH_HOLES, Reader
from penstock.sim.workload.strangers import Impostor
from penstock.sim.workload.transactions.transformers import MADE, ROWS, Habits, Transformer, made, sources
from penstock.sim.workload.writers.keyed import keyed_lane
from penstock.sim.workload.writers.producers import PlainWriter
from penstock.sim.workload.writers.reborn import Reborn
from penstock.sim.workload.writers.trimmed import RETAINED, TRIMMED, TRIMMED_READS, Trimmer
from penstock.sim.workload.writers.trimmed import SETTINGS as TRIMMED_SETTINGS
from penstock.sim.workload.writers.unclean import SETTINGS as UNCLEAN_SETTINGS
from penstock.sim.workload.writers.unclean import UNCLEAN, UncleanWriter

LOOK_AGAIN_S = 0.1
STATIC_CHANCE = 0.3
LONER_CHANCE = 0.4
IMPOSTOR_CHANCE = 0.15
TOMBSTONES_STAY_MS = 1000
"""Longer than it takes to read the topic."""
YEAR_MS = 365 * 86_400_000
OFFSETS_TOPIC = "__consumer_offsets"
JUMP_CHANCE = 0.5
TUNED_EVERY_S = (0.1, 0.7)
COMPACTED = {CLEANUP_POLICY: "compact", "min.cleanable.dirty.ratio": "0.01"}


class Workforce:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._topics = self._all_topics()

    def _all_topics(self) -> list[TopicPlan]:
        plan = self._stage.plan
        topics = list(plan.topics)
        flush = {} if plan.is_durable else {"flush.messages": "9223372036854775807"}
        pinned = PINNED if plan.has_tuner else {}
        if plan.has_trimmed:
            retained = dict(RETAINED) if plan.is_retaining else {}
            if plan.retention_ms is not None:
                retained["retention.ms"] = str(plan.retention_ms)
            topics.append(TopicPlan(TRIMMED.topic, 1, {**pinned, **TRIMMED_SETTINGS, **retained, **flush}))
        if plan.transactions is not None:
            settings = {**pinned, **flush}
            topics.append(TopicPlan(ROWS, plan.transactions.sources, settings))
            topics.append(TopicPlan(MADE, plan.transactions.made, settings))
        if plan.has_unclean:
            topics.append(TopicPlan(UNCLEAN.topic, 1, {**pinned, **UNCLEAN_SETTINGS, **flush}))
        if plan.is_compacting:
            retention = {"delete.retention.ms": str(TOMBSTONES_STAY_MS if plan.tombstones_go else YEAR_MS)}
            size = {"internal.segment.bytes": str(plan.compacted_segment_bytes)}
            topics.append(TopicPlan(KEYED.topic, 1, {**pinned, **COMPACTED, **size, **retention, **flush}))
        return topics

    async def make_topics(self) -> None:
        operator = self._stage.operator()
        for topic in self._topics:
            await self._stage.within(f"topic {topic.name}", self._make_topic(operator, topic))

    async def _make_topic(self, operator: Operator, topic: TopicPlan) -> None:
        caller = self._stage.caller(f"maker of {topic.name}")
        while topic.name not in caller.topics:
            await operator.create(NewTopic(topic.name, topic.partitions, configs=topic.settings))
            try:
                await caller.refresh()
            except TROUBLE as error:
                caller.note(error)
            await asyncio.sleep(LOOK_AGAIN_S)

    def set_to_work(self) -> tuple[list[asyncio.Future[None]], list[asyncio.Future[None]]]:
        stage, plan = self._stage, self._stage.plan
        random = stage.world.random("workload")
        places = [place for place in plan.places if place.topic != PLAIN_TOPIC]
        writers, others = [], []
        for number in range(plan.producers):
            name = f"p{number}"
            caller = stage.caller(name)
            for place in random.sample(places, random.randint(1, len(places))):
                lane = stage.lane(caller, stage.history, place)
                writers.append(stage.spawn(name, lane.run(stage.has_ended, random.uniform(0.08, 0.6))))
        caller = stage.caller("plain")
        for place in [Place(PLAIN_TOPIC, 0), *random.sample(places, random.randint(0, len(places)))]:
            plain = PlainWriter(caller, stage.history, place, stage.now_ms)
            writers.append(stage.spawn("plain", plain.run(stage.has_ended, random.uniform(0.08, 0.6))))
        for number in range(plan.readers):
            name = f"r{number}"
            reader = Reader(stage.caller(name), stage.history, plan.places)
            others.append(stage.spawn(name, reader.run(stage.has_ended, random.uniform(0.03, 0.2))))
        if plan.is_compacting:
            for number in range(2):
                keyed = keyed_lane(stage.caller(f"k{number}"), stage.keyed, KEYED, stage.now_ms)
                writers.append(stage.spawn("keyed", keyed.run(stage.has_ended, 0.1)))
            caller = stage.caller("keys")
            choose = partial(_any_replica, caller)
            reader = Reader(caller, stage.keyed, [KEYED], choose, WITH_HOLES)
            others.append(stage.spawn("keys", reader.run(stage.has_ended, 0.05)))
        if plan.is_compacting and plan.has_tuner:
            caller = stage.caller("resuming")
            choose = partial(_any_replica, caller)
            reader = Reader(caller, stage.keyed, [KEYED], choose, WITH_HOLES._replace(jump_chance=JUMP_CHANCE))
            others.append(stage.spawn("keys", reader.run(stage.has_ended, 0.1)))
        if plan.has_replica_reader:
            caller = stage.caller("any")
            reader = Reader(caller, stage.history, plan.places, partial(_any_replica, caller))
            others.append(stage.spawn("any", reader.run(stage.has_ended, random.uniform(0.03, 0.2))))
        topics = [topic.name for topic in plan.topics]
        for number in range(plan.members):
            name = f"m{number}"
            member = Member(stage.caller(name), stage.history, "group", topics, self._instance(name))
            others.append(stage.spawn(name, member.run(stage.has_ended, random.uniform(0.15, 0.5))))
        for number in range(plan.consumers):
            name = f"c{number}"
            consumer = ConsumerMember(stage.caller(name), stage.history, "modern", topics, self._instance(name))
            others.append(stage.spawn(name, consumer.run(stage.has_ended, random.uniform(0.15, 0.5))))
        if stage.world.random("loner").random() < LONER_CHANCE:
            loner = Loner(stage.caller("loner"), stage.history, "lone", plan.places)
            others.append(stage.spawn("loner", loner.run(stage.has_ended, random.uniform(0.15, 0.5))))
        if stage.world.random("impostor").random() < IMPOSTOR_CHANCE:
            impostor = Impostor(stage.caller("impostor"), plan.nodes, CLUSTER_ID)
            others.append(stage.spawn("impostor", impostor.run(stage.has_ended, 0.4)))
        if plan.has_trimmed:
            for number in range(2):
                lane = stage.lane(stage.caller(f"t{number}"), stage.trimmed, TRIMMED)
                writers.append(stage.spawn("trimmed", lane.run(stage.has_ended, 0.15)))
            trimmed = Reader(stage.caller("trimmed"), stage.trimmed, [TRIMMED], manner=TRIMMED_READS)
            others.append(stage.spawn("trimmed", trimmed.run(stage.has_ended, 0.1)))
            trimmer = Trimmer(stage.caller("trimmer"), stage.trimmed)
            others.append(stage.spawn("trimmer", trimmer.run(stage.has_ended, 0.6, trimmed)))
        if plan.has_unclean:
            for number in range(2):
                unclean = UncleanWriter(stage.caller(f"u{number}"), stage.unclean, UNCLEAN, stage.now_ms)
                writers.append(stage.spawn("unclean", unclean.run(stage.has_ended, 0.15)))
        if plan.transactions is not None:
            self._transform(plan.transactions, writers, others)
        if plan.has_reborn:
            stage.reborn = Reborn(
                stage.caller("reborn"),
                stage.history,
                stage.operator(),
                stage.now_ms,
                plan.topics[0].settings,
            )
            writers.append(stage.spawn("reborn", stage.reborn.run(stage.has_ended)))
        if plan.has_operator:
            others.append(stage.spawn("operator", stage.operator().run(stage.has_ended, random.uniform(0.2, 1.5))))
        if plan.has_tuner:
            pause_s = stage.world.random("tuner").uniform(*TUNED_EVERY_S)
            others.append(stage.spawn("tuner", self._tuner().run(stage.has_ended, pause_s)))
        if plan.has_voter_changes:
            pause_s = stage.world.random("voters").uniform(0.1, 1.0)
            voters = stage.voter_operator("voters").run(stage.has_ended, pause_s)
            others.append(stage.spawn("voters", voters))
        for number in stage.cluster.ids[plan.nodes :]:
            others.append(stage.spawn("newcomer", self._join(number, random.uniform(0, plan.seconds))))
        return writers, others

    def _transform(
        self, plan: TransactionPlan, writers: list[asyncio.Future[None]], others: list[asyncio.Future[None]]
    ) -> None:
        stage = self._stage
        random = stage.world.random("transactions")
        places = made(plan.made)
        for number, source in enumerate(sources(plan.sources)):
            lane = stage.lane(stage.caller(f"rows-{number}"), stage.rows, source)
            writers.append(stage.spawn("rows", lane.run(stage.has_ended, random.uniform(0.4, 1.2))))
            for rival in range(2 if number < plan.rivals else 1):
                name = f"transformer {number}.{rival}"
                caller = stage.caller(name, patience_s=random.choice((0.4, 1.0, 1.5)))
                one = Transformer(
                    caller,
                    stage.transactions,
                    stage.rows,
                    source,
                    places,
                    stage.now_ms,
                    Habits(plan.is_slow, has_two_phases=plan.has_two_phases, has_odd_ends=plan.has_odd_ends),
                )
                writers.append(stage.spawn(name, one.run(stage.has_ended, random.uniform(0.005, 0.15))))
        reader = CommittedReader(stage.caller("committed"), stage.transactions, places)
        others.append(stage.spawn("committed", reader.run(stage.has_ended, random.uniform(0.03, 0.2))))

    def _tuner(self) -> Tuner:
        plan = self._stage.plan
        agreed = {"min.insync.replicas": str(min(2, plan.nodes)), "log.flush.interval.messages": "1"}
        return self._stage.tuner(
            tuning(
                {topic.name: topic.settings for topic in self._topics},
                compacted=KEYED.topic,
                trimmed=TRIMMED.topic,
                unclean=UNCLEAN.topic,
                offsets=OFFSETS_TOPIC,
                brokers=(BROKERS, agreed),
                may_flush_less=plan.may_flush_less,
                tombstones_go=plan.tombstones_go,
            )
        )

    def _instance(self, name: str) -> str | None:
        """Some members are static."""
        return name if self._stage.world.random(f"instance of {name}").random() < STATIC_CHANCE else None

    async def _join(self, number: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._stage.cluster.bring_up(number)


def _any_replica(caller: Caller, place: Place, leader: KnownLeader) -> int:
    return caller.random.choice(caller.replicas.get(place) or [leader.node_id])
