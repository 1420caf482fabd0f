"""Topics as temporary views of a session, to be queried by name.

    register_topics(spark, ["clicks-clean"], schemas={"clicks-clean": "id long, page string"})
    spark.sql("SELECT value.page, count(*) FROM clicks_clean GROUP BY 1")

A view is a batch read. Each query reads up to the ends of its own time. Spark keeps the plan of a read for all queries
on it, except where it asks the source about a condition. So a view has a condition that is always true; with it Spark
plans the read anew, if the session has filter pushdown (`session()` has).

Every Python worker imports this module with its package, so it imports the rest on request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHOSEN_HERE = ("subscribe", "subscribePattern", "assign", "valueFormat", "valueSchema", "filterPushdown")
SERVERS = "kafka.bootstrap.servers"
ALWAYS = "offset >= 0"
LIST_TIMEOUT_S = 20.0


def register_topics(
    spark: SparkSession,
    topics: Iterable[str] | None = None,
    *,
    schemas: Mapping[str, str] | None = None,
    bootstrap_servers: str | None = None,
    **options: str,
) -> dict[str, str]:
    """Makes or replaces a view for each topic. Returns the topics by the names of their views.

    topics: None takes all topics but internal ones.
    schemas: by topic, the fields of its JSON values, which become typed columns.
    options: any others of a batch read.

    Raises ConfigError, and then makes no view.
    """
    from penstock.spark.source.options import SourceOptions
    from penstock.wire_client.blocking.cluster import BlockingCluster

    common = {name: str(value) for name, value in options.items()}
    if bootstrap_servers is not None:
        common[SERVERS] = bootstrap_servers
    for name in CHOSEN_HERE:
        if name.lower() in {given.lower() for given in common}:
            raise ConfigError(f"option '{name}' follows from topics and schemas here: leave it out")
    where = SourceOptions.for_batch({**common, "subscribe": "any"}).cluster
    with closing(BlockingCluster(where.bootstrap, where.client_id, where.security, LIST_TIMEOUT_S)) as cluster:
        known = cluster.topics(None)
    schemas = dict(schemas or {})
    chosen = sorted(name for name in known if not known[name].is_internal) if topics is None else _named(topics)
    for topic in [*chosen, *schemas]:
        if topic not in known:
            raise ConfigError(f"there is no topic '{topic}': create it first, or correct the name")
    for topic in schemas:
        if topic not in chosen:
            raise ConfigError(f"topic '{topic}' has a schema and is not among the topics: name it there, too")
    views = view_names(chosen)
    reads = {topic: {**common, "subscribe": topic} | _typed(schemas.get(topic)) for topic in chosen}
    for read in reads.values():
        SourceOptions.for_batch(read)
    for view, topic in views.items():
        spark.read.format("penstock").options(**reads[topic]).load().where(ALWAYS).createOrReplaceTempView(view)
    return views


def _named(topics: Iterable[str]) -> list[str]:
    if isinstance(topics, str):
        raise ConfigError(f"topics is '{topics}': give a list of names")
    return list(dict.fromkeys(topics))


def _typed(schema: str | None) -> dict[str, str]:
    return {} if schema is None else {"valueFormat": "json", "valueSchema": schema}


def view_name(topic: str) -> str:
    """The name without what SQL would need quotes for: `clicks-clean` is `clicks_clean`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return f"_{name}" if name[:1].isdigit() else name


def view_names(topics: Iterable[str]) -> dict[str, str]:
    """The topics by the names of their views. Raises ConfigError if two would have the same: SQL ignores case."""
    found: dict[str, str] = {}
    taken: dict[str, str] = {}
    for topic in topics:
        name = view_name(topic)
        other = taken.setdefault(name.lower(), topic)
        if other != topic:
            raise ConfigError(f"topics '{other}' and '{topic}' would both be the view {name}: name one of them")
        found[name] = topic
    return found
