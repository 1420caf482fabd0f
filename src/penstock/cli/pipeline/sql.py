"""`penstock pipeline sql`: one query over topics and the tables of the project, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import show_json, show_table
from penstock.cli.pipeline.job_command import master_option, needs_spark
from penstock.cli.pipeline.projects import DEFINITION_WRONG, errors_as_json, project_in, project_options
from penstock.cli.pipeline.show import ROWS, cell, plain
from penstock.cli.reach.connection import BOOTSTRAP_VARIABLE, Target, json_option
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.jobs.sql import Sources
    from penstock.spark.pipeline.project import PipelineProject

SERVERS = "kafka.bootstrap.servers"
LOG = "sql.log"
FAILED = 3
LIST_TIMEOUT_S = 10.0


class _Shown(click.ClickException):
    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.message}", err=True)


class _Wrong(_Shown):
    exit_code = DEFINITION_WRONG


class _Failed(_Shown):
    exit_code = FAILED


@click.command(short_help="Query topics and tables by name.")
@click.argument("query")
@project_options
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="TOPIC=FIELDS",
    help="Fields of a topic's JSON values, for example 'clicks=id long, page string'; repeatable.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Show at most this number of rows."
)
@master_option
@click.option(
    "--fast-start", is_flag=True, help="Start the JVM faster, without its full optimization: for short queries."
)
@json_option
@errors_as_json
def sql(
    query: str,
    directory: Path,
    servers: str | None,
    schemas: tuple[str, ...],
    limit: int,
    master: str | None,
    fast_start: bool,
    as_json: bool,
) -> None:
    """Run one SQL QUERY over topics and the project's tables.

    A topic has a name that SQL can write without quotes: clicks-clean is clicks_clean. A query reads the records that
    are there now. Without a project give --bootstrap-server; then there are only topics. Times are UTC.
    """
    needs_spark()
    from penstock.spark.jobs.host import spark_for
    from penstock.spark.jobs.places import state_directory
    from penstock.spark.jobs.sql import QueryFailed, WrongQuery, answer, check_is_query

    project: PipelineProject | None = None
    try:
        check_is_query(query)
        by_topic = _schemas(schemas)
        project = _project(directory, servers)
        options = {SERVERS: Target.find(servers).servers} if project is None else project.client_options
        sources = _sources(query, project, options)
        sources.named_in(query)
        log = (state_directory().parent / "sql" if project is None else project.state) / LOG
        configured = None if project is None else project.configuration.get("spark.master")
        with spark_for("penstock pipeline sql", log, master or configured, fast_start=fast_start) as spark:
            rows = answer(spark, query, sources, limit, schemas=by_topic, options=options)
    except (WrongQuery, QueryFailed, ConfigError) as error:
        text = str(error) if project is None else project.secrets.hide(str(error))
        raise (_Failed if isinstance(error, QueryFailed) else _Wrong)(text) from error
    shown = [{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()]
    if as_json:
        show_json({"columns": rows.column_names, "rows": shown, "error": None})
    elif shown:
        show_table(rows.column_names, [[cell(value) for value in row.values()] for row in shown])
    else:
        click.echo("The query has no rows.")


def _project(directory: Path, servers: str | None) -> PipelineProject | None:
    from penstock.spark.pipeline.errors import NoProject

    try:
        return project_in(directory, servers).resolved()
    except NoProject as error:
        if servers or os.environ.get(BOOTSTRAP_VARIABLE):
            return None
        raise ConfigError(f"{error}; without a project give --bootstrap-server") from error


def _schemas(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        topic, equals, fields = text.partition("=")
        if not equals or not topic.strip() or not fields.strip():
            raise ConfigError(f"--schema is {text!r}: write TOPIC=FIELDS, for example 'clicks=id long, page string'")
        found[topic.strip()] = fields
    return found


def _sources(query: str, project: PipelineProject | None, options: Mapping[str, str]) -> Sources:
    """Tables can be read while no broker answers."""
    from penstock.spark.jobs.sql import Sources
    from penstock.spark.pipeline.tables import table_directories

    tables = {} if project is None else table_directories(project)
    try:
        return Sources(_topics(options), tables)
    except ConfigError:
        raise
    except PenstockError as error:
        alone = Sources(tables=tables)
        if not alone.has_table(query):
            raise
        click.echo(f"penstock: only tables can be read: {error}", err=True)
        return alone


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    """All of the cluster but internal ones."""
    from penstock.spark.options.cluster import cluster_options, prefixed
    from penstock.wire_client.blocking.cluster import BlockingCluster

    settings: dict[str, object] = {
        name: text for name, text in prefixed(options).items() if name != "bootstrap.servers"
    }
    Target.find(options.get(SERVERS), settings=settings).check()
    where = cluster_options(options)
    with closing(BlockingCluster(where.bootstrap, where.client_id, where.security, LIST_TIMEOUT_S)) as cluster:
        return tuple(sorted(name for name, info in cluster.topics(None).items() if not info.is_internal))
