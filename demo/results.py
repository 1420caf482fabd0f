"""Compares the results (the table, the topics, the view) with the sent clicks. Any difference raises Failed."""

from __future__ import annotations

import time
from datetime import UTC
from pathlib import Path
from typing import Any

import polars
from confluent_kafka import Consumer, KafkaError, TopicPartition

from demo.clickstream import SILENT, Click, Clickstream
from demo.telling import Failed, say, show
from penstock.tables import Table

READ_TIMEOUT_S = 60.0

Headers = dict[str, str | bytes | None]


def check_table(warehouse: Path, stream: Clickstream) -> None:
    """Checks for exactly the good acknowledged clicks, each once, in the order of sending."""
    table = Table.open(warehouse / "events")
    rows = table.at().arrow().to_pylist()
    for partition in sorted({row["partition"] for row in rows} | set(stream.acknowledged)):
        found = sorted((row for row in rows if row["partition"] == partition), key=lambda row: row["offset"])
        sent = stream.sent(partition)
        stored = [Click(row["user"], row["page"], row["ts"].astimezone(UTC), row["ms"]) for row in found]
        if len({row["offset"] for row in found}) != len(found):
            raise Failed(f"rows of partition {partition} are in the table twice")
        if len(stored) != len(sent):
            raise Failed(f"partition {partition} got {len(sent)} good clicks, and the table has {len(stored)} of them")
        differing = next((at for at, pair in enumerate(zip(stored, sent, strict=True)) if pair[0] != pair[1]), None)
        if differing is not None:
            raise Failed(f"row {differing} of partition {partition} is {stored[differing]}, not {sent[differing]}")
    say(f"table events, {len(rows):,} rows in {table.files} Parquet files, compared with what was sent:")
    show("equal, row by row: every good click once and in order, none missing, none twice, nothing else")


def check_results(addresses: str, topic: str, stream: Clickstream) -> None:
    good, found = stream.count(good=True), len(_read(addresses, topic))
    if found != good:
        raise Failed(f"{good} good clicks, but {found} results in {topic}")
    say(f"topic {topic}: {found:,} results, exactly once")


def check_dead_letters(addresses: str, topic: str, stream: Clickstream) -> None:
    letters = {(headers.get("error.partition"), headers.get("error.offset")) for headers in _read(addresses, topic)}
    bad = stream.count(good=False)
    if len(letters) != bad:
        raise Failed(f"{bad} bad clicks, but {len(letters)} dead letters")
    say(f"topic {topic}: {len(letters):,} bad clicks, each with its reason")


def _read(addresses: str, topic: str) -> list[Headers]:
    """The headers of every committed record, read with a stock client."""
    settings = {"bootstrap.servers": addresses, "group.id": "demo", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True, **SILENT})
    try:
        known = consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
        partitions = [TopicPartition(topic, number, 0) for number in known]
        unread = {one.partition for one in partitions}
        consumer.assign(partitions)
        found: list[Headers] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while unread:
            if time.monotonic() > deadline:
                raise Failed(f"{topic} was not read to its end: {len(found)} records came")
            for message in consumer.consume(10_000, 0.5):
                error = message.error()
                if error is None:
                    found.append(dict(message.headers() or []))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise Failed(f"cannot consume {topic}: {error}")
        return found
    finally:
        consumer.close()


def show_view(warehouse: Path, stream: Clickstream) -> None:
    rows: list[dict[str, Any]] = Table.open(warehouse / "page_stats").at().arrow().to_pylist()
    if {row["page"]: row["views"] for row in rows} != dict(stream.pages):
        raise Failed("the view page_stats does not have the counts that were clicked")
    say("materialized view page_stats:")
    show(f"{'PAGE':<12} {'VIEWS':>8} {'USERS':>6} {'MEAN MS':>8}")
    for row in sorted(rows, key=lambda row: -int(row["views"])):
        show(f"{row['page']:<12} {row['views']:>8,} {row['users']:>6} {row['mean_ms']:>8}")


def show_followed(table: Path, stream: Clickstream) -> None:
    """A table in an open format, read by Polars."""
    rows = polars.scan_delta(str(table))
    pages = rows.group_by("page").agg(views=polars.len(), slowest_ms=polars.col("ms").max())
    found = pages.sort("views", descending=True).collect().to_dicts()
    if {row["page"]: row["views"] for row in found} != dict(stream.pages):
        raise Failed(f"Polars counts {found} in {table}, which is not what was clicked")
    say("the table in Polars, scan_delta(...).group_by('page'). DuckDB, pandas and others read it, too:")
    show(f"{'PAGE':<12} {'VIEWS':>8} {'SLOWEST MS':>11}")
    for row in found:
        show(f"{row['page']:<12} {row['views']:>8,} {row['slowest_ms']:>11,}")
