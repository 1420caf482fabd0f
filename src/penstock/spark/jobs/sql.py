"""One SQL query over topics and the tables of a project, by name.

Only what the query names becomes a view, because each view takes a moment. A name that is both a topic's and a table's
is refused; `topic_NAME` and `table_NAME` are always possible. A query never changes anything.
Must not know: the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model.errors import PenstockError
from penstock.spark.pipeline.events import cause_of
from penstock.spark.pipeline.tables import is_open
from penstock.spark.tables.datasource import FORMAT
from penstock.spark.topic_views import register_topics, view_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Any
"""An Arrow table."""

QUERIES = ("select", "with", "values", "from", "table", "show", "describe", "desc", "explain")
_STATEMENTS = ("show", "describe", "desc", "explain")
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_WORD = re.compile(r"`([^`]+)`|(\w+)")
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)|; line (\d+) pos (\d+)")
_SHOWN_NAMES = 20
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_OF_A_SOURCE = "[PYTHON_DATA_SOURCE_ERROR]"


class WrongQuery(PenstockError):
    """What is asked cannot be answered, in one sentence."""


class QueryFailed(PenstockError):
    """A good query that failed while it ran."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a query may name."""

    topics: tuple[str, ...] = ()
    tables: Mapping[str, Path] = field(default_factory=dict)
    """Directories by names without database."""

    def names(self) -> list[str]:
        """Of all views that there could be."""
        return sorted({*map(view_name, self.topics), *map(view_name, self.tables)})

    def has_table(self, query: str) -> bool:
        return bool(_by_view(self.tables, "table", words_of(query)))

    def named_in(self, query: str) -> Named:
        """Raises WrongQuery if a name has two meanings."""
        words = words_of(query)
        topics = _by_view(self.topics, "topic", words)
        tables = _by_view(self.tables, "table", words)
        both = sorted(topics.keys() & tables.keys())
        if both:
            raise WrongQuery(
                f"{both[0]} is a topic and a table of the project: write topic_{both[0]} or table_{both[0]}"
            )
        return Named(topics, {view: self.tables[name] for view, name in tables.items()})


@dataclass(frozen=True, slots=True)
class Named:
    topics: Mapping[str, str]
    """By view."""
    tables: Mapping[str, Path]


def _by_view(names: Iterable[str], kind: str, words: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        for view in (view_name(name).lower(), f"{kind}_{view_name(name).lower()}"):
            if view in words:
                other = found.setdefault(view, name)
                if other != name:
                    raise WrongQuery(f"{kind}s '{other}' and '{name}' would both be the view {view}")
    return found


def words_of(query: str) -> set[str]:
    """What may be names, in lower case."""
    return {(quoted or plain).lower() for quoted, plain in _WORD.findall(_SKIPPED.sub(" ", query))}


def check_is_query(query: str) -> None:
    """Without Spark, so that a slip costs no time. Raises WrongQuery."""
    if not query.strip():
        raise WrongQuery("the query is empty: write for example 'SELECT count(*) FROM clicks'")
    if _first_word(query) not in QUERIES:
        raise WrongQuery(f"this is no query: it must begin with {', '.join(QUERIES).upper()}")


def _first_word(query: str) -> str:
    found = re.match(r"[\s(]*(\w*)", re.sub(r"--[^\n]*|/\*.*?\*/", " ", query, flags=re.DOTALL))
    return found[1].lower() if found else ""


def answer(
    spark: SparkSession,
    query: str,
    sources: Sources,
    limit: int,
    *,
    schemas: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Rows:
    """At most `limit` rows. `options`: of the reads of topics. Raises WrongQuery, QueryFailed, ConfigError."""
    named = sources.named_in(query)
    chosen = {topic: schema for topic, schema in (schemas or {}).items() if topic in named.topics.values()}
    with _errors_only_raised(), _errors_in_one_sentence(sources):
        if named.topics:
            made = register_topics(spark, named.topics.values(), schemas=chosen, **(options or {}))
            of_topic = {topic: view for view, topic in made.items()}
            for view, topic in named.topics.items():
                if view.lower() != of_topic[topic].lower():
                    spark.table(of_topic[topic]).createOrReplaceTempView(view)
        for view, directory in named.tables.items():
            kind = FORMAT if is_open(directory) else "parquet"
            spark.read.format(kind).load(str(directory)).createOrReplaceTempView(view)
        _refuse_changes(spark, query)
        frame = spark.sql(query)
        names = _different(frame.columns)
        return frame.toDF(*names).limit(limit).toArrow()


@contextmanager
def _errors_in_one_sentence(sources: Sources) -> Iterator[None]:
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except PySparkException as error:
        text = str(error)
        if isinstance(error, AnalysisException) and _OF_A_SOURCE not in text:
            raise WrongQuery(useful_part(text, sources)) from error
        raise QueryFailed(f"the query failed: {cause_of(text)}") from error


@contextmanager
def _errors_only_raised() -> Iterator[None]:
    """PySpark also logs an error of SQL, as JSON on standard error."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]  # of its own class: it gives them more arguments
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


def _refuse_changes(spark: SparkSession, query: str) -> None:
    """WITH and FROM may begin an INSERT."""
    if _first_word(query) in _STATEMENTS:
        return
    session: Any = spark
    plans = [session._jsparkSession.sessionState().sqlParser().parsePlan(query)]
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    kinds = [session._jvm.java.lang.Class.forName(f"{logical}.{name}") for name in ("Command", "ParsedStatement")]
    while plans:
        plan = plans.pop()
        if any(kind.isInstance(plan) for kind in kinds):
            raise WrongQuery("this is no query: it would change something")
        children = plan.children()
        plans += [children.apply(index) for index in range(children.size())]


def _different(names: Iterable[str]) -> list[str]:
    """`count(1)` may be there twice, and JSON needs each name once."""
    found: list[str] = []
    for name in names:
        number, one = 1, name
        while one in found:
            number += 1
            one = f"{name}_{number}"
        found.append(one)
    return found


def useful_part(text: str, sources: Sources) -> str:
    """What an error of Spark's analysis says, and where."""
    if "[TABLE_OR_VIEW_NOT_FOUND]" in text:
        name = re.search(r"The table or view (\S+) cannot be found", text)
        names = sources.names()
        there = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        what = "there is neither a topic nor a table " if sources.tables else "there is no topic "
        return f"{what}{name[1] if name else 'of this name'} (there are: {there or 'none'})"
    place = _PLACE.search(text)
    if place is None:
        return cause_of(text)
    line, column = (int(one) for one in place.groups() if one is not None)
    return f"line {line}, character {column + 1}: {cause_of(text)}"
