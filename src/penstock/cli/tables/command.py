"""`penstock table`: follow, show, query, compact, expire, history."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.arguments.times import Duration
from penstock.cli.output import show_json, show_table
from penstock.cli.reach.connection import Target, cluster_command, json_option
from penstock.cli.reach.wire_admin import wire_cluster
from penstock.cli.tables.follow import follow
from penstock.cli.tables.options import age_of, needs_tables, open_table, table_argument
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.tables import Table

_STREAM = re.compile(r"penstock/[^/]+/(\d+)")
MAX_ROWS = 1000
QUOTE = '"'


@click.group()
def table() -> None:
    """Keep topics as tables in an open format, and look after them."""


table.add_command(follow)


@table.command()
@table_argument
@json_option
@needs_tables
def show(directory: Path, as_json: bool) -> None:
    """Show a table's schema, size and positions."""
    from penstock.arrow.values import schema_text
    from penstock.topic_tables.opening import MODE, TOPIC, key_of

    opened = open_table(directory)
    dead = _dead_letters(directory)
    facts: dict[str, Any] = {
        "table": str(directory),
        "version": opened.version,
        "oldest_version": opened.oldest_version,
        "rows": opened.rows,
        "files": opened.files,
        "size_bytes": opened.size_bytes,
        "schema": schema_text(opened.schema),
        "partition_by": list(opened.partition_by),
        "topic": opened.properties.get(TOPIC),
        "mode": opened.properties.get(MODE),
        "key": list(key_of(opened)),
        "positions": dict(sorted(opened.positions.items())),
        "dead_letters": None if dead is None else dead.rows,
    }
    if as_json:
        show_json(facts)
        return
    click.echo(f"Table {directory}: version {opened.version}, readable from {opened.oldest_version}")
    rows = "" if opened.rows is None else f"{opened.rows} rows in "
    click.echo(f"{rows}{_files(opened.files)} of {opened.size_bytes / 1e6:.1f} MB")
    if opened.partition_by:
        click.echo(f"Partitioned by {', '.join(opened.partition_by)}")
    if key_of(opened):
        click.echo(f"The newest row of each {', '.join(key_of(opened))}")
    if dead is not None:
        click.echo(f"{dead.rows} dead letters in {dead.directory}")
    click.echo()
    show_table(("COLUMN", "TYPE"), [schema_text([field]).split(" ", 1) for field in opened.schema])
    if opened.positions:
        click.echo()
        show_table(("STREAM", "NEXT OFFSET"), _positions(opened))


def _positions(opened: Table) -> list[tuple[str, int]]:
    from penstock.topic_tables.opening import TOPIC

    topic = opened.properties.get(TOPIC)
    found = []
    for stream, offset in opened.positions.items():
        partition = _STREAM.fullmatch(stream)
        name = f"{topic}, partition {partition[1]}" if topic and partition else stream
        found.append((int(partition[1]) if partition else -1, name, offset))
    return [(name, offset) for _, name, offset in sorted(found)]


def _dead_letters(directory: Path) -> Table | None:
    from penstock.tables import NoTable, Table
    from penstock.topic_tables.dead_letters import NAME

    try:
        return Table.open(directory / NAME)
    except NoTable:
        return None


@table.command()
@table_argument
@click.argument("sql")
@click.option("--version", type=click.IntRange(0), help="Read this version of the table (default: the newest).")
@click.option("--live", is_flag=True, help="With the records of the topic that the table does not have yet.")
@json_option
@cluster_command
@needs_tables
def query(target: Target, directory: Path, sql: str, version: int | None, live: bool, as_json: bool) -> None:
    """Query a table with DuckDB. In SQL it is called t, and its dead letters dead_letters."""
    if live and version is not None:
        raise click.UsageError("--live reads the newest version: it goes without --version")
    if find_spec("duckdb") is None:
        raise PenstockError("queries need DuckDB: pip install duckdb")
    import duckdb

    opened = open_table(directory)
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    if live:
        _register_live(connection, target, directory)
    else:
        connection.register("t", opened.at(version).dataset())
    dead = _dead_letters(directory)
    if dead is not None:
        connection.register("dead_letters", dead.at().dataset())
    try:
        answer = connection.execute(sql)
        names = [one[0] for one in answer.description or ()]
        rows = answer.fetchmany(MAX_ROWS + 1)
    except duckdb.Error as error:
        raise ConfigError(str(error).partition("\n\n")[0].replace("\n", " ")) from None
    if as_json:
        show_json([dict(zip(names, map(_plain, row), strict=True)) for row in rows[:MAX_ROWS]])
    else:
        show_table(names, [[_plain(value) for value in row] for row in rows[:MAX_ROWS]])
    if len(rows) > MAX_ROWS:
        click.echo(f"penstock: only the first {MAX_ROWS} rows are shown: add a limit, or use DuckDB itself", err=True)


