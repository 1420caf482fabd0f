"""The template `deduplication`: each event once by its id, within a watermark."""

from __future__ import annotations

from penstock.spark.pipeline.templates.project_files import IGNORED, READING, Template, specification

_SETTINGS = """\
  # How long ids are remembered, and how much later than newer ones an event may come.
  penstock.late.by: "1 hour"
"""

_EVENTS = (
    '''\
"""Keeps each event once, by its id, however often it is sent.

An event is JSON: {"event_id": "e-1", "user": "ada", "action": "login", "ts": "2026-03-01T12:00:00Z"}.

Spark remembers ids for the time of the setting penstock.late.by, counted by `ts` and not by the clock. An event that is
older than the newest one by more than that is left out: nobody knows any more whether it was there. One wrong `ts` far
in the future would leave out all that come after it, so an event that is a day later than its record is a bad one.
"""

'''
    + READING
    + '''

REASON = """
    CASE WHEN it IS NULL OR it.unreadable IS NOT NULL THEN 'the value is not JSON of an event'
         WHEN coalesce(it.event_id, '') = '' THEN 'event_id is missing'
         WHEN try_to_timestamp(it.ts) IS NULL THEN 'ts is missing or not a time'
         WHEN try_to_timestamp(it.ts) > sent_at + INTERVAL 1 DAY THEN 'ts is in the future'
    END
"""


def every_event() -> DataFrame:
    topics = spark.conf.get("penstock.source.topics")
    return parsed(topics, "event_id STRING, user STRING, action STRING, ts STRING")


@dp.table(comment="Each event once")
def unique_events() -> DataFrame:
    return (
        every_event()
        .where(f"{REASON} IS NULL")
        .selectExpr("it.event_id", "it.user", "it.action", "try_to_timestamp(it.ts) AS ts")
        .withWatermark("ts", spark.conf.get("penstock.late.by"))
        .dropDuplicatesWithinWatermark(["event_id"])
    )


@dp.table(comment="Records that are not events, with the reason")
def bad_events() -> DataFrame:
    rows = every_event().where(f"{REASON} IS NOT NULL")
    return rows.selectExpr(f"{REASON} AS reason", "value", "topic", "partition", "offset")
'''
)

_TEST = '''\
"""The pipeline on a few events, with a broker and tables of each test: `pytest` in the project's directory."""

from pathlib import Path

PROJECT = Path(__file__).parents[1]
FUTURE = {"event_id": "e-0", "user": "ada", "action": "login", "ts": "2999-01-01T00:00:00Z"}


def event(number, time, user="ada"):
    return {"event_id": number, "user": user, "action": "login", "ts": f"2026-03-01T{time}:00Z"}


def test_an_event_is_there_once(penstock_pipeline):
    pipeline = penstock_pipeline(PROJECT)
    twice = [event("e-1", "12:00"), event("e-2", "12:10")] * 2
    pipeline.produce("$first_topic", [*twice, event("", "12:11"), FUTURE, b"this is not JSON"])
    pipeline.run()
    assert sorted(row["event_id"] for row in pipeline.table("unique_events")) == ["e-1", "e-2"]
    assert sorted(row["reason"] for row in pipeline.table("bad_events")) == [
        "event_id is missing",
        "the value is not JSON of an event",
        "ts is in the future",
    ]

    # In a later run, too, and with another content; e-3 comes late, but in time.
    pipeline.produce("$first_topic", [event("e-2", "12:10"), event("e-1", "12:30", "eve"), event("e-4", "13:30")])
    pipeline.produce("$first_topic", [event("e-3", "12:45")])
    pipeline.run()
    # The newest event is of 13:30: what is older than 12:30 is left out.
    pipeline.produce("$first_topic", [event("e-5", "12:20"), event("e-6", "13:31")])
    pipeline.run()
    found = sorted((row["event_id"], row["user"], f"{row['ts']:%H:%M}") for row in pipeline.table("unique_events"))
    assert found == [
        ("e-1", "ada", "12:00"),
        ("e-2", "ada", "12:10"),
        ("e-3", "ada", "12:45"),
        ("e-4", "ada", "13:30"),
        ("e-6", "ada", "13:31"),
    ]
'''

_SAMPLE = """\
{"event_id": "e-1", "user": "ada", "action": "login", "ts": "2026-03-01T12:00:00Z"}
{"event_id": "e-2", "user": "ada", "action": "order", "ts": "2026-03-01T12:10:00Z"}
{"event_id": "e-1", "user": "ada", "action": "login", "ts": "2026-03-01T12:00:00Z"}
{"event_id": "e-3", "user": "grace", "action": "login", "ts": "2026-03-01T12:05:00Z"}
{"user": "grace", "action": "order", "ts": "2026-03-01T12:06:00Z"}
{"event_id": "e-2", "user": "ada", "action": "order", "ts": "2026-03-01T12:10:00Z"}
"""

_README = """\
# $name

A pipeline on Spark that keeps each event once, over topics of a Penstock (or any Kafka) cluster at $servers:

    $topics  ->  unique_events (table)    each event_id once
    `->  bad_events (table)               records that are not events, with the reason

Try it. First create the topic and send some records, two of them twice:

    export PENSTOCK_BOOTSTRAP_SERVERS=$servers
    penstock topics create --name $first_topic
    penstock produce --topic $first_topic events.jsonl

    penstock pipeline run
    penstock pipeline show unique_events    # e-1, e-2, e-3

Send them again: nothing changes.

    penstock produce --topic $first_topic events.jsonl
    penstock pipeline run
    penstock pipeline show unique_events

Spark remembers an id for `penstock.late.by` in `spark-pipeline.yml`, counted by the time in the events. An event that
is older than the newest one by more than that is left out, because nobody knows any more whether it was there. An
event more than a day later than its record goes to `bad_events`: else it would leave out all that come after it.

`penstock pipeline serve` keeps running, `penstock pipeline history` shows the last runs, and `pytest` runs the tests
without a cluster (`pip install pytest`).

`transformations/` has the definitions: change them, add files. `spark-pipeline.yml` has the settings.
"""

DEDUPLICATION = Template(
    ("events",),
    {
        "spark-pipeline.yml": specification(_SETTINGS),
        "transformations/events.py": _EVENTS,
        "tests/test_$module.py": _TEST,
        "events.jsonl": _SAMPLE,
        "README.md": _README,
        ".gitignore": IGNORED,
    },
)
