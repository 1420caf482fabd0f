"""Topics and tables by name in a real Spark session: `register_topics` and `penstock pipeline sql`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import ConfigError
from penstock.sdk import BlockingAdmin
from penstock.spark import register_topics
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.testing import Broker
from support.processes.command_line import CommandLine

if TYPE_CHECKING:
    from spark.conftest import Topics

SCHEMA = "id long not null, page string"
SPEC = "name: shop\nstorage: storage\nlibraries:\n  - glob: {include: transformations/**}\n"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def clicks(first: int, last: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"%d" % n, b'{"id": %d, "page": "/%s"}' % (n, b"ab"[n % 2 :][:1])) for n in range(first, last)]


def test_views_of_topics(spark: SparkSession, topics: Topics) -> None:
    topics.create("views-clicks.typed")
    topics.create("views-plain")
    topics.fill("views-clicks.typed", clicks(0, 10))
    topics.fill("views-plain", [(b"k", b"v")])
    where = topics.bootstrap_servers
    views = register_topics(
        spark,
        ["views-clicks.typed", "views-plain"],
        schemas={"views-clicks.typed": SCHEMA},
        bootstrap_servers=where,
        includeHeaders="true",
    )
    assert views == {"views_clicks_typed": "views-clicks.typed", "views_plain": "views-plain"}
    query = "SELECT value.page, count(*) AS n FROM views_clicks_typed GROUP BY 1 ORDER BY 1"
    assert [tuple(row) for row in spark.sql(query).collect()] == [("/a", 5), ("/b", 5)]
    topics.fill("views-clicks.typed", clicks(10, 14))
    assert [tuple(row) for row in spark.sql(query).collect()] == [("/a", 7), ("/b", 7)]  # ends are those of the query
    one, other = (f"SELECT value.id FROM views_clicks_typed WHERE offset {test} 5" for test in ("<", ">="))
    assert sorted(row.id for row in spark.sql(f"{one} UNION ALL {other}").collect()) == sorted(
        row.id for row in spark.sql("SELECT value.id FROM views_clicks_typed").collect()
    )
    (row,) = spark.sql("SELECT string(value) AS v, headers FROM views_plain").collect()
    assert tuple(row) == ("v", None)

    for arguments, options, reason in (
        (["views-gone"], {}, "there is no topic 'views-gone': create it first"),
        (["views-plain"], {"schemas": {"views-clicks.typed": SCHEMA}}, "has a schema and is not among the topics"),
        (["views-plain"], {"schemas": {"views-plain": "id lng"}}, r"option 'valueSchema': .* \(character 4\)"),
        (["views-plain"], {"Subscribe": "x"}, "option 'subscribe' follows from topics"),
        ("views-plain", {}, "topics is 'views-plain': give a list"),
    ):
        with pytest.raises(ConfigError, match=reason):
            register_topics(spark, arguments, bootstrap_servers=where, **options)  # type: ignore[arg-type]


def test_all_topics_of_a_cluster(spark: SparkSession) -> None:
    with Broker() as broker:
        admin = BlockingAdmin(broker.bootstrap_servers)
        admin.create_topic("all-one")
        admin.create_topic("all-two")
        views = register_topics(spark, bootstrap_servers=broker.bootstrap_servers)
        assert views == {"all_one": "all-one", "all_two": "all-two"}
        assert spark.sql("SELECT count(*) FROM all_one").first()[0] == 0  # type: ignore[index]
        admin.create_topic("all.two")
        with pytest.raises(ConfigError, match=r"topics 'all-two' and 'all\.two' would both be the view all_two"):
            register_topics(spark, bootstrap_servers=broker.bootstrap_servers)
        admin.close()


def asked(run: CommandLine, *arguments: str, code: int = 0) -> dict[str, Any]:
    ran = run("pipeline", "sql", *arguments, "--json")
    assert ran.code == code, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    assert len(ran.err.splitlines()) == (1 if code else 0)
    return found


def test_the_command(spark: SparkSession, topics: Topics, run: CommandLine, tmp_path: Path) -> None:
    topics.create("sql-clicks")
    topics.fill("sql-clicks", [*clicks(0, 3), (b"x", b"no json")])
    at = ("--bootstrap-server", topics.bootstrap_servers)
    typed = ("--schema", f"sql-clicks={SCHEMA}")
    found = asked(run, "select string(value), count(1), count(1) from sql_clicks group by 1 order by 1 limit 1", *at)
    assert found["columns"] == ["value", "count(1)", "count(1)_2"]
    assert found["rows"] == [{"value": "no json", "count(1)": 1, "count(1)_2": 1}]
    ran = run("pipeline", "sql", "select value.*, `offset` from sql_clicks order by 3", *at, *typed, "--limit", "2")
    assert ran.out == "id  page  offset\n 0  /a         0\n 1  /b         1\n"
    ran = run("pipeline", "sql", "select * from sql_clicks where partition = 7", *at)
    assert ran.out == "The query has no rows.\n"

    wrong = asked(run, "select nothing from sql_clicks", *at, code=2)["error"]
    assert wrong.startswith("line 1, character 8: A column, variable, or function parameter with name `nothing` cannot")
    assert asked(run, "select * fron sql_clicks", *at, code=2)["error"].startswith("line 1, character ")
    assert "there is no topic `sql_clickz` (there are: " in asked(run, "select * from sql_clickz", *at, code=2)["error"]
    changes = asked(run, "with a as (select 1) insert into sql_clicks select * from a", *at, code=2)["error"]
    assert changes == "this is no query: it would change something"
    broken = asked(
        run, "select id, raise_error('so it is') from sql_clicks lateral view explode(array(1)) t as id", *at, code=3
    )
    assert broken["error"].startswith("the query failed: ")

    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    project = PipelineProject.find(tmp_path)
    for name in ("pages", "sql_clicks"):
        place = tmp_path / "warehouse" / name
        frame = spark.createDataFrame([("/a", "shoes"), ("/b", "cart")], "page string, title string")
        frame.write.format("penstock-table" if name == "pages" else "parquet").mode("append").save(str(place))
        TableLocations(project).record({("spark_catalog", "default", name): place.as_uri()})
    joined = "select title, count(*) as n from {} c join pages p on c.value.page = p.page group by 1 order by 1"
    found = asked(run, joined.format("topic_sql_clicks"), *at, *typed)
    assert found["rows"] == [{"title": "cart", "n": 1}, {"title": "shoes", "n": 2}]
    assert (
        "sql_clicks is a topic and a table of the project"
        in asked(run, joined.format("sql_clicks"), *at, code=2)["error"]
    )
    ran = run("pipeline", "sql", "select page from pages order by 1", "--bootstrap-server", "127.0.0.1:1")
    assert (ran.code, ran.out) == (0, "page\n/a\n/b\n")
    assert ran.err.startswith("penstock: only tables can be read: no broker answers at 127.0.0.1:1")
