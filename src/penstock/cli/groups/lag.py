"""`penstock lag`: how far groups are behind."""

from __future__ import annotations

import click

from penstock.cli.groups.command import group_name, lag_objects
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, json_option
from penstock.model.errors import PenstockError
from penstock.model.sink_names import SINK_PREFIX


@click.command()
@group_name(required=False)
@json_option
@cluster_command
def lag(target: Target, group_id: str | None, as_json: bool) -> None:
    """Show the lag of a group for each partition; without a name, the total lag of each group."""
    if group_id is None:
        _all_groups(target, as_json)
        return
    with target.admin() as admin:
        names = admin.group(group_id).names()
        lags = admin.lag(group_id)
    total = sum(one.lag or 0 for one in lags)
    if as_json:
        show_json({"group": group_id, "total_lag": total, "partitions": lag_objects(lags)})
        return
    show_table(
        ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CONSUMER"),
        [
            (one.topic, one.partition, one.committed, one.end_offset, one.lag, names.get(one.member_id or ""))
            for one in lags
        ],
    )
    click.echo(f"Total lag of {group_id}: {total}")


def _all_groups(target: Target, as_json: bool) -> None:
    from penstock.sdk import Refused, UnknownGroup

    sums: list[tuple[str, str, int | None]] = []
    problems: list[str] = []
    with target.admin() as admin:
        for one in admin.groups():
            if one.group_id.startswith(SINK_PREFIX):
                continue
            try:
                total: int | None = sum(part.lag or 0 for part in admin.lag(one.group_id))
            except UnknownGroup:
                continue  # deleted meanwhile
            except Refused as error:
                total = None
                problems.append(str(error))
            sums.append((one.group_id, one.state, total))
    if as_json:
        show_json([{"group": name, "state": state, "total_lag": total} for name, state, total in sums])
    elif sums:
        show_table(("GROUP", "STATE", "LAG"), sums)
    else:
        click.echo("No groups.", err=True)
    if problems:
        raise PenstockError("; ".join(problems))
