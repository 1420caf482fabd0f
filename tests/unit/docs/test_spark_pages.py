"""Every option, column and setting of the Spark part is on its page, and defaults that are numbers are right."""

from __future__ import annotations

from pathlib import Path

from penstock.spark import config_for
from penstock.spark.sink import options as sink_options
from penstock.spark.source import columns, options
from penstock.wire_client.blocking import security

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "spark.md").read_text(encoding="utf-8")
SOURCE, _, REST = PAGE.partition("\n## The sink\n")
SINK, _, _ = REST.partition("\n## The session\n")


def test_options_of_the_source() -> None:
    names = [*options.KNOWN.values(), *(f"kafka.{name}" for name in options.REFUSED_SETTINGS)]
    assert [name for name in names if f"`{name}`" not in SOURCE] == []
    assert [name for name in columns.COLUMNS if f"| `{name}` |" not in SOURCE] == []


def test_options_of_the_sink() -> None:
    names = [*sink_options.OWN, *(f"kafka.{name}" for name in sink_options.SETTINGS)]
    assert [name for name in names if f"`{name}`" not in SINK] == []
    assert [name for name in sink_options.COLUMN_TYPES if f"| `{name}` |" not in SINK] == []


def test_defaults_of_the_sink() -> None:
    default = sink_options.ProducerOptions()
    for setting, value in (
        ("batch.size", default.batch_size_bytes),
        ("max.request.size", default.max_request_bytes),
        ("buffer.memory", default.memory_bytes),
        ("delivery.timeout.ms", default.delivery_timeout_ms),
    ):
        assert f"| `kafka.{setting}` | {value} |" in SINK, setting


def test_settings_of_security() -> None:
    missing = [name for name in security._KNOWN if f"`{name}`" not in SOURCE.replace("=PEM`", "`")]
    assert missing == ["sasl.mechanisms"], "librdkafka's other name for sasl.mechanism"


def test_settings_of_the_session() -> None:
    page = (DOCS / "spark-cluster.md").read_text(encoding="utf-8")
    settings = {name.partition("#")[0] for name in config_for()} - {"spark.master"}
    assert sorted(name for name in settings if f"`{name}" not in page) == []
