"""The rows of BatchDecoder for sound batches. (Every kind of them: tests/property/test_spark_decode.py.)"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType, TimestampType

from penstock.arrow.cache.warmup import kernels_of
from penstock.arrow.decode import KAFKA_SCHEMA, BatchDecoder, CorruptRecordBatch, DecodedRows, jit, warm_up
from penstock.arrow.decode.columns import MAX_BYTES, MAX_TIMESTAMP_MS
from penstock.model.errors import ConfigError
from penstock.records.batch import TRANSACTIONAL_BIT, read_header, with_append_time
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import NAMES, recompress

FAR = 2**63 - 1
CONTROL_BIT = 0x20


def decode(data: bytes, *columns: str, start: int = 0, end: int = FAR, max_rows: int = 10_000) -> DecodedRows:
    schema = pa.schema([KAFKA_SCHEMA.field(name) for name in columns or KAFKA_SCHEMA.names])
    return BatchDecoder(schema, "clicks", 4, max_rows=max_rows).decode(data, start, end)


def rows(decoded: DecodedRows) -> list[dict[str, object]]:
    return [row for batch in decoded.batches for row in batch.to_pylist()]


def offsets(decoded: DecodedRows) -> list[int]:
    return [offset for batch in decoded.batches for offset in batch.column("offset").to_pylist()]


def plain(count: int, base_offset: int = 0, value: bytes = b"v") -> bytes:
    return build_batch([Record(b"k", value)] * count, base_offset=base_offset)


def transactional(producer_id: int, base_offset: int, count: int = 2) -> bytes:
    records = [Record(None, b"%d" % producer_id)] * count
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, attributes=TRANSACTIONAL_BIT)


def marker(producer_id: int, offset: int, *, is_commit: bool) -> bytes:
    record = Record(b"\0\0\0\1" if is_commit else b"\0\0\0\0", b"\0\0\0\0\0\0")
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return build_batch([record], base_offset=offset, producer_id=producer_id, attributes=attributes)


def test_all_columns_of_a_record() -> None:
    record = Record(
        b"key", b"value", (("trace", b"id"), ("empty", b""), ("none", None), ("größe", b"x")), 1_700_000_000_123
    )
    assert rows(decode(build_batch([record], base_offset=42))) == [
        {
            "key": b"key",
            "value": b"value",
            "topic": "clicks",
            "partition": 4,
            "offset": 42,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
            "timestampType": 0,
            "headers": [
                {"key": "trace", "value": b"id"},
                {"key": "empty", "value": b""},
                {"key": "none", "value": None},
                {"key": "größe", "value": b"x"},
            ],
        }
    ]


def test_null_is_not_empty() -> None:
    records = [Record(None, b""), Record(b"", None), Record(b"k", b"v", (("h", b""),))]
    found = rows(decode(build_batch(records), "key", "value", "headers"))
    assert found == [
        {"key": None, "value": b"", "headers": None},
        {"key": b"", "value": None, "headers": None},
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b""}]},
    ]


def test_header_name_that_is_not_utf8_is_replaced() -> None:
    batch = bytearray(build_batch([Record(None, None, (("abc", b"1"), ("d\u00e9", b"2")))]))
    batch[batch.index(b"abc") + 1] = 0xFF
    header = read_header(batch)
    found = rows(decode(seal(header, batch[61:]), "headers"))
    assert found == [{"headers": [{"key": "a\ufffdc", "value": b"1"}, {"key": "d\u00e9", "value": b"2"}]}]


def test_timestamps() -> None:
    """None (-1) is the millisecond before 1970, as in Spark's Kafka source; what is too far becomes the nearest."""
    records = [Record(None, None, (), ms) for ms in (-1, 0, 2**62, -(2**62))]
    column = decode(build_batch(records), "timestamp").batches[0].column(0).cast(pa.int64())
    limit = MAX_TIMESTAMP_MS * 1000
    assert column.to_pylist() == [-1000, 0, limit, -limit]


def test_log_append_time() -> None:
    batch = bytes(with_append_time(build_batch([Record(b"k", b"v", (), 5), Record(b"k", b"v", (), 6)]), 1234))
    found = decode(batch, "timestamp", "timestampType").batches[0]
    assert found.column(0).cast(pa.int64()).to_pylist() == [1_234_000, 1_234_000]
    assert found.column(1).to_pylist() == [1, 1]


