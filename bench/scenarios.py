"""The scenarios as a table: loads, flush settings, metrics and targets.

Only data. `runner` runs the loads, `report` shows the results.

Names describe a run: produce-1k-128k-1p-flush is 1 KB records in 128 KB batches to one partition, every
write flushed before its acknowledgement on both brokers. Flush is a topic setting, so one broker process serves all
of them: `flush` and `noflush` set it on both sides, `default` leaves each broker its own (Penstock flushes, Apache
Kafka does not).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

NEVER = str(2**63 - 1)


class Flush(Enum):
    """Topic settings of both brokers, and how the tables name them."""

    OFF = "off"
    ON = "before acknowledgement"
    DEFAULT = "default"

    @property
    def configs(self) -> dict[str, str]:
        return {Flush.OFF: {"flush.messages": NEVER}, Flush.ON: {"flush.messages": "1"}, Flush.DEFAULT: {}}[self]


class Compare(Enum):
    RATIO_AT_LEAST = "ratio >="
    RATIO_AT_MOST = "ratio <="
    VALUE_AT_MOST = "<="


@dataclass(frozen=True, slots=True)
class Target:
    """RATIO targets hold for Penstock / Apache Kafka, VALUE targets for Penstock alone."""

    metric: str
    compare: Compare
    limit: float


@dataclass(frozen=True, slots=True)
class Metric:
    label: str
    unit: str


METRICS: Mapping[str, Metric] = {
    "mb_s": Metric("throughput", "MB/s"),
    "records_s": Metric("throughput", "records/s"),
    "requests_s": Metric("throughput", "requests/s"),
    "cpu_s_per_gb": Metric("broker CPU", "s/GB"),
    "machine_cpu_s_per_gb": Metric("CPU of the machine without the driver", "s/GB"),
    "cpu_us_per_request": Metric("broker CPU", "µs/request"),
    "machine_cpu_us_per_request": Metric("CPU of the machine without the driver", "µs/request"),
    "cpu_pct": Metric("broker CPU", "% of a core"),
    "rss_mb": Metric("memory after the load", "MB"),
    "p50_ms": Metric("latency p50", "ms"),
    "p99_ms": Metric("latency p99", "ms"),
    "p999_ms": Metric("latency p99.9", "ms"),
    "first_message_s": Metric("process start to first acknowledged record", "s"),
    "idle_rss_mb": Metric("memory, idle", "MB"),
    "produce_mb_s": Metric("produce", "MB/s"),
    "produce_cpu_s_per_gb": Metric("broker CPU, produce", "s/GB"),
    "consume_mb_s": Metric("consume", "MB/s"),
    "consume_cpu_s_per_gb": Metric("broker CPU, consume", "s/GB"),
    "create_s": Metric("create the topics", "s"),
    "write_s": Metric("write a record to each partition", "s"),
    "stop_s": Metric("stop", "s"),
    "clean_restart_s": Metric("clean restart to first acknowledged record", "s"),
    "crash_restart_s": Metric("restart after kill -9 to first acknowledged record", "s"),
    "partitions_rss_mb": Metric("memory", "MB"),
    "form_s": Metric("all members have their partitions", "s"),
    "settle_s": Metric("settled after 10 of them left", "s"),
    "rows_s": Metric("throughput", "rows/s"),
    "batch_p50_ms": Metric("a micro-batch of 2 rows, p50", "ms"),
    "batch_p95_ms": Metric("a micro-batch of 2 rows, p95", "ms"),
    "delivery_batch_ms": Metric("a micro-batch, p50", "ms"),
    "pause_median_s": Metric("a producer's pause after kill -9 of the leader, median", "s"),
    "pause_worst_s": Metric("a producer's pause after kill -9 of the leader, worst", "s"),
    "committed_pause_median_s": Metric("no new committed record after the kill, median", "s"),
    "committed_pause_worst_s": Metric("no new committed record after the kill, worst", "s"),
    "idle_cpu_pct": Metric("CPU of all brokers, idle", "% of a core"),
    "group_cpu_s": Metric("broker CPU, both together", "s"),
    "transactions_s": Metric("throughput", "transactions/s"),
    "cpu_us_per_record": Metric("broker CPU", "µs/record"),
    "transaction_p50_ms": Metric("a transaction, p50", "ms"),
    "transaction_p99_ms": Metric("a transaction, p99", "ms"),
}


@dataclass(frozen=True, slots=True)
class Produce:
    record_bytes: int
    batch_bytes: int
    partitions: int = 1
    total_mb: int = 1000
    max_seconds: float = 4.0
    shown = ("mb_s", "cpu_s_per_gb")


@dataclass(frozen=True, slots=True)
class Fetch:
    record_bytes: int
    batch_bytes: int
    partitions: int = 1
    total_mb: int = 1000
    shown = ("mb_s", "cpu_s_per_gb")


@dataclass(frozen=True, slots=True)
class OneRecord:
    """Requests of one 100 B record on one connection."""

    request_count: int = 100_000
    max_seconds: float = 5.0
    shown = ("requests_s", "cpu_us_per_request")


@dataclass(frozen=True, slots=True)
class Rate:
    """Open loop, one 1 KB record a request, one connection a partition."""

    requests_per_s: int
    partitions: int = 1
    warm_seconds: float = 2.0
    seconds: float = 10.0
    shown = ("p50_ms", "p99_ms", "p999_ms", "cpu_pct")


@dataclass(frozen=True, slots=True)
class Start:
    """A fresh process on a fresh data directory, beside the idle ones."""

    idle_seconds: float = 5.0
    shown = ("first_message_s", "idle_rss_mb")


@dataclass(frozen=True, slots=True)
class Stock:
    """confluent-kafka with no setting but the address."""

    record_count: int = 300_000
    record_bytes: int = 1024
    shown = ("produce_mb_s", "produce_cpu_s_per_gb", "consume_mb_s", "consume_cpu_s_per_gb")


@dataclass(frozen=True, slots=True)
class Transactions:
    """Producers with a partition and a transaction under way each: 1 KB records in batches of up to 128 KB."""

    records_each: int
    producers: int
    total_mb: int = 1000
    max_seconds: float = 5.0
    record_bytes: int = 1024
    batch_bytes: int = 128 * 1024
    shown = ("records_s", "transactions_s", "transaction_p50_ms", "transaction_p99_ms", "cpu_us_per_record")


@dataclass(frozen=True, slots=True)
class ManyPartitions:
    """Its own command and its own steps: `bench.partitions`."""

    topics: int = 40
    partitions: int = 100
    shown = ("create_s", "write_s", "stop_s", "clean_restart_s", "crash_restart_s", "partitions_rss_mb")


@dataclass(frozen=True, slots=True)
class GroupOfMembers:
    """Its own command and its own steps: `bench.groups`."""

    protocol: str
    members: int = 100
    partitions: int = 300
    leaving: int = 10
    shown = ("form_s", "settle_s", "group_cpu_s")


@dataclass(frozen=True, slots=True)
class SparkRead:
    """A stream over a full topic of two partitions: `bench.spark`."""

    value_bytes: int
    rows: int
    rows_per_batch: int
    to: str
    shown = ("rows_s", "mb_s")


@dataclass(frozen=True, slots=True)
class SparkWrite:
    value_bytes: int
    rows: int
    shown = ("rows_s", "mb_s")


@dataclass(frozen=True, slots=True)
class SparkOverhead:
    settings: str
    batches: int = 60
    shown = ("batch_p50_ms", "batch_p95_ms")


@dataclass(frozen=True, slots=True)
class SparkDelivery:
    """A stream from topic to topic, exactly once beside at least once: `bench.spark`."""

    value_bytes: int
    rows: int
    rows_per_batch: int
    shown = ("rows_s", "delivery_batch_ms")


@dataclass(frozen=True, slots=True)
class SparkTyped:
    """A stream of JSON objects of 1 KB with ten fields, decoded by the source beside from_json: `bench.spark`."""

    rows: int
    rows_per_batch: int
    shown = ("rows_s", "mb_s")


@dataclass(frozen=True, slots=True)
class LeaderKilled:
    """A steady producer while the leader of a partition is killed and comes back: `bench.cluster`."""

    kills: int = 3
    requests_per_s: int = 300
    partitions: int = 3
    shown = ("pause_median_s", "pause_worst_s")


@dataclass(frozen=True, slots=True)
class CoordinatorKilled:
    """Steady transactions and their consumer while a coordinator is killed and comes back: `bench.cluster`."""

    kills: int = 3
    producers: int = 3
    partitions: int = 3
    shown = ("committed_pause_median_s", "committed_pause_worst_s")


@dataclass(frozen=True, slots=True)
class Idle:
    """Three brokers that nobody uses: `bench.cluster`."""

    seconds: float = 8.0
    shown = ("idle_rss_mb", "idle_cpu_pct")


Load = (
    Produce
    | Fetch
    | OneRecord
    | Rate
    | Start
    | Stock
    | Transactions
    | ManyPartitions
    | GroupOfMembers
    | SparkRead
    | SparkWrite
    | SparkOverhead
    | SparkDelivery
    | SparkTyped
    | LeaderKilled
    | CoordinatorKilled
    | Idle
)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    section: str
    title: str
    load: Load
    flush: Flush = Flush.OFF
    targets: tuple[Target, ...] = ()
    also_shown: tuple[str, ...] = ()
    sides: tuple[str, str] | None = None
    """The headings of both sides, where they are not those of the page."""

    @property
    def shown(self) -> tuple[str, ...]:
        return self.load.shown + self.also_shown

    @property
    def estimate_s(self) -> float:
        """One run on one broker, with topic, pages and sync around it."""
        match self.load:
            case Produce():
                return 4.0 if self.flush is Flush.OFF else 6.0
            case Fetch():
                return 5.0
            case OneRecord():
                return 6.0
            case Rate(warm_seconds=warm, seconds=seconds):
                return warm + seconds + 1.5
            case Start(idle_seconds=idle):
                return idle + 4.0
            case Stock():
                return 8.0
            case Transactions(max_seconds=seconds):
                return seconds + 2.0
            case ManyPartitions():
                return 60.0
            case GroupOfMembers():
                return 25.0
            case SparkRead() | SparkWrite() | SparkOverhead() | SparkDelivery() | SparkTyped():
                return 15.0
            case LeaderKilled(kills=kills) | CoordinatorKilled(kills=kills):
                return 20.0 * kills
            case Idle(seconds=seconds):
                return seconds + 12.0


def _kb(size_bytes: int) -> str:
    return f"{size_bytes // 1024} KB" if size_bytes >= 1024 else f"{size_bytes} B"


def _short(size_bytes: int) -> str:
    return f"{size_bytes // 1024}k" if size_bytes >= 1024 else f"{size_bytes}b"


_SUFFIX = {Flush.OFF: "noflush", Flush.ON: "flush", Flush.DEFAULT: "default"}


def _shape(record_bytes: int, batch_bytes: int, partitions: int) -> tuple[str, str]:
    many = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return (
        f"{_short(record_bytes)}-{_short(batch_bytes)}-{partitions}p",
        f"{_kb(record_bytes)} records, {_kb(batch_bytes)} batches, {many}",
    )


def _at_least(limit: float, metric: str = "mb_s") -> Target:
    return Target(metric, Compare.RATIO_AT_LEAST, limit)


def _at_most(limit: float, metric: str = "cpu_s_per_gb") -> Target:
    return Target(metric, Compare.RATIO_AT_MOST, limit)


_PRODUCE_SHAPES = (
    (1024, 128 * 1024, 1),
    (1024, 128 * 1024, 10),
    (1024, 16 * 1024, 1),
    (1024, 16 * 1024, 10),
    (100, 128 * 1024, 1),
    (100, 16 * 1024, 1),
)

_FETCH_SHAPES = (
    (1024, 128 * 1024, 1),
    (1024, 128 * 1024, 10),
    (1024, 16 * 1024, 1),
    (100, 128 * 1024, 1),
)

_TARGETS: Mapping[str, tuple[Target, ...]] = {
    "produce-1k-128k-1p-noflush": (_at_least(2.0), _at_most(0.5)),
    "produce-1k-16k-1p-noflush": (_at_least(2.5),),
    "produce-1k-128k-1p-flush": (_at_least(2.5),),
    "produce-1k-16k-1p-flush": (_at_least(2.5),),
    "produce-1k-128k-1p-default": (_at_least(1.0),),
    "fetch-1k-128k-1p": (_at_least(1.3), _at_most(0.7)),
    "one-record-noflush": (_at_most(0.35, "cpu_us_per_request"),),
    "rate-5000-noflush": (_at_most(0.6, "p99_ms"),),
    "rate-5000-flush": (Target("p99_ms", Compare.VALUE_AT_MOST, 5.0),),
    "start": (_at_most(0.15, "first_message_s"), _at_most(0.2, "idle_rss_mb")),
}


def _produce() -> Iterator[Scenario]:
    for flush, section in (
        (Flush.OFF, "Produce, flush off on both"),
        (Flush.ON, "Produce, flush before acknowledgement on both"),
        (Flush.DEFAULT, "Produce, each broker's default: Penstock flushes, Apache Kafka does not"),
    ):
        # Defaults against defaults says something only where records are not tiny.
        for shape in _PRODUCE_SHAPES if flush is not Flush.DEFAULT else (_PRODUCE_SHAPES[0], _PRODUCE_SHAPES[2]):
            code, title = _shape(*shape)
            name = f"produce-{code}-{_SUFFIX[flush]}"
            memory = ("rss_mb",) if shape == _PRODUCE_SHAPES[0] else ()
            yield Scenario(name, section, title, Produce(*shape), flush, _TARGETS.get(name, ()), memory)


def _fetch() -> Iterator[Scenario]:
    for shape in _FETCH_SHAPES:
        code, title = _shape(*shape)
        name = f"fetch-{code}"
        yield Scenario(name, "Fetch", title, Fetch(*shape), Flush.OFF, _TARGETS.get(name, ()))


def _one_record() -> Iterator[Scenario]:
    for flush in (Flush.OFF, Flush.ON):
        name = f"one-record-{_SUFFIX[flush]}"
        title = f"100 B, 1 connection, 5 in flight, flush {flush.value}"
        section = "One record a request"
        yield Scenario(name, section, title, OneRecord(), flush, _TARGETS.get(name, ()))


def _rate() -> Iterator[Scenario]:
    section = "Latency at a fixed rate (open loop, 1 KB requests)"
    for flush in (Flush.OFF, Flush.ON):
        for rate in (500, 2000, 5000):
            name = f"rate-{rate}-{_SUFFIX[flush]}"
            title = f"{rate:,} requests/s, flush {flush.value}"
            yield Scenario(name, section, title, Rate(rate), flush, _TARGETS.get(name, ()))
    title = f"2,000 requests/s over 100 partitions, flush {Flush.ON.value}"
    yield Scenario("rate-2000-100p-flush", section, title, Rate(2000, partitions=100), Flush.ON)


def _transactions() -> Iterator[Scenario]:
    """The target is for equal settings: flushing costs only the broker that does it."""
    for flush, words in (
        (Flush.OFF, "flush off on both"),
        (Flush.ON, "flush before acknowledgement on both"),
        (Flush.DEFAULT, "each broker's default: Penstock flushes, Apache Kafka does not"),
    ):
        for records in (100, 10_000):
            for producers in (1, 10):
                yield Scenario(
                    f"transactions-{records}-{producers}p-{_SUFFIX[flush]}",
                    f"Transactions, {words}",
                    f"{records:,} records of 1 KB a transaction, {producers} producer{'s' * (producers > 1)}",
                    Transactions(records, producers),
                    flush,
                    () if flush is Flush.DEFAULT else (_at_least(2.0, "records_s"),),
                )


SCENARIOS: tuple[Scenario, ...] = (
    *_produce(),
    *_fetch(),
    *_one_record(),
    *_rate(),
    *_transactions(),
    Scenario("start", "Start and memory", "fresh data directory", Start(), Flush.DEFAULT, _TARGETS["start"]),
    Scenario("stock-client", "Stock client (confluent-kafka)", "1 KB records, 1 partition, flush off", Stock()),
)

PARTITIONS = Scenario(
    "partitions",
    "4,000 partitions on one broker",
    "40 topics of 100 partitions, default settings",
    ManyPartitions(),
    Flush.DEFAULT,
    tuple(_at_most(0.333, metric) for metric in ManyPartitions.shown if metric != "create_s"),
)

GROUPS: tuple[Scenario, ...] = tuple(
    Scenario(
        f"groups-{protocol}",
        "A consumer group of 100 members over 300 partitions",
        title,
        GroupOfMembers(protocol),
        Flush.DEFAULT,
        (_at_most(0.5, "form_s"), _at_most(0.5, "settle_s")),
    )
    for protocol, title in (("classic", "classic protocol"), ("consumer", "consumer protocol (KIP-848)"))
)
