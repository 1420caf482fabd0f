"""One history, as planned: a cluster tormented while clients use it, healed, and judged.

Safety is judged while it runs and at the end; progress only after everything is healed, and then within a bounded
virtual time: every partition led and fully replicated, every writer done, a write and a read everywhere. The same seed
gives the same history and the same verdict. Must not know: command lines, processes of this machine.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.sim.checks.groups import check_groups
from penstock.sim.checks.keyed import check_keyed
from penstock.sim.checks.records import check_reads, check_records
from penstock.sim.checks.topics import check_topics
from penstock.sim.checks.trimmed import check_trimmed
from penstock.sim.cluster import SimCluster, few_entries_kept
from penstock.sim.fault_plan import LONE_CRASH
from penstock.sim.history import History, Place, Seen, Violation
from penstock.sim.loop import StepLimit
from penstock.sim.nemesis import Nemesis
from penstock.sim.plan import MIN_INSYNC_REPLICAS, PLAIN_TOPIC, Plan, TopicPlan
from penstock.sim.remarks import remarks
from penstock.sim.settings import SETTINGS, well_within_s
from penstock.sim.watch import Watch
from penstock.sim.workload.admin import Operator
from penstock.sim.workload.caller import TROUBLE, Caller, Leader
from penstock.sim.workload.consumers import ConsumerMember
from penstock.sim.workload.gathering import Gathering
from penstock.sim.workload.keyed import KeyedLane
from penstock.sim.workload.loners import Loner
from penstock.sim.workload.members import Member
from penstock.sim.workload.producers import IdempotentLane, PlainWriter
from penstock.sim.workload.readers import Reader
from penstock.sim.workload.reborn import Reborn
from penstock.sim.workload.trimmed import RETAINED, RETENTION_BYTES, TRIMMED, TrimmedReader, Trimmer
from penstock.sim.workload.trimmed import SETTINGS as TRIMMED_SETTINGS
from penstock.sim.world import DRIVER, SimWorld

PROGRESS_WITHIN_S = 120.0
"""Of virtual time, for each thing demanded of a healed cluster."""
GATHERED_WITHIN_S = 30.0
"""A session and a rebalance take 8 s, if nobody who was there before says a word."""
LOOK_AGAIN_S = 0.1
MAX_STEPS = 400_000
"""Ten times what a history takes: more is a broker that spins."""
STATIC_CHANCE = 0.3
LONER_CHANCE = 0.4
KEYED = Place("keyed", 0)
PROBE_TOPIC = "probe"
TOMBSTONES_STAY_MS = 1000
"""Longer than it takes to read the topic."""
YEAR_MS = 365 * 86_400_000
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "8192", "min.cleanable.dirty.ratio": "0.01"}


@dataclass
class Verdict:
    seed: int
    what: str = ""
    """Which promise was broken, or the kind of error; empty: none."""
    story: str = ""
    details: str = ""
    """With the place in the code."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    """Of this machine."""
    well_after_s: float | None = None
    """Of virtual time, from the end of all faults to a cluster that is well; None: it did not come to that."""
    steps: int = 0
    statistics: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    """How often it was in the states of `sim.probes`."""
    troubles: Counter[str] = field(default_factory=Counter)
    """What clients ran into, by name."""
    digest: str = ""
    trace: str = ""

    @property
    def is_good(self) -> bool:
        return not self.what


class Scenario:
    def __init__(self, plan: Plan, world: SimWorld) -> None:
        self.plan = plan
        self.world = world
        self.history = History(world.loop.time)
        self.cluster = SimCluster(world, plan.nodes, joins=plan.joins, settings=plan.settings)
        self.watch = Watch(self.cluster)
        self.nemesis = Nemesis(self.cluster, plan.seed, self.watch, plan.max_down)
        self.nemesis.on_rot = self.watch.excuse
        self._keyed = History(world.loop.time)
        """Of the topic that is compacted."""
        self._trimmed = History(world.loop.time)
        """Of the topic whose oldest records go."""
        self._reborn: Reborn | None = None
        self._callers: list[Caller] = []
        self._is_over = False
        self.well_after_s: float | None = None

    @property
    def troubles(self) -> Counter[str]:
        return sum((caller.counts for caller in self._callers), Counter())

    def _caller(self, name: str, patience_s: float = 1.5) -> Caller:
        caller = Caller(self.cluster.addresses, name, self.world.random(f"client {name}"), patience_s)
        self._callers.append(caller)
        if self._reborn is not None:
            self._reborn.introduce(caller)
        return caller

    def _client(self, name: str) -> str:
        """The machine a client runs on: a few share one."""
        return f"client-{1 + self.world.random(f'host of {name}').randrange(3)}"

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        outcome = self.world.spawn(self._client(name), work)
        outcome.add_done_callback(self._ended, context=self.world.context)
        return outcome

    def _ended(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and (error := outcome.exception()) is not None:
            assert isinstance(error, Exception)
            self.watch.failed(error)

    # -- the story ----------------------------------------------------------------------

    async def run(self) -> None:
        with self.watch.watching():
            await self._within("the first start", asyncio.gather(*map(self.cluster.bring_up, self.cluster.voters)))
            await self._make_topics()
            writers, others = self._set_to_work()
            ordeal = asyncio.gather(self.nemesis.run(self.plan.faults), asyncio.sleep(self.plan.seconds))
            await self._within("the end of all faults", ordeal)  # each brings up again what it took down
            well = self._look_for_well()
            await self._bring_up_all()
            self._is_over = True
            await self._within("the writers", asyncio.gather(*writers))
            await self._within("readers, members and the operator", asyncio.gather(*others))
            await well
            await self._probe()
            await self._administer()
            undisturbed = self.watch.undisturbed()  # and what was written before the probe is committed
            await self._mend()
            await self._gather()
            if self.plan.has_trimmed:
                await self._trim()
            await self._restart_all()
            final = await self._read_all()
            keyed = await self._read_keyed() if self.plan.is_compacting else {}
            trimmed, kept_bytes = await self._read_trimmed() if self.plan.has_trimmed else ({}, 0)
            await self._look_up_offsets()
            self.watch.look()
            self.watch.check_ending()
            topics = self.watch.topics()
        check_records(self.history, final, undisturbed)
        for place in self._reborn.lives if self._reborn is not None else ():
            check_reads(self.history, place)
        check_groups(self.history)
        if self.plan.is_compacting:
            check_keyed(self._keyed, KEYED, keyed, tombstones_may_go=self.plan.tombstones_go)
        if self.plan.has_trimmed:
            retention_bytes = RETENTION_BYTES if self.plan.is_retaining else None
            check_trimmed(self._trimmed, TRIMMED, trimmed, kept_bytes, retention_bytes)
        check_topics(self.history, topics)

    async def _make_topics(self) -> None:
        operator = self._operator()
        topics = list(self.plan.topics)
        flush = {} if self.plan.is_durable else {"flush.messages": "9223372036854775807"}
        if self.plan.has_trimmed:
            retained = RETAINED if self.plan.is_retaining else {}
            topics.append(TopicPlan(TRIMMED.topic, 1, {**TRIMMED_SETTINGS, **retained, **flush}))
        if self.plan.is_compacting:
            retention = {"delete.retention.ms": str(TOMBSTONES_STAY_MS if self.plan.tombstones_go else YEAR_MS)}
            topics.append(TopicPlan(KEYED.topic, 1, {**COMPACTED, **retention, **flush}))
        for topic in topics:
            await self._within(f"topic {topic.name}", self._make_topic(operator, topic))

    def _operator(self) -> Operator:
        names = [topic.name for topic in self.plan.topics]
        return Operator(self._caller("operator"), self.history, names, self.cluster.ids, self._fewest_replicas)

    def _fewest_replicas(self, topic: str) -> int:
        """With fewer acks=all is refused for good; where one may rot, or lose what was not flushed, one more."""
        settings = next((plan.settings for plan in self.plan.topics if plan.name == topic), {})
        least = int(settings.get(MIN_INSYNC_REPLICAS, min(2, self.plan.nodes)))
        is_one_unsound = any(fault.kind in ("bit rot", LONE_CRASH) for fault in self.plan.faults)
        return min(least + is_one_unsound, self.plan.nodes)

    async def _make_topic(self, operator: Operator, topic: TopicPlan) -> None:
        caller = self._caller(f"maker of {topic.name}")
        while topic.name not in caller.topics:
            await operator.create(topic.name, topic.partitions, topic.settings)
            try:
                await caller.refresh()
            except TROUBLE as error:
                caller.note(error)
            await asyncio.sleep(LOOK_AGAIN_S)

    def _set_to_work(self) -> tuple[list[asyncio.Future[None]], list[asyncio.Future[None]]]:
        plan, random = self.plan, self.world.random("workload")
        places = [place for place in plan.places if place.topic != PLAIN_TOPIC]
        writers, others = [], []
        for number in range(plan.producers):
            name = f"p{number}"
            caller = self._caller(name)
            for place in random.sample(places, random.randint(1, len(places))):
                lane = IdempotentLane(caller, self.history, place, self._now_ms)
                writers.append(self._spawn(name, lane.run(self._has_ended, random.uniform(0.08, 0.6))))
        caller = self._caller("plain")
        for place in [Place(PLAIN_TOPIC, 0), *random.sample(places, random.randint(0, len(places)))]:
            plain = PlainWriter(caller, self.history, place, self._now_ms)
            writers.append(self._spawn("plain", plain.run(self._has_ended, random.uniform(0.08, 0.6))))
        for number in range(plan.readers):
            name = f"r{number}"
            reader = Reader(self._caller(name), self.history, plan.places)
            others.append(self._spawn(name, reader.run(self._has_ended, random.uniform(0.03, 0.2))))
        if plan.is_compacting:
            for number in range(2):
                keyed = KeyedLane(self._caller(f"k{number}"), self._keyed, KEYED, self._now_ms)
                writers.append(self._spawn("keyed", keyed.run(self._has_ended, 0.1)))
            caller = self._caller("keys")
            choose = partial(_any_replica, caller)
            reader = Reader(caller, self._keyed, [KEYED], choose, may_have_holes=True)
            others.append(self._spawn("keys", reader.run(self._has_ended, 0.05)))
        if plan.has_replica_reader:
            caller = self._caller("any")
            reader = Reader(caller, self.history, plan.places, partial(_any_replica, caller))
            others.append(self._spawn("any", reader.run(self._has_ended, random.uniform(0.03, 0.2))))
        topics = [topic.name for topic in plan.topics]
        for number in range(plan.members):
            name = f"m{number}"
            member = Member(self._caller(name), self.history, "group", topics, self._instance(name))
            others.append(self._spawn(name, member.run(self._has_ended, random.uniform(0.15, 0.5))))
        for number in range(plan.consumers):
            name = f"c{number}"
            consumer = ConsumerMember(self._caller(name), self.history, "modern", topics, self._instance(name))
            others.append(self._spawn(name, consumer.run(self._has_ended, random.uniform(0.15, 0.5))))
        if self.world.random("loner").random() < LONER_CHANCE:
            loner = Loner(self._caller("loner"), self.history, "lone", plan.places)
            others.append(self._spawn("loner", loner.run(self._has_ended, random.uniform(0.15, 0.5))))
        if plan.has_trimmed:
            for number in range(2):
                lane = IdempotentLane(self._caller(f"t{number}"), self._trimmed, TRIMMED, self._now_ms)
                writers.append(self._spawn("trimmed", lane.run(self._has_ended, 0.15)))
            trimmed = TrimmedReader(self._caller("trimmed"), self._trimmed, [TRIMMED])
            others.append(self._spawn("trimmed", trimmed.run(self._has_ended, 0.1)))
            trimmer = Trimmer(self._caller("trimmer"), self._trimmed)
            others.append(self._spawn("trimmer", trimmer.run(self._has_ended, 0.6, trimmed)))
        if plan.has_reborn:
            self._reborn = Reborn(
                self._caller("reborn"), self.history, self._operator(), self._now_ms, plan.topics[0].settings
            )
            writers.append(self._spawn("reborn", self._reborn.run(self._has_ended)))
        if plan.has_operator:
            others.append(self._spawn("operator", self._operator().run(self._has_ended, random.uniform(0.2, 1.5))))
        for number in self.cluster.ids[plan.nodes :]:
            others.append(self._spawn("newcomer", self._join(number, random.uniform(0, plan.seconds))))
        return writers, others

    def _instance(self, name: str) -> str | None:
        """Some members are static."""
        return name if self.world.random(f"instance of {name}").random() < STATIC_CHANCE else None

    async def _join(self, number: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.cluster.bring_up(number)

    def _has_ended(self) -> bool:
        return self._is_over

    def _now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.world.loop.time() * 1000)

    # -- healed: progress is due --------------------------------------------------------

    async def _within(self, what: str, work: Any, limit_s: float = PROGRESS_WITHIN_S) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            story = "; ".join(self.watch.ailments()[:5]) or "the cluster looks well"
            troubles = ", ".join(f"{name} {count}" for name, count in self.troubles.most_common(6))
            raise Violation(
                "a healed cluster makes progress",
                f"{what}: not done within {limit_s:g} s; {story}; clients met: {troubles or 'nothing'}",
            ) from None

    async def _bring_up_all(self) -> None:
        down = [number for number in self.cluster.started if not self.cluster.is_running(number)]
        await self._within("starting all machines", asyncio.gather(*map(self.cluster.bring_up, down)))

    def _look_for_well(self) -> asyncio.Future[None]:
        """Beside everything else: how long it takes from here, where no fault is left."""

        async def look() -> None:
            began = self.world.loop.time()
            await self._get_well(well_within_s({**SETTINGS, **self.plan.settings}))
            self.well_after_s = self.world.loop.time() - began

        outcome = self.world.spawn(DRIVER, look())
        outcome.add_done_callback(self._ended, context=self.world.context)
        return outcome

    async def _get_well(self, limit_s: float = PROGRESS_WITHIN_S) -> None:
        async def well() -> None:
            while not self.watch.is_well():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(LOOK_AGAIN_S)

        await self._within("leaders and full in-sync replicas everywhere", well(), limit_s)

    def _living_places(self) -> list[Place]:
        """Also the last life of the topic that has several."""
        return [*self.plan.places, *(list(self._reborn.lives)[-1:] if self._reborn is not None else ())]

    async def _probe(self) -> None:
        """A write that is acknowledged, for every partition."""
        lanes = [
            IdempotentLane(self._caller(f"probe:{place}"), self.history, place, self._now_ms)
            for place in self._living_places()
        ]
        if self.plan.is_compacting:
            lanes.append(KeyedLane(self._caller(f"probe:{KEYED}"), self._keyed, KEYED, self._now_ms))
        for lane in lanes:
            await self._within(f"a write to {lane.place}", lane.run(partial(_has_written, lane), 0.0))

    async def _administer(self) -> None:
        """The controller decides: a topic comes and goes."""
        operator = self._operator()
        await self._within("creating a topic", operator.until_told(partial(operator.create, PROBE_TOPIC, 1, {})))
        await self._within("deleting a topic", operator.until_told(partial(operator.delete, PROBE_TOPIC)))
        await self._get_well()  # all have heard of it

    async def _gather(self) -> None:
        """Groups of both protocols serve members that come now, whatever became of those before."""
        topics = [topic.name for topic in self.plan.topics]
        gatherings = []
        for group, kind in (("group", Member), ("modern", ConsumerMember)):
            members = [kind(self._caller(f"{group}:{number}"), self.history, group, topics) for number in range(2)]
            gatherings.append(Gathering(members, self.plan.places).run())
        work = asyncio.gather(*gatherings)
        await self._within("an owner for every partition in both groups", work, GATHERED_WITHIN_S)

    async def _mend(self) -> None:
        """Damage is found by reading: read everything on the machine that has some, until all of it can be read."""
        for number in list(self.watch.brokers.excused):
            ends = {place: end for place, end in self.watch.high_watermarks(number).items() if end}
            caller, unheard = self._caller(f"mend:{number}"), History(self.world.loop.time)
            for place, end in ends.items():
                is_plain = place in self.plan.places
                history = self.history if is_plain else self._keyed if place == KEYED else unheard
                start = self.watch.log_starts(place)[number]
                this_one = partial(_this_one, number)
                reader = Reader(caller, history, [place], this_one, may_have_holes=not is_plain, begins_at=start)
                done = partial(_has_read, reader, place, end - 1)
                await self._within(f"mending {place} on {number}", reader.run(done, 0.0))
        await self._get_well()
        self.watch.pardon()

    async def _restart_all(self) -> None:
        """What was acknowledged is kept by disks alone."""
        if not self.plan.ending:
            return
        self.world.trace.note("scenario", f"the end of all machines: {self.plan.ending}")
        await self._within(f"the {self.plan.ending} of all machines", self.cluster.end_all(self.plan.ending))
        await self._bring_up_all()
        await self._get_well()

    async def _read_all(self) -> dict[Place, list[bytes]]:
        """By a reader of its own, until it has read what the last probe wrote; what others saw counts for nothing."""
        final: dict[Place, list[bytes]] = {}
        found = History(self.world.loop.time)
        for place in self._living_places():
            writes = (write for write in self.history.writes if write.place == place and write.is_idempotent)
            last = max((write.offset for write in writes), default=-1)
            reader = Reader(self._caller(f"last:{place}"), found, [place])
            await self._within(f"reading {place}", reader.run(partial(_has_read, reader, place, last), 0.0))
            seen = found.seen.get(place, {})
            final[place] = [seen[offset].value for offset in range(reader.positions[place])]
        return final

    async def _read_keyed(self) -> dict[int, Seen]:
        """What is there in the end; and once more what everybody read."""
        last = max((write.offset for write in self._keyed.writes), default=-1)
        found = History(self.world.loop.time)
        for history in (found, self._keyed):
            reader = Reader(self._caller("last:keyed"), history, [KEYED], may_have_holes=True)
            await self._within(f"reading {KEYED}", reader.run(partial(_has_read, reader, KEYED, last), 0.0))
        return found.seen.get(KEYED, {})

    async def _trim(self) -> None:
        """After a write: up to there, until that is acknowledged; then every replica begins there."""
        lane = IdempotentLane(self._caller("probe:trimmed"), self._trimmed, TRIMMED, self._now_ms)
        await self._within(f"a write to {TRIMMED}", lane.run(partial(_has_written, lane), 0.0))
        offset = max(write.offset for write in self._trimmed.writes)
        trimmer = Trimmer(self._caller("last trimmer"), self._trimmed)
        await self._within(f"deleting records of {TRIMMED}", trimmer.trim_at_last(offset))
        starts = self.watch.log_starts(TRIMMED)
        if min(starts.values()) < offset:
            raise Violation(
                "acknowledged deletions are made by every replica",
                f"{TRIMMED}: deleted up to {offset}, and its replicas begin at {starts}",
            )

    async def _read_trimmed(self) -> tuple[dict[int, Seen], int]:
        """What is there in the end, and how large its smallest replica is."""
        last = max(write.offset for write in self._trimmed.writes)
        found = History(self.world.loop.time)
        reader = TrimmedReader(self._caller("last:trimmed"), found, [TRIMMED])
        await self._within(f"reading {TRIMMED}", reader.run(partial(_has_read, reader, TRIMMED, last), 0.0))
        return found.seen.get(TRIMMED, {}), self.watch.least_bytes(TRIMMED)

    async def _look_up_offsets(self) -> None:
        committed: dict[str, dict[Place, None]] = {}
        for commit in self.history.commits:
            committed.setdefault(commit.group, {})[commit.place] = None
        for group, places in committed.items():
            await self._look_up_offsets_of(group, list(places))

    async def _look_up_offsets_of(self, group: str, places: Sequence[Place]) -> None:
        member = Member(self._caller(f"auditor of {group}"), self.history, group, [])

        async def look_up() -> None:
            while True:
                try:
                    await member.committed(places)
                except TROUBLE:
                    member.forget_coordinator()
                    await asyncio.sleep(LOOK_AGAIN_S)
                else:
                    return

        await self._within("looking up committed offsets", look_up())


def _this_one(number: int, place: Place, leader: Leader) -> int:
    return number


def _any_replica(caller: Caller, place: Place, leader: Leader) -> int:
    return caller.random.choice(caller.replicas.get(place) or [leader.node_id])


def _has_written(lane: IdempotentLane) -> bool:
    return lane.next_number > 0


def _has_read(reader: Reader, place: Place, offset: int) -> bool:
    return reader.positions[place] > offset


def play(plan: Plan, *, keep_trace: bool = False) -> Verdict:
    """Run a history to its verdict. Whatever goes wrong in it, of whatever kind, is its failure."""
    began = time.process_time()
    verdict = Verdict(plan.seed)
    world = SimWorld(plan.seed, max_steps=MAX_STEPS)
    scenario = Scenario(plan, world)
    try:
        with remarks(world.trace, scenario.watch, is_wanted=keep_trace), few_entries_kept(), world:
            world.run(scenario.run())
    except Violation as error:
        verdict.what, verdict.story = error.what, error.story
        verdict.details = "".join(traceback.format_exception(error))
    except StepLimit as error:
        verdict.what, verdict.story = "histories come to an end", str(error)
        verdict.details = "".join(traceback.format_exception(error))
    except Exception as error:  # of whatever kind: it is the history's failure, and told as such
        verdict.what, verdict.story = "no error goes unhandled", f"{type(error).__name__}: {error}"
        verdict.details = "".join(traceback.format_exception(error))
    verdict.cpu_s = time.process_time() - began
    verdict.virtual_s = world.loop.time()
    verdict.well_after_s = scenario.well_after_s
    verdict.steps = world.loop.steps
    verdict.statistics = {
        **scenario.history.statistics(),
        "terms": scenario.watch.quorum.terms,
        "nodes that left": scenario.cluster.failures,
    }
    verdict.faults = scenario.nemesis.counts
    verdict.probes = scenario.watch.probes.counts
    verdict.troubles = scenario.troubles
    verdict.digest = world.trace.digest
    if keep_trace:
        verdict.trace = world.trace.text()
    return verdict
