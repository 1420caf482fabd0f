"""Queries by name: what a query names, what is refused, and what is left of Spark's messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.model.errors import ConfigError
from penstock.spark.jobs.sql import Sources, WrongQuery, check_is_query, useful_part, words_of
from penstock.spark.topic_views import view_name, view_names
from support.processes.command_line import CommandLine

TABLES = {"events": Path("/t/events"), "stats.daily": Path("/t/daily")}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def test_names_of_views() -> None:
    assert view_names(["clicks-clean", "a.b", "2024-q1", "Plain_1"]) == {
        "clicks_clean": "clicks-clean",
        "a_b": "a.b",
        "_2024_q1": "2024-q1",
        "Plain_1": "Plain_1",
    }
    assert view_name("ünï") == "_n_"
    for one, other in (("a-b", "a.b"), ("Clicks", "clicks")):
        with pytest.raises(ConfigError, match=f"topics '{one}' and '{other}' would both be the view"):
            view_names([one, other])


def test_words_that_may_be_names() -> None:
    query = "SELECT `a b`, 'it''s clicks' /* in hits */ FROM Clicks_Clean -- of views\nJOIN \"quoted\" x ON 1.e = 2"
    words = words_of(query)
    assert {"a b", "clicks_clean", "x", "join"} <= words
    assert not {"clicks", "hits", "views", "quoted", "it"} & words


def test_only_what_is_named_is_read() -> None:
    sources = Sources(("clicks", "clicks-clean", "events", "a-b", "a.b"), TABLES)
    named = sources.named_in("select * from CLICKS_CLEAN join stats_daily")
    assert (named.topics, named.tables) == ({"clicks_clean": "clicks-clean"}, {"stats_daily": Path("/t/daily")})
    assert not sources.named_in("select 1").topics
    named = sources.named_in("select * from topic_events, table_events, clicks")
    assert named.topics == {"topic_events": "events", "clicks": "clicks"}
    assert named.tables == {"table_events": Path("/t/events")}
    with pytest.raises(WrongQuery, match="events is a topic and a table of the project: write topic_events or table_e"):
        sources.named_in("select * from Events")
    with pytest.raises(WrongQuery, match=r"topics 'a-b' and 'a\.b' would both be the view a_b"):
        sources.named_in("select * from a_b")
    assert sources.has_table("select * from table_events")
    assert not sources.has_table("select * from clicks")


@pytest.mark.parametrize(
    "query", ["select 1", " ( WITH a AS (select 1) select * from a)", "-- why\n/* so */ show views"]
)
def test_queries(query: str) -> None:
    check_is_query(query)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (" ", "the query is empty: write for example"),
        ("insert into clicks values (1)", "this is no query: it must begin with SELECT, WITH"),
        ("/* select */ drop view clicks", "this is no query"),
        ("?", "this is no query"),
    ],
)
def test_what_is_no_query(query: str, reason: str) -> None:
    with pytest.raises(WrongQuery, match=reason):
        check_is_query(query)


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `clikcs` cannot be found. Verify the spelling and correctness "
            "of the schema and catalog.\nIf you did ... SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n",
            "there is neither a topic nor a table `clikcs` (there are: clicks_clean, events, stats_daily)",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `usr` cannot be "
            "resolved. Did you mean one of the following? [`user`]. SQLSTATE: 42703; line 2 pos 7;\n'Project ['usr]\n",
            "line 2, character 8: A column, variable, or function parameter with name `usr` cannot be resolved. Did "
            "you mean one of the following? [`user`].",
        ),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'fron'. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL ==\n"
            "select * fron clicks\n---------^^^\n",
            "line 1, character 10: Syntax error at or near 'fron'.",
        ),
        ("[NO_PLACE] Something else. SQLSTATE: 42000", "Something else."),
    ],
)
def test_the_useful_part_of_spark_s_message(message: str, wanted: str) -> None:
    assert useful_part(message, Sources(("clicks-clean",), TABLES)) == wanted


def test_no_topic_of_this_name() -> None:
    message = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found."
    assert useful_part(message, Sources()) == "there is no topic `x` (there are: none)"
    many = Sources(tuple(f"t{n:02}" for n in range(30)))
    assert useful_part(message, many).endswith("t18, t19, ...)")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["delete from clicks"], "this is no query: it must begin with"),
        (["select 1", "--schema", "clicks"], "--schema is 'clicks': write TOPIC=FIELDS"),
        (["select 1"], "there is no spark-pipeline.yml in"),
        (["select 1"], "; without a project give --bootstrap-server"),
    ],
)
def test_mistakes_that_need_no_spark(run: CommandLine, arguments: list[str], reason: str) -> None:
    ran = run("pipeline", "sql", *arguments, "--json")
    assert ran.code == 2
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1
    assert reason in json.loads(ran.out)["error"]


def test_no_broker(run: CommandLine) -> None:
    ran = run("pipeline", "sql", "select 1", "--bootstrap-server", "127.0.0.1:1")
    assert ran.code == 1
    assert "no broker answers at 127.0.0.1:1" in ran.err
