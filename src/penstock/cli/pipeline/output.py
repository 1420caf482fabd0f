"""Output of `penstock pipeline`: lines and tables for people, JSON objects for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import show_table

if TYPE_CHECKING:
    from penstock.spark.pipeline.errors import DefinitionError, PipelineError
    from penstock.spark.pipeline.progress import FlowProgress
    from penstock.spark.pipeline.project import PipelineProject
    from penstock.spark.pipeline.reset import ResetPlan
    from penstock.spark.pipeline.runner import RunReport
    from penstock.spark.pipeline.status import FlowStatus, PipelineStatus


def show_flow(flow: FlowProgress) -> None:
    facts = []
    if flow.is_batch:
        facts += [count(flow.rows_written, "row")] if flow.rows_written is not None else []
    elif flow.state != "running" or flow.rows_read:
        facts.append(f"{flow.rows_read} read")
        facts += [f"{flow.rows_written} written"] if flow.rows_written is not None else []
    facts += [f"lag {flow.lag}"] if flow.lag is not None else []
    if flow.state in ("failed", "skipped"):
        facts = []
    click.echo(f"  {flow.name:<20} {flow.state:<10} {', '.join(facts)}".rstrip())


def show_status(found: PipelineStatus) -> None:
    click.echo(f"Pipeline {found.name}: {found.state}{f', by {found.holder}' if found.holder else ''}")
    if found.last:
        ended = f", ended {found.last['ended']}" if found.last.get("ended") else ""
        click.echo(f"Last {found.last['mode']}: started {found.last['started']}{ended}, runs: {found.last['runs']}")
    if found.flows:
        show_table(
            ("FLOW", "STATE", "READ", "WRITTEN", "READ TOTAL", "WRITTEN TOTAL", "LAG"),
            [
                (
                    one.name,
                    one.state,
                    one.rows_read,
                    one.rows_written,
                    one.rows_read_total,
                    one.rows_written_total,
                    one.lag,
                )
                for one in found.flows
            ],
        )
    expectations = [
        (one.name, name, one.violations.get(name, 0), one.violations_total.get(name))
        for one in found.flows
        for name in {**one.violations_total, **one.violations}
    ]
    if expectations:
        click.echo()
        show_table(("FLOW", "EXPECTATION", "VIOLATIONS", "VIOLATIONS TOTAL"), expectations)
    partitions = [(one.name, part) for one in found.flows for part in one.partitions]
    if partitions:
        click.echo()
        show_table(
            ("FLOW", "TOPIC", "PARTITION", "OFFSET", "END", "LAG"),
            [(name, part.topic, part.partition, part.position, part.end, part.lag) for name, part in partitions],
        )
    broken = found.last.get("broken")
    if broken:
        for line in _mistake_lines(broken):
            click.echo(line, err=True)
    message = str(found.last.get("message") or "")
    if message:
        click.echo(message, err=True)
    for one in found.flows:
        if one.error and one.error not in message:
            click.echo(f"flow {one.name}: {one.error}", err=True)
    for problem in found.problems:
        click.echo(problem, err=True)


def _mistake_lines(broken: Mapping[str, Any]) -> Iterator[str]:
    from penstock.spark.pipeline.errors import Mistake

    yield f"The definitions have been wrong since {broken['since']}:"
    for one in broken["mistakes"]:
        yield f"  {Mistake(one['what'], one['file'], one['line'], one['flow'])}"
    if broken["running"]:
        yield f"Until they are repaired, those of {broken['running']} run."


def run_object(project: PipelineProject, report: RunReport, error: PipelineError | None) -> dict[str, Any]:
    return {
        "pipeline": project.name,
        "state": "failed" if error else "completed",
        "error": str(error) if error else None,
        "seconds": round(report.seconds, 3),
        "records_read": report.rows_read,
        "flows": [
            {
                "flow": flow.name,
                "state": str(flow.state),
                "rows_read": None if flow.is_batch else flow.rows_read,
                "rows_written": flow.rows_written,
                "lag": flow.lag,
                "violations": flow.violations,
                "error": flow.cause or None,
            }
            for flow in report.flows.values()
        ],
    }


def status_object(found: PipelineStatus) -> dict[str, Any]:
    return {
        "pipeline": found.name,
        "state": found.state,
        "held_by": found.holder,
        "last": {name: found.last.get(name) for name in ("mode", "pid", "started", "ended", "runs", "message")},
        "broken_definitions": found.last.get("broken"),
        "flows": [_flow_object(one) for one in found.flows],
        "history": [asdict(run) for run in found.runs],
        "removed_flows": [
            {
                "flow": one.flow,
                "keeps_versions": [
                    {"table": table, "from": first, "newest": newest}
                    for table, (first, newest) in one.kept_from.items()
                ],
                "released_by": one.command,
                "also_resets": list(one.also_reset),
                "also_deletes": list(one.also_deleted),
            }
            for one in found.removed
        ],
        "problems": list(found.problems),
        "error": None,
    }


def _flow_object(one: FlowStatus) -> dict[str, Any]:
    return {
        "flow": one.name,
        "target": one.target,
        "state": one.state,
        "rows_read": one.rows_read,
        "rows_written": one.rows_written,
        "rows_read_total": one.rows_read_total,
        "rows_written_total": one.rows_written_total,
        "lag": one.lag,
        "groups": list(one.groups),
        "violations": dict(one.violations),
        "violations_total": dict(one.violations_total),
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "offset": part.position,
                "end_offset": part.end,
                "lag": part.lag,
            }
            for part in one.partitions
        ],
        "error": one.error or None,
    }


def reset_object(project: PipelineProject, plan: ResetPlan, groups: Sequence[str]) -> dict[str, Any]:
    return {
        "pipeline": project.name,
        "flows": list(plan.flows),
        "deleted": [project.relative(path) for path in (*plan.directories, *plan.emptied)],
        "sent_again_to": list(plan.sinks),
        "groups_deleted": list(groups),
        "error": None,
    }


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mistakes_object(project: PipelineProject, error: DefinitionError) -> dict[str, Any]:
    return {
        "pipeline": project.name,
        "error": str(error),
        "mistakes": [
            {"file": one.file or None, "line": one.line or None, "flow": one.flow or None, "what": one.what}
            for one in error.mistakes
        ],
    }
