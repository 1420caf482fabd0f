"""The options and columns of the sink: those of Spark's Kafka sink, validated once, before any task runs.

`kafka.` options are the Java producer's. An option about delivery is followed or refused, never dropped. A tuning
option that does not apply to this producer has no effect. Options of the source are ignored, so that one set can serve
both, for example the OPTIONS of a temporary view, which Spark passes to readers and writers. (Spark does not pass those
of CREATE TABLE to Python sources and sinks.) Must not know: Spark except its types, connections.

Beyond Spark's own: the column `timestamp`, the option `deliveryGuarantee`, and a default for `kafka.bootstrap.servers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.records.compression import CODEC_BY_NAME, GZIP, LZ4, NAMES, NONE, ZSTD
from penstock.spark.options.cluster import OF_ANY_CLIENT_WITHOUT_EFFECT, ClusterOptions, cluster_options
from penstock.spark.options.known import FROM_SPARK, InvalidOption, KnownOptions, to_flag
from penstock.spark.source.options import KNOWN

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"

OWN = ("topic", "includeHeaders", "deliveryGuarantee")
ACKS_ALL = -1
MAX_IN_FLIGHT = 5  # the number of batches that a broker remembers per producer
LEVELS = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}

SETTINGS = frozenset(
    [
        "bootstrap.servers",
        "client.id",
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "partitioner.ignore.keys",
        "request.timeout.ms",
        "retry.backoff.ms",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
    ]
) | {f"compression.{NAMES[codec]}.level" for codec in LEVELS}
REFUSED_SETTINGS = {
    "key.serializer": "keys are written unchanged: convert them to binary or string with DataFrame operations",
    "value.serializer": "values are written unchanged: convert them to binary or string with DataFrame operations",
    "interceptor.classes": "there is no Java in the writer",
    "partitioner.class": "there is no Java in the writer; give the rows a column 'partition'",
    "transactional.id": "the sink names its transactions itself; set the option 'deliveryGuarantee' to 'exactly-once'",
}
# Tuning settings of Kafka's Java producer and librdkafka that do not apply to this producer.
WITHOUT_EFFECT = OF_ANY_CLIENT_WITHOUT_EFFECT | frozenset(
    [
        "linger.ms",
        "max.block.ms",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "retries",
    ]
)
OF_THE_SINK = KnownOptions(
    of="sink",
    client="producer",
    options=OWN,
    passed_over=FROM_SPARK.union(KNOWN),
    settings=SETTINGS,
    without_effect=WITHOUT_EFFECT,
    refused=REFUSED_SETTINGS,
)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    acks: int = ACKS_ALL
    is_idempotent: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    batch_size_bytes: int = 256 << 10
    """Larger than Kafka's default: the rows are all there, so no record waits for a batch to fill."""
    memory_bytes: int = 32 << 20
    max_request_bytes: int = 1 << 20
    compression: int = NONE
    compression_level: int | None = None
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    timeout_ms: int | None = None
    """Without two-phase commit. None: the longest that the cluster allows."""
    is_two_phase_allowed: bool = True
    """Two-phase commit is used where the cluster offers it."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    cluster: ClusterOptions
    producer: ProducerOptions
    transaction: TransactionOptions = TransactionOptions()
    topic: str | None = None
    """The topic of all rows, whatever their column topic has. None: the column decides."""
    delivery: str = AT_LEAST_ONCE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises InvalidOption, UnsupportedClientSetting."""
        texts = {name.lower(): text for name, text in given.items()}
        OF_THE_SINK.refuse_others(texts)
        if "includeheaders" in texts:
            # As in Spark's sink, a column headers is always written.
            to_flag("includeHeaders", texts["includeheaders"])
        if to_flag("kafka.partitioner.ignore.keys", texts.get("kafka.partitioner.ignore.keys", "false")):
            raise InvalidOption(
                "option 'kafka.partitioner.ignore.keys' is true: Kafka's hash of the key chooses the partition; "
                "add a column 'partition' to choose another"
            )
        topic = texts.get("topic")
        if topic is not None and not topic.strip():
            raise InvalidOption("option 'topic' is empty: name a topic, or leave it out and give rows a column 'topic'")
        delivery, producer = _delivery(texts), _producer_options(texts)
        if delivery == EXACTLY_ONCE and not producer.is_idempotent:
            raise InvalidOption(
                f"option 'deliveryGuarantee' is '{EXACTLY_ONCE}', which needs kafka.acks=all and "
                "kafka.enable.idempotence=true: leave both options out, they are the defaults"
            )
        return cls(
            cluster=cluster_options(texts),
            producer=producer,
            transaction=_transaction_options(texts),
            topic=None if topic is None else topic.strip(),
            delivery=delivery,
        )


def _delivery(texts: Mapping[str, str]) -> str:
    delivery = texts.get("deliveryguarantee", AT_LEAST_ONCE).strip().lower().replace("_", "-")
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise InvalidOption(f"option 'deliveryGuarantee' is '{delivery}': write '{AT_LEAST_ONCE}' or '{EXACTLY_ONCE}'")
    return delivery