def _register_live(connection: Any, target: Target, directory: Path) -> None:
    from penstock.topic_tables import read_live

    with wire_cluster(target) as cluster:
        found = read_live(directory, cluster)
    connection.register("rows_of_t", found.dataset())
    connection.register("tail_of_t", found.tail)
    rows = "rows_of_t"
    if found.replaced is not None:
        connection.register("replaced_of_t", found.replaced)
        quoted = (f'"{name.replace(QUOTE, 2 * QUOTE)}"' for name in found.replaced.column_names)
        rows += f" anti join replaced_of_t using ({', '.join(quoted)})"
    connection.execute(f"create view t as select * from {rows} union all by name select * from tail_of_t")


def _plain(value: Any) -> Any:
    """Numbers as they are, bytes as text if they are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


@table.command()
@table_argument
@click.option("--thorough", is_flag=True, help="As few files as possible, at any cost.")
@json_option
@needs_tables
def compact(directory: Path, thorough: bool, as_json: bool) -> None:
    """Merge small files. Readers are not disturbed."""
    opened = open_table(directory)
    tables = [opened, *filter(None, [_dead_letters(directory)])]
    done = [one.compact(is_thorough=thorough) for one in tables]
    merged, made = sum(one.merged for one in done), sum(one.made for one in done)
    if as_json:
        show_json({"table": str(directory), "version": opened.version, "merged": merged, "made": made})
    else:
        click.echo(f"Merged {_files(merged)} into {made}; the table has {_files(opened.files)} now.")


@table.command()
@table_argument
@click.option(
    "--older-than",
    type=Duration(),
    default="1d",
    show_default=True,
    help="Versions that were replaced longer ago can no longer be read.",
)
@json_option
@needs_tables
def expire(directory: Path, older_than: int, as_json: bool) -> None:
    """Delete old versions, and the files that only they need."""
    opened = open_table(directory)
    age = age_of(older_than)
    done = [one.expire(age) for one in (opened, *filter(None, [_dead_letters(directory)]))]
    files, size_bytes = sum(one.files for one in done), sum(one.size_bytes for one in done)
    oldest = done[0].oldest_version
    if as_json:
        show_json({"table": str(directory), "oldest_version": oldest, "files": files, "size_bytes": size_bytes})
    else:
        click.echo(f"Deleted {_files(files)} of {size_bytes / 1e6:.1f} MB; version {oldest} is the oldest to be read.")


@table.command()
@table_argument
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The number of versions.")
@json_option
@needs_tables
def history(directory: Path, limit: int, as_json: bool) -> None:
    """List the versions of a table, newest first."""
    entries = list(open_table(directory).history(limit))
    if as_json:
        show_json(
            [
                {
                    "version": one.version,
                    "time": None if one.when is None else one.when.isoformat(),
                    "operation": one.operation,
                    "parameters": dict(one.parameters),
                    "metrics": dict(one.metrics),
                    "positions": {stream: list(span) for stream, span in one.positions.items()},
                }
                for one in entries
            ]
        )
        return
    show_table(
        ("VERSION", "TIME", "OPERATION", "FILES", "REMOVED", "OFFSETS"),
        [
            (
                one.version,
                None if one.when is None else one.when.isoformat(timespec="milliseconds"),
                one.operation,
                one.metrics.get("numFiles"),
                one.metrics.get("numRemovedFiles"),
                sum(span.end - span.start for span in one.positions.values()) or None,
            )
            for one in entries
        ],
    )


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"
