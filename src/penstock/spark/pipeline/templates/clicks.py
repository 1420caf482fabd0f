"""The template `clicks`: JSON is checked, good rows go to a table and a topic, bad ones to a dead-letter topic."""

from __future__ import annotations

from penstock.spark.pipeline.templates.project_files import IGNORED, Template, specification

_SETTINGS = """\
  penstock.output.topic: "$output_topic"
  penstock.dead.letter.topic: "$dead_letter_topic"
  # Or at-least-once: then a batch that is repeated after a failure is in the topics twice.
  penstock.deliveryGuarantee: "exactly-once"
"""

_CLICKS = '''\
"""Reads clicks from topics: good ones go to the table `events` and to a topic, bad ones to the dead-letter topic.

A click is JSON: {"user": "ada", "page": "/cart", "ts": "2026-03-01T12:00:00Z", "ms": 120}; ts may also be milliseconds.
"""

from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.expectations import expect

spark = SparkSession.active()

# client options for sources and sinks, such as kafka.bootstrap.servers
CLUSTER = {
    name.removeprefix("penstock."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("penstock.kafka.")
}
INTO_TOPICS = {**CLUSTER, "deliveryGuarantee": spark.conf.get("penstock.deliveryGuarantee")}
CLICK = "user STRING, page STRING, ts STRING, ms BIGINT, unreadable STRING"


@dp.temporary_view
def clicks() -> DataFrame:
    """Every record, with the reason why it is bad; null for a good record."""
    records = (
        spark.readStream.format("penstock")
        .options(**CLUSTER)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", spark.conf.get("penstock.source.topics"))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000")
        .load()
    )
    parsed = records.withColumn(
        "click",
        F.from_json(F.col("value").cast("string"), CLICK, {"columnNameOfCorruptRecord": "unreadable"}),
    )
    return parsed.withColumn(
        "time", F.expr("coalesce(timestamp_millis(try_cast(click.ts AS BIGINT)), try_to_timestamp(click.ts))")
    ).withColumn(
        "reason",
        F.expr("""
            CASE WHEN value IS NULL THEN 'there is no value'
                 WHEN click IS NULL OR click.unreadable IS NOT NULL THEN 'the value is not JSON of a click'
                 WHEN coalesce(click.user, '') = '' THEN 'user is missing'
                 WHEN coalesce(click.page, '') = '' THEN 'page is missing'
                 WHEN time IS NULL THEN 'ts is missing or not a time'
                 WHEN click.ms IS NULL OR click.ms < 0 THEN 'ms is missing or negative'
            END
        """),
    )


@dp.table(comment="Good clicks")
def events() -> DataFrame:
    """Slow ones stay, and `penstock pipeline status` counts them. With on_violation="drop" they would leave."""
    good = (
        spark.readStream.table("clicks")
        .where("reason IS NULL")
        .selectExpr("click.user", "click.page", "time AS ts", "click.ms", "topic", "partition", "offset")
    )
    return expect(good, {"answered within a second": "ms < 1000"})


# -- results, to another topic ----------------------------------------------------------

dp.create_sink("output_topic", "penstock", {**INTO_TOPICS, "topic": spark.conf.get("penstock.output.topic")})


@dp.append_flow(target="output_topic", name="results")
def results() -> DataFrame:
    """Good clicks with the page as key, marked as slow or not."""
    return spark.readStream.table("events").selectExpr(
        "page AS key", "to_json(struct(user, page, ts, ms, ms >= 1000 AS slow)) AS value"
    )


# -- bad records, unchanged, with the reason --------------------------------------------

dp.create_sink("dead_letter_topic", "penstock", {**INTO_TOPICS, "topic": spark.conf.get("penstock.dead.letter.topic")})


def header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


@dp.append_flow(target="dead_letter_topic", name="dead_letters")
def dead_letters() -> DataFrame:
    return (
        spark.readStream.table("clicks")
        .where("reason IS NOT NULL")
        .select(
            "key",
            "value",
            F.array(
                header("error.reason", F.col("reason")),
                header("error.topic", F.col("topic")),
                header("error.partition", F.col("partition")),
                header("error.offset", F.col("offset")),
            ).alias("headers"),
        )
    )
'''

