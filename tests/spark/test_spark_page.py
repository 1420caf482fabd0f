"""docs/spark.md is replayed: its blocks of Python and of SQL, in their order, in one session against a real broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_topics import Topics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
TOPICS = {"clicks": 2, "loud-clicks": 1, "counted-clicks": 1, "greetings": 1}
WORDS = ("one", "two", "three")


def values(topics: Topics, spark: SparkSession, topic: str) -> list[str]:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.bootstrap_servers)
    rows = reader.option("subscribe", topic).load().selectExpr("string(value)").collect()
    return sorted(row[0] for row in rows)


def test_the_page_runs(spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8").replace("localhost:9092", topics.bootstrap_servers)
    blocks = re.findall(r"```(python|sql)\n(.*?)```", text.replace("checkpoints/", f"{tmp_path}/"), re.DOTALL)
    assert {language for language, _ in blocks} == {"python", "sql"}
    for topic, partitions in TOPICS.items():
        topics.create(topic, partitions=partitions)
    names: dict[str, Any] = {}
    answers: list[list[Any]] = []
    try:
        topics.fill("clicks", [(None, word.encode()) for word in WORDS])
        for language, block in blocks:
            if language == "python":
                exec(compile(block, PAGE.name, "exec"), names)
                continue
            for statement in filter(str.strip, block.split(";")):
                answers.append(spark.sql(statement).collect())
        # What the lines should have done.
        assert sum(row[1] for row in answers[1]) == len(WORDS)
        assert answers[-1] == [("bonjour",)]
        for topic in ("loud-clicks", "counted-clicks"):
            assert values(topics, spark, topic) == sorted(word.upper() for word in WORDS)
        assert values(topics, spark, "greetings") == ["bonjour", "hallo", "hello"]
        printed = capsys.readouterr().out
        assert all(f"{word}|" in printed for word in WORDS)
        assert re.search(r"^spark-penstock-[0-9a-f]{8}$", printed, re.MULTILINE)
    finally:
        spark.catalog.dropTempView("clicks")
        spark.sql("DROP TABLE IF EXISTS topics")
        for topic in TOPICS:
            topics.admin.delete_topic(topic)