def test_schema_is_the_one_spark_asks_for() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    asked = StructType(
        [
            StructField("value", BinaryType()),
            StructField("timestamp", TimestampType()),
            StructField("headers", ArrayType(header)),
            StructField("topic", StringType()),
        ]
    )
    schema = to_arrow_schema(asked, timezone="UTC")
    (batch,) = BatchDecoder(schema, "clicks", 0).decode(plain(3), 0, 3).batches
    assert batch.schema.equals(schema, check_metadata=True)
    batch.validate(full=True)


@pytest.mark.parametrize("codec", range(len(NAMES)), ids=NAMES)
def test_batches_of_another_client(codec: int) -> None:
    nobody = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    builder = DefaultRecordBatchBuilder(2, codec, is_transactional=0, batch_size=1 << 20, **nobody)
    for i in range(300):
        headers = [("n", b"%d" % i)] if i % 3 == 0 else []
        value = None if i % 7 == 0 else b"value-%d" % i * 5
        builder.append(i, timestamp=1_000 + i, key=b"%d" % i, value=value, headers=headers)
    found = rows(decode(bytes(builder.build()), "key", "value", "offset", "headers", max_rows=100))
    assert [row["offset"] for row in found] == list(range(300))
    assert found[6] == {"key": b"6", "value": b"value-6" * 5, "offset": 6, "headers": [{"key": "n", "value": b"6"}]}
    assert found[7] == {"key": b"7", "value": None, "offset": 7, "headers": None}