_TEST = '''\
"""The pipeline on a few clicks, with a broker and tables of each test: `pytest` in the project's directory."""

from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_good_clicks_and_bad_ones(penstock_pipeline):
    pipeline = penstock_pipeline(PROJECT)
    pipeline.produce(
        "$first_topic",
        [
            {"user": "ada", "page": "/cart", "ts": "2026-03-01T12:00:00Z", "ms": 1480},
            {"user": "", "page": "/cart", "ts": "2026-03-01T12:00:01Z", "ms": 95},
            b"this is not JSON",
        ],
    )
    flows = pipeline.run()

    (event,) = pipeline.table("events")
    assert (event["user"], event["page"], event["ms"]) == ("ada", "/cart", 1480)
    assert flows["events"].violations == {"answered within a second": 1}
    (result,) = pipeline.topic("$output_topic")
    assert result["slow"] is True
    letters = pipeline.records("$dead_letter_topic")
    assert [dict(letter.headers)["error.reason"] for letter in letters] == [
        b"user is missing",
        b"the value is not JSON of a click",
    ]


def test_views_of_a_page(penstock_pipeline):
    pipeline = penstock_pipeline(PROJECT)
    for user in ("ada", "grace"):
        pipeline.produce("$first_topic", [{"user": user, "page": "/", "ts": 1772366440000, "ms": 100}])
    pipeline.run()
    (page,) = pipeline.table("page_stats")
    assert (page["page"], page["views"], page["users"], page["mean_ms"]) == ("/", 2, 2, 100.0)
'''

_PAGE_STATS = """\
-- Views and users of each page: computed from the table `events` in each run.
CREATE MATERIALIZED VIEW page_stats AS
SELECT page,
       count(*) AS views,
       count(DISTINCT user) AS users,
       round(avg(ms), 1) AS mean_ms,
       max(ts) AS last_seen
FROM events
GROUP BY page;
"""

_EVENTS = """\
{"user": "ada", "page": "/", "ts": "2026-03-01T12:00:00Z", "ms": 84}
{"user": "ada", "page": "/shoes", "ts": "2026-03-01T12:00:07Z", "ms": 120}
{"user": "grace", "page": "/", "ts": "2026-03-01T12:00:09Z", "ms": 77}
{"user": "ada", "page": "/cart", "ts": "2026-03-01T12:00:31Z", "ms": 1480}
{"user": "linus", "page": "/", "ts": "2026-03-01T12:00:33Z", "ms": 91}
{"user": "grace", "page": "/shoes", "ts": 1772366440000, "ms": 133}
{"user": "grace", "page": "/cart", "ts": "2026-03-01T12:00:58Z", "ms": 210}
{"user": "", "page": "/cart", "ts": "2026-03-01T12:01:00Z", "ms": 95}
{"user": "linus", "page": "/shoes", "ts": "2026-03-01T12:01:02Z", "ms": -5}
{"user": "linus", "page": "/shoes", "ts": "yesterday", "ms": 118}
this is not JSON
{"user": "linus", "page": "/shoes", "ts": "2026-03-01T12:01:20Z", "ms": 118}
"""

_README = """\
# $name

A pipeline on Spark over topics of a Penstock (or any Kafka) cluster at $servers:

    $topics  ->  events (table)  ->  page_stats (materialized view)
    |                 |
    |                 `->  $output_topic (topic)
    `->  $dead_letter_topic (topic): records that are not clicks, with the reason in the header error.reason

Try it. First create the topics and send some records, four of which are bad:

    export PENSTOCK_BOOTSTRAP_SERVERS=$servers
    penstock topics create --name $first_topic
    penstock topics create --name $output_topic
    penstock topics create --name $dead_letter_topic
    penstock produce --topic $first_topic events.jsonl

    penstock pipeline check      # definitions, brokers and topics
    penstock pipeline run        # processes all records and ends; the next run only new ones
    penstock pipeline status     # rows, offsets and lag of each flow
    penstock pipeline serve      # keeps running; Ctrl-C ends it
    penstock pipeline reset      # deletes tables and offsets; topics stay as they are

    penstock consume --topic $output_topic
    penstock consume --topic $dead_letter_topic --headers

Tests run without a cluster: they start a broker of their own, and Spark once (`pip install pytest`, then):

    pytest

`transformations/` has the definitions: change them, add files. `spark-pipeline.yml` has the settings. Tables are
under `warehouse/` (Delta Lake, see `penstock table`), checkpoints are in `storage/`, and Spark's log is
`.penstock/spark.log`.
"""

CLICKS = Template(
    ("clicks",),
    {
        "spark-pipeline.yml": specification(_SETTINGS),
        "transformations/clicks.py": _CLICKS,
        "transformations/page_stats.sql": _PAGE_STATS,
        "tests/test_$module.py": _TEST,
        "events.jsonl": _EVENTS,
        "README.md": _README,
        ".gitignore": IGNORED,
    },
    is_writing_topics=True,
)
