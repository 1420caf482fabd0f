"""What the templates share: the specification, the beginning of definitions that read topics, and how tests are run.

Placeholders such as $name in names and texts are filled in; $$ is a dollar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SPECIFICATION = """\
# A Spark pipeline. Commands in this directory: `penstock pipeline check`, `run`, `serve`, `status`, `reset`.
name: $name

# Checkpoints. A path is relative to this file; Spark's own `spark-pipelines` needs an absolute URI (file:///...).
storage: storage

# Definitions read these settings with spark.conf. Those that begin with penstock.kafka. apply to every client of the
# cluster (also security settings). Spark's own settings go here, too. Values are text: keep the quotes.
# Passwords and keys: "$${env:NAME}" is an environment variable, "$${file:PATH}" is the content of a file.
configuration:
  penstock.kafka.bootstrap.servers: "$servers"
  penstock.source.topics: "$topics"
SETTINGS
libraries:
  - glob:
      include: transformations/**
"""

IGNORED = """\
/.penstock/
/storage/
/warehouse/
__pycache__/
"""

READING = '''\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

# client options, such as kafka.bootstrap.servers
CLUSTER = {
    name.removeprefix("penstock."): value
    for name, value in spark.conf.getAll.items()
    if name.startswith("penstock.kafka.")
}


def parsed(topics: str, fields: str) -> DataFrame:
    """Every record of the topics, its value as the struct `it`: null if there is no value, `it.unreadable` if it is
    not JSON. `sent_at` is the time of the record itself. Each flow that calls this reads the topics by itself."""
    records = (
        spark.readStream.format("penstock")
        .options(**CLUSTER)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000")
        .load()
    )
    it = F.from_json(
        F.col("value").cast("string"), f"{fields}, unreadable STRING", {"columnNameOfCorruptRecord": "unreadable"}
    )
    sent_at = F.expr("nullif(timestamp, timestamp_millis(-1))")  # -1: the record has no time
    return records.select(it.alias("it"), sent_at.alias("sent_at"), "value", "topic", "partition", "offset")
'''
"""The beginning of definitions that take their watermark from the topic itself.

On another table or view of the pipeline, `withWatermark` makes Spark look at its columns at once, before it is there.
"""


@dataclass(frozen=True, slots=True)
class Template:
    topics: tuple[str, ...]
    """Topics to read, if no others are given."""
    files: Mapping[str, str]
    """Texts by name, with placeholders."""
    is_writing_topics: bool = False
    """It needs names for a topic of results and one of bad records."""
    roles: tuple[str, ...] = ()
    """What each topic is for, if the template reads a fixed number of them."""


def specification(settings: str) -> str:
    """`settings`: more lines of the configuration."""
    return _SPECIFICATION.replace("SETTINGS\n", settings + "\n")