def test_compressed_and_plain_batches_side_by_side() -> None:
    data = b""
    for i in range(10):
        batch = plain(3, i * 3, b"%d" % i)
        data += batch if i % 3 == 0 else recompress(read_header(batch), batch, 1 + i % 4)
    decoded = decode(data, "value", "offset")
    assert len(decoded.batches) == 1
    assert rows(decoded) == [{"value": b"%d" % (i // 3), "offset": i} for i in range(30)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 20, range(20)), (3, 4, [3]), (7, 13, range(7, 13)), (10, 10, []), (19, FAR, [19]), (25, 30, [])],
)
def test_window(start: int, end: int, expected: object) -> None:
    decoded = decode(plain(10) + plain(10, 10), "offset", start=start, end=end)
    assert offsets(decoded) == list(expected)  # type: ignore[call-overload]
    assert decoded.rows == len(offsets(decoded))
    assert decoded.next_offset >= min(end, 20)


def test_next_offset_passes_holes_and_goes_beyond_the_end() -> None:
    data = plain(10) + plain(5, 100)
    assert decode(data, "offset", end=10).next_offset == 10
    decoded = decode(data, "offset", end=50)
    assert (offsets(decoded), decoded.next_offset) == (list(range(10)), 105)
    assert decode(b"", "offset", start=7).next_offset == 7


def test_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    decoded = decode((plain(10) + plain(10, 10))[:-1], "offset")
    assert (offsets(decoded), decoded.next_offset) == (list(range(10)), 10)


def test_small_batches_become_one_and_large_ones_equal_parts() -> None:
    small = b"".join(plain(50, i * 50) for i in range(300))
    assert [batch.num_rows for batch in decode(small, "offset").batches] == [10_000, 5_000]
    large = decode(plain(2_600), "offset", max_rows=1_000)
    assert [batch.num_rows for batch in large.batches] == [867, 867, 866]
    assert offsets(large) == list(range(2_600))


def test_record_batches_are_bounded_in_bytes() -> None:
    data = build_batch([Record(None, bytes([i]) * (1 << 20)) for i in range(70)])
    data += plain(1, 70, b"z" * (MAX_BYTES + 1))
    decoded = decode(data, "value")
    assert [batch.num_rows for batch in decoded.batches] == [31, 31, 8, 1]
    assert all(batch.nbytes <= MAX_BYTES for batch in decoded.batches[:3])
    assert [row["value"][:1] for row in rows(decoded)] == [bytes([i]) for i in range(70)] + [b"z"]  # type: ignore[index]


def test_rows_come_before_what_is_behind_them_is_looked_into() -> None:
    broken = bytearray(plain(10, 20))
    broken[-1] ^= 1
    chunk = BatchDecoder(KAFKA_SCHEMA, "clicks", 4, max_rows=10).open(plain(10) + plain(10, 10) + broken, 0, FAR)
    assert chunk.next_offset == 30
    batches = iter(chunk)
    assert next(batches).num_rows == 10
    with pytest.raises(CorruptRecordBatch, match="base offset 20"):
        list(batches)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_rows_do_not_hold_on_to_the_answer(kind: type) -> None:
    data = bytearray(plain(3))
    decoded = decode(kind(data), "value")  # type: ignore[call-arg]
    data.clear()  # BufferError if anything still refers to it
    assert [row["value"] for row in rows(decoded)] == [b"v"] * 3


def test_control_batches_are_no_rows() -> None:
    data = transactional(1, 0) + marker(1, 2, is_commit=True) + plain(1, 3)
    decoded = decode(data, "offset")
    assert (offsets(decoded), decoded.next_offset) == ([0, 1, 3], 4)
    assert decode(marker(1, 2, is_commit=True), "offset") == DecodedRows([], 3, 0)


def test_aborted_ranges_end_with_their_marker() -> None:
    data = b"".join(
        [
            transactional(1, 0),
            transactional(2, 2),
            plain(1, 4),
            marker(1, 5, is_commit=False),
            transactional(1, 6),
            marker(2, 8, is_commit=True),
            transactional(1, 9),
            marker(1, 11, is_commit=False),
        ]
    )
    schema = pa.schema([KAFKA_SCHEMA.field("offset")])
    aborted = [(1, 9), (1, 0)]  # 6 and 7 lie between two aborted transactions of the same producer
    for read_committed, expected in ((True, [2, 3, 4, 6, 7]), (False, [0, 1, 2, 3, 4, 6, 7, 9, 10])):
        decoded = BatchDecoder(schema, "clicks", 0).decode(data, 0, FAR, aborted, read_committed)
        assert (offsets(decoded), decoded.next_offset) == (expected, 12)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ([], "at least one of key"),
        ([("key", pa.binary()), ("key", pa.binary())], "a column twice"),
        ([("ofset", pa.int64())], "no column 'ofset': a topic has key"),
        ([("value", pa.string())], "column 'value' is requested as string: it is binary"),
        ([("headers", pa.list_(pa.string()))], "'headers' is requested as"),
        ([("timestamp", pa.timestamp("ms"))], "'timestamp' is requested as"),
    ],
)
def test_schema_that_no_topic_has(fields: list[tuple[str, pa.DataType]], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        BatchDecoder(pa.schema(fields), "clicks", 0)


def test_rows_are_bounded_by_at_least_one() -> None:
    with pytest.raises(ConfigError, match="max_rows 0"):
        BatchDecoder(KAFKA_SCHEMA, "clicks", 0, max_rows=0)


def test_without_numba_plain_python_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain(7)
    expected = rows(decode(data))
    monkeypatch.setitem(sys.modules, "penstock.arrow.decode.kernels", None)
    kernels_of.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="decoded in plain Python"):
            found = decode(data, max_rows=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = decode(data)
    finally:
        kernels_of.cache_clear()
    assert [batch.num_rows for batch in found.batches] == [3, 3, 1]
    assert rows(found) == rows(again) == expected


def test_warm_up_uses_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.arrow.decode import kernels

    called = []
    for name in ("walk", "survey", "gather", "headers", "mark"):
        kernel = getattr(kernels, name)
        assert len(kernel.signatures) == 1, "a second signature would be compiled in every worker"
        monkeypatch.setattr(kernels, name, lambda *args, n=name, k=kernel: (called.append(n), k(*args))[1])
    warm_up()
    assert set(called) == {"walk", "survey", "gather", "headers", "mark"}


def doubled(number: int) -> int:
    return 2 * number


def test_kernels_compile_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], jit.numba.njit

    def njit(*given: object, **options: object) -> Callable[[object], object]:
        if options == {**jit._OPTIONS, **options}:  # numba itself calls it, too
            asked.append(options.get("cache", False))

        def refuse(function: object) -> object:
            raise RuntimeError("cannot cache function 'walk': no locator available for file 'kernels.py'")

        return refuse if options.get("cache") else real(*given, **options)

    monkeypatch.setattr(jit.numba, "njit", njit)
    assert jit.kernel(jit.INT, jit.INT)(doubled)(21) == 42
    assert asked == [True, False]
