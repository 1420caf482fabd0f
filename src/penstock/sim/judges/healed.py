"""Demands after all faults have ended: progress within a bounded virtual time, and a full read of everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.model.new_topic import NewTopic
from penstock.sim.checks.votes import check_votes
from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation
from penstock.sim.machine.world import DRIVER
from penstock.sim.plan import TransactionPlan
from penstock.sim.settings import SETTINGS, well_within_s
from penstock.sim.stage import KEYED, PROGRESS_WITHIN_S, Stage
from penstock.sim.workload.caller import TROUBLE, KnownLeader
from penstock.sim.workload.groups.consumers import ConsumerMember
from penstock.sim.workload.groups.gathering import Gathering
from penstock.sim.workload.groups.members import Member
from penstock.sim.workload.reading.committed import CommittedReader, Ended, RecordOutcomes
from penstock.sim.workload.reading.readers import WITH_HOLES, Manner, Reader
from penstock.sim.workload.transactions.transformers import CALM, Transformer, made, sources
from penstock.sim.workload.writers.keyed import keyed_lane
from penstock.sim.workload.writers.producers import IdempotentLane
from penstock.sim.workload.writers.trimmed import TRIMMED, TRIMMED_READS, Trimmer
from penstock.sim.workload.writers.unclean import UNCLEAN, UncleanWriter

GATHERED_WITHIN_S = 30.0
"""A session and a rebalance take 8 s, if the previous members leave silently."""
LOOK_AGAIN_S = 0.1
ENDS = "a decided transaction ends"
STABLE = "the last stable offset reaches the high watermark"
SERVES = "a transactional id serves its next producer"
SETTLED_WITHIN_S = 40.0
"""Transactions are open for a few seconds at most, and nothing is broken any more."""
LATE_S = 10.0
"""After this time, requests abandoned by their sender have no more effect."""
RESUMED = 12
PROBE_TOPIC = "probe"


class Healed:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.well_after_s: float | None = None
        """Virtual time from the end of all faults to a healthy cluster; None: it never became healthy."""
        self.voters = tuple(stage.cluster.voters)
        """Final voters of the metadata quorum."""

    async def bring_up_all(self) -> None:
        down = [number for number in self._stage.cluster.started if not self._stage.cluster.is_running(number)]
        await self._stage.within("starting all machines", asyncio.gather(*map(self._stage.cluster.bring_up, down)))

    async def restart_offline(self) -> None:
        """Does what the log tells an operator to do: the disk is repaired, and lost records are fetched again."""
        cluster = self._stage.cluster
        for number in self._stage.watch.offline():
            if cluster.is_running(number):
                await self._stage.within(f"stopping {number}", cluster.stop(number))

    def look_for_well(self) -> asyncio.Future[None]:
        """In the background: measures how long the cluster takes without further faults."""

        async def look() -> None:
            began = self._stage.world.loop.time()
            await self.get_well(well_within_s({**SETTINGS, **self._stage.plan.settings}))
            self.well_after_s = self._stage.world.loop.time() - began

        outcome = self._stage.world.spawn(DRIVER, look())
        outcome.add_done_callback(self._stage.ended, context=self._stage.world.context)
        return outcome

    async def get_well(self, limit_s: float = PROGRESS_WITHIN_S) -> None:
        async def well() -> None:
            while not self._stage.watch.is_well():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(LOOK_AGAIN_S)

        await self._stage.within("leaders and full in-sync replicas everywhere", well(), limit_s)

    def _living_places(self) -> list[Place]:
        """Includes the last incarnation of the recreated topic."""
        return [
            *self._stage.plan.places,
            *(early.place for early in self._stage.early if early.is_there),
            *(list(self._stage.reborn.lives)[-1:] if self._stage.reborn is not None else ()),
        ]

    async def probe(self) -> None:
        """An acknowledged write to every partition."""
        stage = self._stage
        lanes = [stage.lane(stage.caller(f"probe:{place}"), stage.history, place) for place in self._living_places()]
        if stage.plan.is_compacting:
            lanes.append(keyed_lane(stage.caller(f"probe:{KEYED}"), stage.keyed, KEYED, stage.now_ms))
        for lane in lanes:
            await stage.within(f"a write to {lane.place}", lane.run(partial(_has_written, lane), 0.0))

    async def administer(self) -> None:
        """The controller works: a topic is created and deleted."""
        operator = self._stage.operator()
        topic = NewTopic(PROBE_TOPIC, 1)
        await self._stage.within("creating a topic", operator.until_told(partial(operator.create, topic)))
        await self._stage.within("deleting a topic", operator.until_told(partial(operator.delete, PROBE_TOPIC)))
        await self.get_well()  # all nodes know of it

    async def vote(self) -> None:
        """Acknowledged voter changes hold, and voters can be changed again."""
        stage = self._stage
        await asyncio.sleep(LATE_S)
        await stage.within("the same voters everywhere", self._agree_on_voters())
        check_votes(stage.votes, stage.watch.voters(), stage.cluster.voters)
        random = stage.world.random("last voters")
        nodes = list(stage.cluster.started)
        wanted = sorted(random.sample(nodes, random.randint(1, len(nodes))))
        await stage.within(f"votes for {wanted}", stage.voter_operator("last voters").settle(wanted))
        await stage.within("the same voters everywhere", self._agree_on_voters())
        self.voters = tuple(wanted)

    async def _agree_on_voters(self) -> None:
        while len(set(self._stage.watch.voters().values())) != 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_AGAIN_S)

    async def gather(self) -> None:
        """Groups of both protocols serve new members, whatever happened to earlier ones."""
        stage = self._stage
        topics = [topic.name for topic in stage.plan.topics]
        gatherings = []
        for group, kind in (("group", Member), ("modern", ConsumerMember)):
            members = [kind(stage.caller(f"{group}:{number}"), stage.history, group, topics) for number in range(2)]
            gatherings.append(Gathering(members, stage.plan.all_places).run())
        work = asyncio.gather(*gatherings)
        await stage.within("an owner for every partition in both groups", work, GATHERED_WITHIN_S)

    async def mend(self) -> None:
        """Damage is found by reading: read everything on the damaged machine until all of it can be read."""
        stage = self._stage
        for number in list(stage.watch.brokers.excused):
            ends = {place: end for place, end in stage.watch.high_watermarks(number).items() if end}
            caller, unheard = stage.caller(f"mend:{number}"), History(stage.world.loop.time)
            for place, end in ends.items():
                is_plain = place in stage.plan.places
                history = stage.history if is_plain else stage.keyed if place == KEYED else unheard
                start = stage.watch.log_starts(place)[number]
                this_one = partial(_this_one, number)
                reader = Reader(caller, history, [place], this_one, Manner(start, may_have_holes=not is_plain))
                done = partial(_has_read, reader, place, end - 1)
                await stage.within(f"mending {place} on {number}", reader.run(done, 0.0))
        await self.get_well()
        stage.watch.pardon()

    async def restart_all(self) -> None:
        """Only disks keep acknowledged data now."""
        stage = self._stage
        if not stage.plan.ending:
            return
        stage.world.trace.note("scenario", f"the end of all machines: {stage.plan.ending}")
        await stage.within(f"the {stage.plan.ending} of all machines", stage.cluster.end_all(stage.plan.ending))
        await self.bring_up_all()
        await self.get_well()

    async def read_all(self) -> dict[Place, list[bytes]]:
        """Read with a new reader up to the last probe's record; earlier reads do not count."""
        stage = self._stage
        final: dict[Place, list[bytes]] = {}
        found = History(stage.world.loop.time)
        for place in self._living_places():
            writes = (write for write in stage.history.writes if write.place == place and write.is_idempotent)
            last = max((write.offset for write in writes), default=-1)
            reader = Reader(stage.caller(f"last:{place}"), found, [place])
            await stage.within(f"reading {place}", reader.run(partial(_has_read, reader, place, last), 0.0))
            seen = found.seen.get(place, {})
            final[place] = [seen[offset].value for offset in range(reader.positions[place])]
        return final

    async def read_keyed(self) -> dict[int, Seen]:
        """The final content; and every earlier read once more."""
        stage = self._stage
        last = max((write.offset for write in stage.keyed.writes), default=-1)

        async def read(history: History) -> None:
            reader = Reader(stage.caller("last:keyed"), history, [KEYED], manner=WITH_HOLES)
            await stage.within(f"reading {KEYED}", reader.run(partial(_has_read, reader, KEYED, last), 0.0))

        while True:
            # All from one leader: the next may have dropped a tombstone that the previous one would still return.
            epochs = stage.watch.leader_epochs(KEYED)
            found = History(stage.world.loop.time)
            await read(found)
            if len(epochs) == 1 and stage.watch.leader_epochs(KEYED) == epochs:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        await read(stage.keyed)
        return found.seen.get(KEYED, {})

    async def resume_keyed(self) -> None:
        """Read like consumers that resume at any committed offset: from every replica, although some records are
        gone.
        """
        stage = self._stage
        random = stage.world.random("resumed")
        for number in stage.watch.log_starts(KEYED):
            end = stage.watch.high_watermarks(number)[KEYED]
            caller = stage.caller(f"resumes:{number}")
            for offset in sorted(random.sample(range(end), min(RESUMED, end))):
                this_one = partial(_this_one, number)
                reader = Reader(caller, stage.keyed, [KEYED], this_one, Manner(offset, may_have_holes=True))
                done = partial(_has_read, reader, KEYED, offset)
                await stage.within(f"reading {KEYED}@{offset} from {number}", reader.run(done, 0.0))

    async def trim(self) -> None:
        """Delete up to a new record until acknowledged; then every replica begins there."""
        stage = self._stage
        lane = stage.lane(stage.caller("probe:trimmed"), stage.trimmed, TRIMMED)
        await stage.within(f"a write to {TRIMMED}", lane.run(partial(_has_written, lane), 0.0))
        offset = max(write.offset for write in stage.trimmed.writes)
        trimmer = Trimmer(stage.caller("last trimmer"), stage.trimmed)
        await stage.within(f"deleting records of {TRIMMED}", trimmer.trim_at_last(offset))
        starts = stage.watch.log_starts(TRIMMED)
        if min(starts.values()) < offset:
            raise Violation(
                "every replica applies acknowledged deletions",
                f"{TRIMMED}: deleted up to {offset}, but its replicas begin at {starts}",
            )

    async def read_trimmed(self) -> tuple[dict[int, Seen], int]:
        """The final content, and the size of its smallest replica."""
        stage = self._stage
        last = max(write.offset for write in stage.trimmed.writes)
        found = History(stage.world.loop.time)
        reader = Reader(stage.caller("last:trimmed"), found, [TRIMMED], manner=TRIMMED_READS)
        await stage.within(f"reading {TRIMMED}", reader.run(partial(_has_read, reader, TRIMMED, last), 0.0))
        return found.seen.get(TRIMMED, {}), stage.watch.least_bytes(TRIMMED)

    async def read_unclean(self) -> dict[int, Seen]:
        """The final content."""
        stage = self._stage
        lane = UncleanWriter(stage.caller("probe:unclean"), stage.unclean, UNCLEAN, stage.now_ms)
        await stage.within(f"a write to {UNCLEAN}", lane.run(partial(_is_acknowledged, stage.unclean), 0.0))
        last = stage.unclean.writes[-1].offset
        found = History(stage.world.loop.time)
        reader = Reader(stage.caller("last:unclean"), found, [UNCLEAN])
        await stage.within(f"reading {UNCLEAN}", reader.run(partial(_has_read, reader, UNCLEAN, last), 0.0))
        return found.seen.get(UNCLEAN, {})

    # -- transactions -------------------------------------------------------------------

    async def settle_transactions(self) -> None:
        """Transactions that nobody ends time out. Then all are complete, and the last stable offset reaches the high
        watermark.
        """
        ears = self._stage.watch.transactions
        await self._until_none(ears.ending, ENDS)
        await self._until_none(ears.unstable, STABLE)

    async def _until_none(self, left: Callable[[], list[str]], promise: str) -> None:
        try:
            async with asyncio.timeout(SETTLED_WITHIN_S):
                while left():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            raise Violation(promise, f"not within {SETTLED_WITHIN_S:g} s: {'; '.join(left()[:5])}") from None

    async def transform_rest(self, plan: TransactionPlan) -> None:
        """A new producer with each transactional id makes progress, and transforms all remaining rows."""
        stage = self._stage
        for source in sources(plan.sources):
            end = max((write.offset + 1 for write in stage.rows.writes if write.place == source), default=0)
            caller = stage.caller(f"last of {source}")
            last = Transformer(caller, stage.transactions, stage.rows, source, made(plan.made), stage.now_ms, CALM)
            try:
                async with asyncio.timeout(SETTLED_WITHIN_S):
                    await last.finish(end)
            except TimeoutError:
                troubles = ", ".join(f"{name} {count}" for name, count in caller.counts.most_common(6))
                raise Violation(
                    SERVES,
                    f"{last.transactional_id}: no row is transformed within {SETTLED_WITHIN_S:g} s; errors: {troubles}",
                ) from None

    async def read_transactions(self, plan: TransactionPlan) -> tuple[dict[Place, list[Ended]], dict[Place, int]]:
        """All records that were written, and whether they are committed; the committed offset of each source."""
        await self.settle_transactions()
        final: dict[Place, list[Ended]] = {}
        for place in made(plan.made):
            decided, final[place] = RecordOutcomes(), []
            for header, batch in self._stage.watch.leader_log(place):
                final[place] += decided.add(header, memoryview(batch))
        await self._audit(final)
        reads: dict[Place, int] = {}
        for source in sources(plan.sources):
            caller = self._stage.caller(f"auditor of {source}")
            last = Transformer(caller, self._stage.transactions, self._stage.rows, source, [], self._stage.now_ms, CALM)

            async def look(last: Transformer = last, source: Place = source) -> None:
                reads[source] = await last.position()

            await self._stage.within(f"the offset of {source}", look())
        return final, reads

    async def _audit(self, final: Mapping[Place, Sequence[Ended]]) -> None:
        """Read what is committed once more, from the start, as a client does."""
        history = self._stage.transactions
        reader = CommittedReader(self._stage.caller("last of the committed"), history, list(final))
        for place, records in final.items():
            end = max((one.offset + 1 for one in records), default=0)

            async def read(place: Place = place, end: int = end) -> None:
                history.audited[place] = await reader.read_all(place, end)

            await self._stage.within(f"reading what is committed in {place}", read())

    def read_rows(self, plan: TransactionPlan) -> dict[Place, list[bytes]]:
        final: dict[Place, list[bytes]] = {}
        for source in sources(plan.sources):
            decided = RecordOutcomes()
            log = self._stage.watch.leader_log(source)
            final[source] = [row.value for header, batch in log for row in decided.add(header, memoryview(batch))]
        return final

    async def look_up_offsets(self) -> None:
        committed: dict[str, dict[Place, None]] = {}
        for commit in self._stage.history.commits:
            committed.setdefault(commit.group, {})[commit.place] = None
        for group, places in committed.items():
            await self._look_up_offsets_of(group, list(places))

    async def _look_up_offsets_of(self, group: str, places: Sequence[Place]) -> None:
        member = Member(self._stage.caller(f"auditor of {group}"), self._stage.history, group, [])

        async def look_up() -> None:
            while True:
                try:
                    await member.committed(places)
                except TROUBLE:
                    member.forget_coordinator()
                    await asyncio.sleep(LOOK_AGAIN_S)
                else:
                    return

        await self._stage.within("looking up committed offsets", look_up())


def _this_one(number: int, place: Place, leader: KnownLeader) -> int:
    return number


def _has_written(lane: IdempotentLane) -> bool:
    return lane.next_number > 0


def _is_acknowledged(history: History) -> bool:
    """Whether the last write, after everything else, was acknowledged."""
    last = history.writes[-1]
    return last.lane.startswith("probe") and last.outcome is Outcome.ACKNOWLEDGED


def _has_read(reader: Reader, place: Place, offset: int) -> bool:
    return reader.positions[place] > offset
