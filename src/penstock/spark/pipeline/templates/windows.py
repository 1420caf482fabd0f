"""The template `windows`: counts per minute with a watermark, and how many rows came too late for them."""

from __future__ import annotations

from penstock.spark.pipeline.templates.project_files import IGNORED, READING, Template, specification

_SETTINGS = """\
  # How long a minute is still counted after a newer view has come.
  penstock.late.by: "2 minutes"
"""

_VIEWS = (
    '''\
"""Counts the views of each page per minute.

A view is JSON: {"user": "ada", "page": "/cart", "ts": "2026-03-01T12:00:00Z"}.

A minute is written once, when the newest view is later than its end by the setting penstock.late.by. Views that come
out of order are counted until then. Those that come even later are in the table `views`, and `late_views` counts them.
One wrong `ts` far in the future would make all others late, so a view that is a day later than its record is a bad one.
"""

'''
    + READING
    + '''

def views_read() -> DataFrame:
    """Every record, with the reason why it is bad; null for a view."""
    rows = parsed(spark.conf.get("penstock.source.topics"), "user STRING, page STRING, ts STRING")
    return rows.selectExpr(
        "it.user",
        "it.page",
        "try_to_timestamp(it.ts) AS ts",
        "value",
        "topic",
        "partition",
        "offset",
        """CASE WHEN it IS NULL OR it.unreadable IS NOT NULL THEN 'the value is not JSON of a view'
                WHEN coalesce(it.page, '') = '' THEN 'page is missing'
                WHEN try_to_timestamp(it.ts) IS NULL THEN 'ts is missing or not a time'
                WHEN try_to_timestamp(it.ts) > sent_at + INTERVAL 1 DAY THEN 'ts is in the future'
           END AS reason""",
    )


@dp.table(comment="Every view, however late")
def views() -> DataFrame:
    return views_read().where("reason IS NULL").select("user", "page", "ts", "topic", "partition", "offset")


@dp.table(comment="Views of each page per minute, written when the minute is over")
def views_per_minute() -> DataFrame:
    return (
        views_read()
        .where("reason IS NULL")
        .withWatermark("ts", spark.conf.get("penstock.late.by"))
        .groupBy(F.window("ts", "1 minute"), F.col("page"))
        .agg(F.count("*").alias("views"))
        .selectExpr("window.start AS minute", "page", "views")
    )


@dp.table(comment="Records that are not views, with the reason")
def bad_views() -> DataFrame:
    return views_read().where("reason IS NOT NULL").select("reason", "value", "topic", "partition", "offset")
'''
)

_LATE_VIEWS = """\
-- Views that came too late for the count of their minute: computed from both tables in each run.
CREATE MATERIALIZED VIEW late_views AS
SELECT came.minute, came.page, came.views - coalesce(counted.views, 0) AS missed
FROM (SELECT date_trunc('MINUTE', ts) AS minute, page, count(*) AS views FROM views GROUP BY ALL) AS came
JOIN (SELECT max(minute) AS last FROM views_per_minute) AS written ON came.minute <= written.last
LEFT JOIN views_per_minute AS counted ON counted.minute = came.minute AND counted.page = came.page
WHERE came.views > coalesce(counted.views, 0);
"""

