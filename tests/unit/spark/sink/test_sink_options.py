"""Options and columns of the sink: what is taken, and the sentence for what is not."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.records.compression import GZIP, LZ4, NONE, ZSTD
from penstock.spark.options.known import InvalidOption
from penstock.spark.sink.options import ACKS_ALL, SinkOptions, check_columns
from penstock.spark.sink.writers import batch_writer, stream_writer

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
    "map": MapType(StringType(), BinaryType()),
}
ALL_COLUMNS = "key binary, value binary, headers headers, topic string, partition int, timestamp timestamp"


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse({**SERVERS, **{name.replace("__", "."): value for name, value in options.items()}})


def schema(text: str) -> StructType:
    """`fromDDL` would want a session."""
    made = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        made.add(name, TYPES[kind])
    return made


def test_defaults_wait_for_all_replicas_and_are_idempotent() -> None:
    options = parse()
    assert options.cluster.bootstrap == (("localhost", 9092),)
    assert options.topic is None
    assert (options.producer.acks, options.producer.is_idempotent, options.producer.max_in_flight) == (
        ACKS_ALL,
        True,
        5,
    )
    assert options.producer.compression == NONE


def test_names_come_in_any_case_and_settings_arrive() -> None:
    options = SinkOptions.parse(
        {
            "KAFKA.Bootstrap.Servers": "a:1,b:2",
            "Topic": " clicks ",
            "kafka.compression.type": "ZSTD",
            "kafka.compression.zstd.level": "9",
            "kafka.batch.size": "65536",
            "kafka.max.request.size": "2000000",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.request.timeout.ms": "1000",
            "kafka.linger.ms": "5",
            "includeHeaders": "true",
            "checkpointLocation": "/somewhere",
            "queryName": "given by writeStream.queryName and by pipelines",
            "subscribe": "of the source",
            "deliveryGuarantee": "at_least_once",
        }
    )
    assert options.cluster.bootstrap == (("a", 1), ("b", 2))
    assert options.topic == "clicks"
    assert (options.producer.compression, options.producer.compression_level) == (ZSTD, 9)
    assert options.producer.batch_size_bytes == 65536
    assert options.producer.max_request_bytes == 2_000_000
    assert (options.producer.delivery_timeout_ms, options.producer.request_timeout_ms) == (5000, 1000)


@pytest.mark.parametrize(
    ("codec", "level", "expected"), [("gzip", "-1", (GZIP, None)), ("gzip", "9", (GZIP, 9)), ("lz4", "12", (LZ4, 12))]
)
def test_levels(codec: str, level: str, expected: tuple[int, int | None]) -> None:
    producer = parse(kafka__compression__type=codec, **{f"kafka__compression__{codec}__level": level}).producer
    assert (producer.compression, producer.compression_level) == expected


def test_one_acknowledgement_is_not_idempotent_unless_asked_for() -> None:
    assert not parse(kafka__acks="1").producer.is_idempotent
    assert not parse(kafka__enable__idempotence="false").producer.is_idempotent
    with pytest.raises(InvalidOption, match=r"kafka\.enable\.idempotence.*needs kafka\.acks=all"):
        parse(kafka__acks="1", kafka__enable__idempotence="true")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("topics", "a", r"'topics' is not known to the penstock sink: did you mean 'topic'"),
        ("bootstrapservers", "a", r"'bootstrapservers' is not known .*: did you mean 'kafka\.bootstrap\.servers'"),
        ("bootstrap.servers", "a", r"'bootstrap.servers' is not known .*: did you mean 'kafka\.bootstrap\.servers'"),
        ("kafka.bootstrap.server", "a", r"is not a producer setting .*: did you mean 'kafka\.bootstrap\.servers'"),
        ("nonsense", "1", r"'nonsense' is not known .* the options are topic, "),
        (
            "kafka.batch.sise",
            "1",
            r"'kafka\.batch\.sise' is not a producer setting .* did you mean 'kafka\.batch\.size'",
        ),
        ("kafka.key.serializer", "x", r"'kafka\.key\.serializer' is not supported: keys are written unchanged"),
        ("kafka.transactional.id", "x", r"'kafka\.transactional\.id' is not supported"),
        ("kafka.partitioner.class", "x", r"give the rows a column 'partition'"),
        ("kafka.acks", "0", r"'kafka\.acks' is 0: rows could be lost"),
        ("kafka.acks", "2", r"'kafka\.acks' is '2': write all or 1"),
        ("kafka.compression.type", "brotli", r"'kafka\.compression\.type' is 'brotli': write one of none, gzip"),
        ("kafka.batch.size", "big", r"'kafka\.batch\.size' is 'big': give a whole number"),
        ("kafka.max.in.flight.requests.per.connection", "6", r"per\.connection' is 6: it must be from 1 to 5"),
        ("kafka.enable.idempotence", "yes", r"'kafka\.enable\.idempotence' is 'yes': write true or false"),
        ("includeHeaders", "maybe", r"'includeHeaders' is 'maybe'"),
        ("topic", " ", r"'topic' is empty"),
        ("deliveryGuarantee", "sometimes", r"is 'sometimes': write 'at-least-once' or 'exactly-once'"),
        ("kafka.transaction.timeout.ms", "0", "it must be from 1 to"),
        ("kafka.bootstrap.servers", "host:port", r"'kafka\.bootstrap\.servers' has 'host:port'"),
        ("kafka.partitioner.ignore.keys", "true", "'kafka.partitioner.ignore.keys' is true: .* column 'partition'"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        SinkOptions.parse({**SERVERS, name: value})


def test_the_columns_of_sparks_sink_and_a_timestamp_are_taken() -> None:
    check_columns(schema(ALL_COLUMNS), parse())
    check_columns(schema("value string, key string, topic string, offset bigint"), parse())
    check_columns(schema("value string"), parse(topic="t"))
    # The option wins over the column, whatever that is.
    check_columns(schema("value string, topic int"), parse(topic="t"))
    # To Spark's sink a column timestamp means nothing: one that is none is not in the way.
    check_columns(schema("value string, topic string, timestamp string"), parse())


@pytest.mark.parametrize(
    "setting",
    ["enable.metrics.push", "metadata.recovery.strategy", "auto.include.jmx.reporter", "sasl.login.read.timeout.ms"],
)
def test_settings_of_kafkas_producer_have_no_effect(setting: str) -> None:
    assert SinkOptions.parse({**SERVERS, f"kafka.{setting}": "1"}) == SinkOptions.parse(SERVERS)
    assert SinkOptions.parse({**SERVERS, "kafka.partitioner.ignore.keys": "false"}) == SinkOptions.parse(SERVERS)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("key binary, topic string", "no column 'value' \\(key, topic\\)"),
        ("value string", "no column 'topic': set the option 'topic'"),
        ("value int, topic string", "column 'value' is int: cast it to binary or string"),
        ("value string, key bigint, topic string", "column 'key' is bigint"),
        ("value string, topic int", "column 'topic' is int: cast it to string"),
        ("value string, topic string, partition bigint", "column 'partition' is bigint: cast it to int"),
        ("value string, topic string, headers map", "column 'headers' is map<string,binary>"),
    ],
)
def test_columns_that_cannot_be_written_are_named(columns: str, sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        check_columns(schema(columns), parse())


def test_a_topic_is_not_overwritten_but_complete_mode_appends() -> None:
    rows = schema("value string, topic string")
    with pytest.raises(InvalidOption, match="append"):
        batch_writer(SERVERS, rows, overwrite=True)
    assert stream_writer(SERVERS, rows, overwrite=True) is not None


def test_writers_travel_to_the_workers() -> None:
    rows = schema("value string, topic string")
    for writer in (batch_writer(SERVERS, rows, overwrite=False), stream_writer(SERVERS, rows, overwrite=False)):
        again = pickle.loads(pickle.dumps(writer))
        assert again._options == writer._options  # type: ignore[attr-defined]
