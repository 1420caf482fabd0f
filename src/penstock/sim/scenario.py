"""One history, as planned: a cluster with faults while clients use it, healed, and judged.

Safety is checked while it runs and at the end; progress only after everything is healed, and then within a bounded
virtual time: every partition led and fully replicated, every writer done, a write and a read everywhere. The same seed
gives the same history and the same verdict. Must not know: command lines, processes of this machine.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from penstock.sim.checks.groups import check_groups
from penstock.sim.checks.keyed import check_keyed
from penstock.sim.checks.records import check_reads, check_records
from penstock.sim.checks.topics import check_brokers, check_topics
from penstock.sim.checks.transactions import check_transactions
from penstock.sim.checks.trimmed import check_trimmed
from penstock.sim.checks.unclean import check_unclean
from penstock.sim.checks.votes import check_given, check_last_voters
from penstock.sim.cluster import few_entries_kept
from penstock.sim.faults.plan import LEAP
from penstock.sim.judges.healed import Healed
from penstock.sim.judges.history import Outcome, Violation
from penstock.sim.judges.judging import Breach
from penstock.sim.judges.remarks import remarks
from penstock.sim.machine.loop import StepLimit
from penstock.sim.machine.world import SimWorld
from penstock.sim.plan import Plan
from penstock.sim.sizes import shrunk
from penstock.sim.stage import CONTROLLER, KEYED, Stage
from penstock.sim.workload.operators.tuner import BROKERS
from penstock.sim.workload.workforce import Workforce
from penstock.sim.workload.writers.trimmed import RETENTION_BYTES, TRIMMED
from penstock.sim.workload.writers.unclean import UNCLEAN

MAX_STEPS = 400_000
"""Ten times the steps of a normal history: more means that a broker spins."""


@dataclass
class Verdict:
    seed: int
    what: str = ""
    """The broken promise, or the kind of error; empty: none."""
    also: tuple[str, ...] = ()
    """Other promises broken in the moments after."""
    story: str = ""
    details: str = ""
    """With the place in the code."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of this machine."""
    well_after_s: float | None = None
    """Virtual time from the end of all faults to a healthy cluster; None: it did not get there."""
    steps: int = 0
    statistics: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    """Counts of the states of `sim.probes`."""
    settings: Counter[str] = field(default_factory=Counter)
    """Changed settings, by name."""
    troubles: Counter[str] = field(default_factory=Counter)
    """Errors that clients met, by name."""
    digest: str = ""
    trace: str = ""

    @property
    def is_good(self) -> bool:
        return not self.what