def _transaction_options(texts: Mapping[str, str]) -> TransactionOptions:
    two_phase, timeout = "kafka.transaction.two.phase.commit.enable", "transaction.timeout.ms"
    return TransactionOptions(
        timeout_ms=_number(texts, timeout, 0, 1) if f"kafka.{timeout}" in texts else None,
        is_two_phase_allowed=to_flag(two_phase, texts.get(two_phase, "true")),
    )


def _producer_options(texts: Mapping[str, str]) -> ProducerOptions:
    default = ProducerOptions()
    acks = _acks(texts)
    idempotent = _is_idempotent(texts, acks)
    most = MAX_IN_FLIGHT if idempotent else 1000
    codec = _compression(texts)
    return ProducerOptions(
        acks=acks,
        is_idempotent=idempotent,
        max_in_flight=_number(texts, "max.in.flight.requests.per.connection", default.max_in_flight, 1, most),
        batch_size_bytes=_number(texts, "batch.size", default.batch_size_bytes, 0),
        memory_bytes=_number(texts, "buffer.memory", default.memory_bytes, 1 << 20),
        max_request_bytes=_number(texts, "max.request.size", default.max_request_bytes, 1),
        compression=codec,
        compression_level=_level(texts, codec),
        delivery_timeout_ms=_number(texts, "delivery.timeout.ms", default.delivery_timeout_ms, 1),
        request_timeout_ms=_number(texts, "request.timeout.ms", default.request_timeout_ms, 1),
        retry_backoff_ms=_number(texts, "retry.backoff.ms", default.retry_backoff_ms, 0),
    )


def _acks(texts: Mapping[str, str]) -> int:
    text = texts.get("kafka.acks", "all").strip().lower()
    if text in ("all", "-1"):
        return ACKS_ALL
    if text == "1":
        return 1
    if text == "0":
        raise InvalidOption("option 'kafka.acks' is 0: rows could be lost unnoticed; write all")
    raise InvalidOption(f"option 'kafka.acks' is '{text}': write all or 1")


def _is_idempotent(texts: Mapping[str, str], acks: int) -> bool:
    """On unless acks forbids it, as in Kafka's producer. Conflicting settings are an error."""
    name = "kafka.enable.idempotence"
    if name not in texts:
        return acks == ACKS_ALL
    wanted = to_flag(name, texts[name])
    if wanted and acks != ACKS_ALL:
        raise InvalidOption(f"option '{name}' is true with kafka.acks={acks}: it needs kafka.acks=all")
    return wanted


def _compression(texts: Mapping[str, str]) -> int:
    text = texts.get("kafka.compression.type", "none").strip().lower()
    if text not in NAMES:
        raise InvalidOption(f"option 'kafka.compression.type' is '{text}': write one of {', '.join(NAMES)}")
    return CODEC_BY_NAME[text]


def _level(texts: Mapping[str, str], codec: int) -> int | None:
    if codec not in LEVELS:
        return None
    name = f"compression.{NAMES[codec]}.level"
    if f"kafka.{name}" not in texts or (codec == GZIP and texts[f"kafka.{name}"].strip() == "-1"):
        return None
    return _number(texts, name, 0, *LEVELS[codec])


def _number(texts: Mapping[str, str], setting: str, default: int, lowest: int, highest: int = 2**31 - 1) -> int:
    name = f"kafka.{setting}"
    text = texts.get(name, str(default)).strip()
    try:
        number = int(text)
    except ValueError:
        raise InvalidOption(f"option '{name}' is '{text}': give a whole number") from None
    if not lowest <= number <= highest:
        raise InvalidOption(f"option '{name}' is {number}: it must be from {lowest} to {highest}")
    return number


# -- columns -----------------------------------------------------------------------------------------------------------

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
COLUMN_TYPES: Final = {
    "value": ("binary", "string", "void"),
    "key": ("binary", "string", "void"),
    "headers": (HEADERS_TYPE, "void"),
    "topic": ("string",),
    "partition": ("int", "void"),
}


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Checks whether rows of this schema can be written. Raises InvalidOption.

    Other columns are ignored, and also a `timestamp` of another type, which has no meaning for Spark's sink.
    """
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in found:
        raise InvalidOption(f"rows have no column 'value' ({', '.join(found) or 'no columns'}): rename one of them")
    if options.topic is None and "topic" not in found:
        raise InvalidOption("rows have no column 'topic': set the option 'topic', or add the column")
    for name, allowed in COLUMN_TYPES.items():
        if name == "topic" and options.topic is not None:
            continue
        kind = found.get(name)
        if kind is not None and kind not in allowed:
            wanted = " or ".join(word for word in allowed if word != "void")
            raise InvalidOption(f"column '{name}' is {kind}: cast it to {wanted}, or drop it")