_TEST = '''\
"""The pipeline on a few views, with a broker and tables of each test: `pytest` in the project's directory."""

from pathlib import Path

PROJECT = Path(__file__).parents[1]
FUTURE = {"user": "ada", "page": "/", "ts": "2999-01-01T00:00:00Z"}


def view(page, time):
    return {"user": "ada", "page": page, "ts": f"2026-03-01T{time}Z"}


def per_minute(rows, count="views"):
    return sorted((f"{row['minute']:%H:%M}", row["page"], row[count]) for row in rows)


def test_minutes_late_views_and_views_that_are_too_late(penstock_pipeline):
    pipeline = penstock_pipeline(PROJECT)
    # /cart comes out of order, and the last view ends the minutes before 12:02.
    times = [("/", "12:00:05"), ("/", "12:00:40"), ("/", "12:01:30"), ("/cart", "12:00:20"), ("/", "12:04:00")]
    pipeline.produce("$first_topic", [*(view(*one) for one in times), {"page": "/"}, FUTURE, b"no JSON"])
    pipeline.run()
    first = [("12:00", "/", 2), ("12:00", "/cart", 1), ("12:01", "/", 1)]
    assert per_minute(pipeline.table("views_per_minute")) == first
    assert pipeline.table("late_views") == []
    assert sorted(row["reason"] for row in pipeline.table("bad_views")) == [
        "the value is not JSON of a view",
        "ts is in the future",
        "ts is missing or not a time",
    ]

    # The minute of the first is written, that of the second is not.
    pipeline.produce("$first_topic", [view("/", "12:01:45"), view("/", "12:02:50"), view("/", "12:06:00")])
    pipeline.run()
    assert per_minute(pipeline.table("views_per_minute")) == [*first, ("12:02", "/", 1)]
    assert per_minute(pipeline.table("late_views"), "missed") == [("12:01", "/", 1)]
    assert len(pipeline.table("views")) == 8
'''

_SAMPLE = """\
{"user": "ada", "page": "/", "ts": "2026-03-01T12:00:05Z"}
{"user": "grace", "page": "/", "ts": "2026-03-01T12:00:40Z"}
{"user": "ada", "page": "/cart", "ts": "2026-03-01T12:00:59Z"}
{"user": "linus", "page": "/", "ts": "2026-03-01T12:01:30Z"}
{"user": "grace", "page": "/cart", "ts": "2026-03-01T12:00:20Z"}
{"user": "grace", "page": "/", "ts": "yesterday"}
{"user": "ada", "page": "/", "ts": "2026-03-01T12:04:00Z"}
"""

_LATE_SAMPLE = """\
{"user": "eve", "page": "/", "ts": "2026-03-01T12:01:45Z"}
{"user": "eve", "page": "/", "ts": "2026-03-01T12:02:50Z"}
{"user": "ada", "page": "/", "ts": "2026-03-01T12:06:00Z"}
"""

_README = """\
# $name

A pipeline on Spark that counts views of pages per minute, over topics of a Penstock (or any Kafka) cluster at $servers:

    $topics  ->  views (table)             every view, however late
    |                   `->  late_views (materialized view): views that no count has
    |->  views_per_minute (table)          a row for each page and minute
    `->  bad_views (table)                 records that are not views, with the reason

Try it. First create the topic and send some records:

    export PENSTOCK_BOOTSTRAP_SERVERS=$servers
    penstock topics create --name $first_topic
    penstock produce --topic $first_topic views.jsonl

    penstock pipeline run
    penstock pipeline show views_per_minute    # 12:00 and 12:01; 12:02 to 12:04 are not over

A minute is over when a view comes that is later than its end by `penstock.late.by` in `spark-pipeline.yml`. Then it is
written, once. Until then late views are counted. One of these comes in time, one does not:

    penstock produce --topic $first_topic late.jsonl
    penstock pipeline run
    penstock pipeline show views_per_minute    # 12:02 as well
    penstock pipeline show late_views          # one view of 12:01

While no new views come, the newest minutes stay open. A view more than a day later than its record goes to
`bad_views`: else it would make all others late.

`penstock pipeline serve` keeps running, `penstock pipeline
history` shows the last runs, and `pytest` runs the tests without a cluster (`pip install pytest`).

`transformations/` has the definitions: change them, add files. `spark-pipeline.yml` has the settings.
"""

WINDOWS = Template(
    ("views",),
    {
        "spark-pipeline.yml": specification(_SETTINGS),
        "transformations/views.py": _VIEWS,
        "transformations/late_views.sql": _LATE_VIEWS,
        "tests/test_$module.py": _TEST,
        "views.jsonl": _SAMPLE,
        "late.jsonl": _LATE_SAMPLE,
        "README.md": _README,
        ".gitignore": IGNORED,
    },
)