class Scenario:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._workforce = Workforce(stage)
        self._healed = Healed(stage)

    @property
    def well_after_s(self) -> float | None:
        return self._healed.well_after_s

    async def run(self) -> None:
        stage, workforce, healed = self.stage, self._workforce, self._healed
        with stage.watch.watching():
            await stage.within("the first start", asyncio.gather(*map(stage.cluster.bring_up, stage.cluster.voters)))
            await workforce.make_topics()
            writers, others = workforce.set_to_work()
            ordeal = asyncio.gather(stage.nemesis.run(stage.plan.faults), asyncio.sleep(stage.plan.seconds))
            await stage.within("the end of all faults", ordeal)  # each fault restarts what it took down
            await healed.restart_offline()
            well = healed.look_for_well()
            await healed.bring_up_all()
            stage.is_over = True
            await stage.within("the writers", asyncio.gather(*writers))
            await stage.within("readers, members and the operator", asyncio.gather(*others))
            await well
            if stage.plan.transactions is not None:
                await healed.settle_transactions()
                await healed.transform_rest(stage.plan.transactions)
            await healed.probe()
            await healed.administer()
            if stage.plan.has_voter_changes:
                await healed.vote()
            undisturbed = stage.watch.undisturbed()  # and records written before the probe are committed
            await healed.mend()
            await healed.gather()
            if stage.plan.has_trimmed:
                await healed.trim()
            await healed.restart_all()
            final = await healed.read_all()
            keyed = await healed.read_keyed() if stage.plan.is_compacting else {}
            if stage.plan.is_compacting and stage.plan.has_tuner:
                await healed.resume_keyed()
            trimmed, kept_bytes = await healed.read_trimmed() if stage.plan.has_trimmed else ({}, 0)
            unclean = await healed.read_unclean() if stage.plan.has_unclean else {}
            await healed.look_up_offsets()
            if stage.plan.transactions is not None:
                made, read = await healed.read_transactions(stage.plan.transactions)
                check_transactions(stage.transactions, made, read)
                check_records(stage.rows, healed.read_rows(stage.plan.transactions))
            stage.watch.look()
            stage.watch.check_ending()
            topics, voters = stage.watch.topics(), stage.watch.voters()
            broker_settings = stage.watch.broker_settings()
        check_records(stage.history, final, undisturbed)
        for place in stage.reborn.lives if stage.reborn is not None else ():
            check_reads(stage.history, place)
        check_groups(stage.history)
        if stage.plan.is_compacting:
            check_keyed(stage.keyed, KEYED, keyed, tombstones_may_go=stage.plan.tombstones_go)
        if stage.plan.has_trimmed:
            retention_bytes = RETENTION_BYTES if stage.plan.is_retaining else None
            if stage.plan.has_tuner or stage.nemesis.counts[LEAP]:
                retention_bytes = 0  # by age as well, so anything may be deleted
            check_trimmed(stage.trimmed, TRIMMED, trimmed, kept_bytes, retention_bytes)
        if stage.plan.has_unclean:
            check_unclean(stage.unclean, UNCLEAN, unclean, stage.watch.unclean_elections(UNCLEAN))
        check_topics(stage.history, topics)
        check_topics(stage.tuned, topics)
        check_brokers(stage.tuned, BROKERS, broker_settings)
        check_last_voters(voters, healed.voters)
        check_given(stage.votes, stage.watch.quorum.given())


def play(plan: Plan, *, keep_trace: bool = False) -> Verdict:
    """Run a history to its verdict. Any error in it is its failure."""
    began = time.process_time()
    verdict = Verdict(plan.seed)
    world = SimWorld(plan.seed, max_steps=MAX_STEPS)
    scenario = Scenario(Stage(plan, world))
    stage = scenario.stage
    try:
        with remarks(world.trace, stage.watch, is_wanted=keep_trace), few_entries_kept(), shrunk(plan.sizes), world:
            world.run(scenario.run())
    except Exception as error:  # any error is the history's failure and reported as such
        stage.watch.failed(error)
        if isinstance(error, StepLimit) and stage.watch.controller() is None:  # all nodes retry without a controller
            stage.watch.failed(Violation(CONTROLLER, str(error)))
    _tell(verdict, stage.watch.judging.breaches, stage.watch.judging.verdict)
    verdict.cpu_s = time.process_time() - began
    verdict.virtual_s = world.loop.time()
    verdict.well_after_s = scenario.well_after_s
    verdict.steps = world.loop.steps
    verdict.statistics = {
        **stage.history.statistics(),
        **(stage.transactions.statistics() if plan.transactions is not None else {}),
        "votes": sum(action.outcome is Outcome.ACKNOWLEDGED for action in stage.votes.admin),
        "terms": stage.watch.quorum.terms,
        "nodes that left": stage.cluster.failures,
    }
    verdict.faults = stage.nemesis.counts
    verdict.probes = stage.watch.probes.counts
    verdict.settings = stage.settings_changed()
    verdict.troubles = stage.troubles
    verdict.digest = world.trace.digest
    if keep_trace:
        verdict.trace = world.trace.text()
    return verdict


def _tell(verdict: Verdict, breaches: list[Breach], named: Breach | None) -> None:
    if named is not None:
        verdict.what, verdict.story = named.what, named.story
        verdict.also = tuple(breach.what for breach in breaches if breach is not named)
        verdict.details = "".join(traceback.format_exception(named.error))
