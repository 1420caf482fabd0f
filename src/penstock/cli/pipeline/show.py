"""`penstock pipeline show`: rows of a table of the project, read from its files without Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import show_json, show_table
from penstock.cli.pipeline.projects import errors_as_json, project_in, project_options
from penstock.cli.reach.connection import json_option

ROWS = 20
LONGEST_CELL = 60


@click.command()
@click.argument("table")
@project_options
@click.option(
    "--limit", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Show at most this number of rows."
)
@json_option
@errors_as_json
def show(table: str, directory: Path, servers: str | None, limit: int, as_json: bool) -> None:
    """Show rows of TABLE.

    They are the newest rows of a streaming table, the first ones of a materialized view. The
    command reads the table's files without starting Spark, also while the pipeline runs. Times are UTC.
    """
    from penstock.spark.pipeline.tables import find_table, read_rows

    found = find_table(project_in(directory, servers), table)
    read = read_rows(found, limit)
    rows = [{name: plain(value) for name, value in row.items()} for row in read.to_pylist()]
    if as_json:
        show_json({"table": found.name, "rows": rows, "error": None})
    elif not rows:
        click.echo(f"Table {found.name} has no rows.")
    else:
        show_table(read.column_names, [[cell(value) for value in row.values()] for row in rows])


def plain(value: Any) -> Any:
    """A value of Arrow's as JSON has it. Bytes that are not UTF-8 as `penstock consume --format json` has them."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta | Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def cell(value: Any) -> Any:
    """One short line."""
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."
