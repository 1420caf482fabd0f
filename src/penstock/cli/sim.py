"""`penstock sim`: simulate histories of a whole cluster from seeds, or replay one of them in full.

For many seeds it prints progress lines, then the totals of all histories. For a seed that fails it prints the command
that replays it, and the exit code is 1. Must not know: what a history consists of.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

import click
from click.core import ParameterSource

from penstock.cli.output import show_table
from penstock.model.errors import ConfigError
from penstock.sim.faults.plan import ALL_KINDS
from penstock.sim.plan import draw
from penstock.sim.planted.bugs import BUGS
from penstock.sim.planted.known_seeds import FOUND_BY
from penstock.sim.probes import STATES
from penstock.sim.scenario import Verdict
from penstock.sim.seeds import HistoryRequest, find, play_many, play_one
from penstock.sim.tuning import settings_changed

FAILED = 1
PROGRESS_EVERY_S = 5.0


def _numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(",") if part)
    except ValueError:
        raise click.BadParameter("give numbers separated by commas") from None


@click.command("sim")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Number of histories.")
@click.option("--start", type=int, default=0, show_default=True, help="First seed.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=None, help="Number of processes (default: one for each CPU)."
)
@click.option("--seed", type=int, default=None, help="Run only the history of this seed.")
@click.option("--trace", is_flag=True, help="With --seed: print every event of the history.")
@click.option(
    "--nodes", type=click.IntRange(min=1), default=None, help="Number of brokers (default: the seed decides)."
)
@click.option(
    "--faults",
    callback=_numbers,
    default=None,
    help="With --seed: inject only these faults of its plan, for example 0,3,4.",
)
@click.option("--bug", type=click.Choice(list(BUGS)), default=None, help="Plant this bug: histories should fail.")
@click.option("--bugs", is_flag=True, help="Plant each bug in turn and find a seed that reveals it.")
@click.option("--probes", is_flag=True, help="At the end, count the histories with each fault, setting and state.")
@click.option("--keep-going", is_flag=True, help="Continue after a failed history.")
def sim(
    seeds: int,
    start: int,
    jobs: int | None,
    seed: int | None,
    trace: bool,
    nodes: int | None,
    faults: tuple[int, ...] | None,
    bug: str | None,
    bugs: bool,
    probes: bool,
    keep_going: bool,
) -> int:
    """Simulate a cluster of real brokers from a seed, inject faults, and check the promises to clients.

    The same seed always gives the same history. For a failure, the command that replays it is printed.
    """
    if seed is not None:
        given = click.get_current_context().get_parameter_source
        others = [name for name in ("seeds", "start", "jobs") if given(name) is ParameterSource.COMMANDLINE]
        if others:
            raise ConfigError(f"--seed is for one history and --{others[0]} for many: give only one of them")
        planned = len(draw(seed, nodes=nodes).faults)
        for number in faults or ():
            if not 0 <= number < planned:
                raise ConfigError(f"--faults {number}: the plan of seed {seed} has {planned} faults, numbered from 0")
        return _one(HistoryRequest(seed, nodes, faults, bug, keep_trace=trace), probes=probes)
    if trace or faults is not None:
        raise ConfigError("--trace and --faults are for one history: choose it with --seed")
    jobs = jobs or os.cpu_count() or 1
    if bugs:
        return _bugs(range(start, start + seeds), jobs)
    requests = [HistoryRequest(number, nodes, None, bug) for number in range(start, start + seeds)]
    return _many(requests, jobs, keep_going=keep_going, probes=probes)


def _one(request: HistoryRequest, *, probes: bool) -> int:
    verdict = play_one(request)
    if request.keep_trace:
        click.echo(verdict.trace, nl=False)
    plan = draw(request.seed, nodes=request.nodes, only=request.only)
    kind = "durable" if plan.is_durable else "flushed by the system"
    click.echo(
        f"seed {plan.seed}: {plan.nodes} brokers{' and one that joins' * bool(plan.joins)}, {len(plan.topics)} topics "
        f"({kind}), {plan.producers} producers, {plan.readers} readers, {plan.members} group members"
        + (f", {plan.transactions.sources} transactional ids" if plan.transactions is not None else "")
    )
    for fault in plan.faults:
        click.echo(f"  {fault}")
    _show_totals([verdict], verdict.cpu_s)
    if probes:
        _show_probes([verdict])
    click.echo(f"digest {verdict.digest}")
    if verdict.is_good:
        return 0
    if request.keep_trace:
        click.echo(verdict.details, err=True)
    _show_failure(verdict, request)
    return FAILED


def _many(requests: list[HistoryRequest], jobs: int, *, keep_going: bool, probes: bool) -> int:
    began = told = time.monotonic()
    by_seed = {request.seed: request for request in requests}
    verdicts: list[Verdict] = []
    failures: list[Verdict] = []
    for verdict in play_many(requests, jobs):
        verdicts.append(verdict)
        if not verdict.is_good:
            failures.append(verdict)
            _show_failure(verdict, by_seed[verdict.seed])
            if not keep_going:
                break
        if time.monotonic() - told >= PROGRESS_EVERY_S:
            told = time.monotonic()
            click.echo(f"{len(verdicts)} of {len(requests)} histories, {len(failures)} failed", err=True)
    _show_totals(verdicts, time.monotonic() - began)
    if probes:
        _show_counts("fault", ALL_KINDS, [verdict.faults for verdict in verdicts])
        _show_counts("setting changed", settings_changed(), [verdict.settings for verdict in verdicts])
        _show_probes(verdicts)
    return FAILED if failures else 0


def _bugs(seeds: range, jobs: int) -> int:
    """Prints each bug when it is found, and a table of all bugs at the end. The known seed of a bug is tried first."""
    found: list[tuple[str, str, str, str]] = []
    for bug in BUGS.values():
        known = [FOUND_BY[bug.name]] if bug.name in FOUND_BY else []
        verdict = find(bug.name, known) or find(bug.name, seeds, jobs)
        seed, what = ("none", "") if verdict is None else (str(verdict.seed), verdict.what)
        click.echo(f"{bug.name}: seed {seed}: {bug.judge}", err=True)
        found.append((bug.name, seed, what, bug.story))
    show_table(["planted bug", "found by seed", "as a breach of", "what it does"], found)
    missing = [name for name, seed, *_ in found if seed == "none"]
    if missing:
        click.echo(
            f"not found by their judges in {len(seeds)} seeds, starting at {seeds.start}: {', '.join(missing)}",
            err=True,
        )
    return FAILED if missing else 0


def _show_failure(verdict: Verdict, request: HistoryRequest) -> None:
    sys.stdout.flush()
    click.echo(f"seed {verdict.seed} failed: {verdict.what}: {verdict.story}", err=True)
    if verdict.also:
        click.echo(f"soon after: {'; '.join(verdict.also)}", err=True)
    click.echo(f"replay it with: {request.command}", err=True)


def _show_totals(verdicts: list[Verdict], took_s: float) -> None:
    good = sum(verdict.is_good for verdict in verdicts)
    virtual_s = sum(verdict.virtual_s for verdict in verdicts)
    click.echo(
        f"{len(verdicts)} histor{'y' if len(verdicts) == 1 else 'ies'}, {good} good: {virtual_s:,.0f} virtual seconds "
        f"in {took_s:,.1f} s ({sum(verdict.cpu_s for verdict in verdicts) / len(verdicts):.2f} CPU-s each)"
    )
    waits = sorted(verdict.well_after_s for verdict in verdicts if verdict.well_after_s is not None)
    if waits:
        p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
        click.echo(
            f"recovered after {waits[len(waits) // 2]:.1f} s (median), {p99:.1f} s (p99), {waits[-1]:.1f} s (longest)"
        )
    rows = [
        ("history", sum((Counter(verdict.statistics) for verdict in verdicts), Counter())),
        ("faults", sum((verdict.faults for verdict in verdicts), Counter())),
        ("settings", sum((verdict.settings for verdict in verdicts), Counter())),
        ("clients met", sum((verdict.troubles for verdict in verdicts), Counter())),
    ]
    show_table(
        ["", "how often"],
        [(name, ", ".join(f"{what} {count}" for what, count in counts.items())) for name, counts in rows],
    )


def _show_probes(verdicts: list[Verdict]) -> None:
    _show_counts("state", STATES, [verdict.probes for verdict in verdicts])


def _show_counts(what: str, names: Sequence[str], found: Sequence[Counter[str]]) -> None:
    """Prints the number of histories with each name, and its total count. Names without a history are shown, too."""
    counts = sum(found, Counter())
    seeds = Counter(name for one in found for name in one)
    show_table([what, "histories", "how often"], [(name, str(seeds[name]), str(counts[name])) for name in names])
