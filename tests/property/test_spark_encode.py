"""The sink's kernels against plain Python: the same bytes, the same partitions; and what was encoded reads back."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from unittest.mock import patch

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from penstock.arrow.encode import batches as batches_module  # noqa: E402
from penstock.arrow.encode import kernels, plain, reference, routing  # noqa: E402
from penstock.arrow.encode.batches import SMALLEST_BATCH_BYTES, PartitionEncoder  # noqa: E402
from penstock.arrow.encode.closed import halves, stamp  # noqa: E402
from penstock.arrow.encode.columns import blobs, record_columns  # noqa: E402
from penstock.arrow.encode.routing import Router  # noqa: E402
from penstock.records.batch import HEADER_SIZE, read_header, validate_produced  # noqa: E402
from penstock.records.builder import Record, iterate_records  # noqa: E402
from penstock.records.compression import NAMES, decompress  # noqa: E402
from penstock.wire_client.requests.partitioner import murmur2, partition_for_key  # noqa: E402

NOW_MS = 1_700_000_000_000

texts = st.none() | st.text(max_size=20)
blob = st.none() | st.binary(max_size=40) | st.binary(min_size=900, max_size=1100)
headers = st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3)
micros = st.none() | st.integers(-1000, 4_000_000_000_000_000)
partition_numbers = st.none() | st.integers(0, 2)

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@st.composite
def record_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Any subset of the columns, in strings or binaries of either width, sliced or not."""
    rows = draw(st.integers(1, 30))

    def column(strategy: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(strategy, min_size=rows, max_size=rows))

    columns: dict[str, pa.Array] = {}
    for name in ("value", "key"):
        kind = draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null(), None]))
        if kind is not None:
            entries = blob if kind in (pa.binary(), pa.large_binary()) else texts
            columns[name] = pa.array(column(st.none() if pa.types.is_null(kind) else entries), kind)
    if draw(st.booleans()):
        lists = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in column(headers)]
        columns["headers"] = pa.array(lists, HEADERS_TYPE)
    if draw(st.booleans()):
        columns["timestamp"] = pa.array(column(micros), pa.timestamp("us", "UTC"))
    if draw(st.booleans()) or not columns:
        columns["partition"] = pa.array(column(partition_numbers), pa.int32())
    batch = pa.record_batch(columns)
    return batch.slice(draw(st.integers(0, rows - 1))) if draw(st.booleans()) else batch


def rows_of(data: bytearray) -> list[Record]:
    header = validate_produced(data)
    return list(iterate_records(header, decompress(header.compression, memoryview(data)[HEADER_SIZE:])))


def without_offset(record: Record) -> Record:
    return record._replace(offset=0)


@pytest.mark.parametrize("loops", [kernels, plain], ids=["compiled", "plain"])
@settings(deadline=None)
@given(st.lists(record_batches(), min_size=1, max_size=4), st.integers(0, 5), st.integers(16, 4000))
def test_slots_and_bytes_are_those_of_the_reference(
    loops: ModuleType, batches: list[pa.RecordBatch], first_sticky: int, sticky_bytes: int
) -> None:
    with patch.object(batches_module, "loops", lambda: loops), patch.object(routing, "loops", lambda: loops):
        check_slots_and_bytes(batches, first_sticky, sticky_bytes)


def check_slots_and_bytes(batches: list[pa.RecordBatch], first_sticky: int, sticky_bytes: int) -> None:
    router = Router("t", lambda _: 3, first_sticky, sticky_bytes)
    partitioner = reference.Partitioner(3, first_sticky % 3, sticky_bytes)
    encoder = PartitionEncoder(SMALLEST_BATCH_BYTES, 1 << 20)
    closed, rows, slots = [], [], []
    for batch in batches:
        columns = record_columns(batch, NOW_MS)
        found = router.route(batch, columns)
        closed += [*encoder.resize(len(router.targets)), *encoder.add(columns, found)]
        expected_rows = reference.records(batch, NOW_MS)
        index = batch.schema.get_field_index("partition")
        wanted = [None] * batch.num_rows if index < 0 else batch.column(index).to_pylist()
        expected = [partitioner.partition(row, partition) for row, partition in zip(expected_rows, wanted, strict=True)]
        assert found.tolist() == expected
        rows += expected_rows
        slots += expected
    closed += encoder.close_all()
    assert router.targets == [("t", 0), ("t", 1), ("t", 2)]
    payloads = reference.payloads(rows, slots, SMALLEST_BATCH_BYTES - HEADER_SIZE)
    assert [(slot, bytes(data[HEADER_SIZE:])) for slot, data, _ in closed] == payloads


@settings(deadline=None)
@given(record_batches(), st.sampled_from(range(len(NAMES))), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_what_is_encoded_reads_back(batch: pa.RecordBatch, codec: int, producer_id: int, sequence: int) -> None:
    encoder = PartitionEncoder(SMALLEST_BATCH_BYTES, 1 << 20, codec)
    router = Router("t", lambda _: 2, 0, 1 << 20)
    batch = batch.drop_columns(["partition"]) if "partition" in batch.schema.names else batch
    if not batch.num_columns:
        return
    columns = record_columns(batch, NOW_MS)
    slots = router.route(batch, columns)
    closed = [*encoder.resize(2), *encoder.add(columns, slots), *encoder.close_all()]
    found: dict[int, list[Record]] = {0: [], 1: []}
    for slot, data, count in closed:
        stamp(data, producer_id, 3, sequence)
        header = read_header(data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, 3, sequence)
        records = rows_of(data)
        assert len(records) == count == header.record_count
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        assert [record.offset for record in records] == list(range(count))
        found[slot] += [without_offset(record) for record in records]
    rows = reference.records(batch, NOW_MS)
    for slot, records in found.items():
        assert records == [row for row, at in zip(rows, slots, strict=True) if at == slot]


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=70), min_size=2, max_size=40), st.sampled_from(range(len(NAMES))))
def test_halves_are_the_whole(values: list[bytes | None], codec: int) -> None:
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    encoder = PartitionEncoder(1 << 20, 1 << 20, codec)
    columns = record_columns(batch, NOW_MS)
    slots = Router("t", lambda _: 1, 0, 1).route(batch, columns)
    (whole,) = [*encoder.resize(1), *encoder.add(columns, slots), *encoder.close_all()]
    stamp(whole.data, -1, -1, -1)
    parts = halves(whole.data)
    assert [count for _, count in parts] == [len(values) // 2, len(values) - len(values) // 2]
    again = [without_offset(record) for data, _ in parts for record in rows_of(data)]
    assert again == [without_offset(record) for record in rows_of(whole.data)]


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 1000))
def test_the_hash_of_a_key_is_kafkas(key: bytes, partition_count: int) -> None:
    keys = blobs(pa.array([b"before", key]), 2, "key")
    assert kernels.murmur2_of(keys, 1) == murmur2(key)
    batch = pa.record_batch({"key": pa.array([key]), "value": pa.array([b""])})
    router = Router("t", lambda _: partition_count, 0, 1)
    assert router.route(batch, record_columns(batch, 0)).tolist() == [partition_for_key(key, partition_count)]


def test_order_within_a_partition_survives_many_batches() -> None:
    count = 20_000
    batch = pa.record_batch({"value": pa.array([b"%06d" % number for number in range(count)])})
    encoder = PartitionEncoder(SMALLEST_BATCH_BYTES, 1 << 20)
    router = Router("t", lambda _: 4, 1, SMALLEST_BATCH_BYTES)
    columns = record_columns(batch, NOW_MS)
    slots = router.route(batch, columns)
    by_slot: dict[int, list[bytes]] = {}
    for slot, data, _ in [*encoder.resize(4), *encoder.add(columns, slots), *encoder.close_all()]:
        assert len(data) <= SMALLEST_BATCH_BYTES
        stamp(data, 1, 0, 0)
        by_slot.setdefault(slot, []).extend(record.value or b"" for record in rows_of(data))
    assert sorted(by_slot) == [0, 1, 2, 3]
    assert sum(len(values) for values in by_slot.values()) == count
    for values in by_slot.values():
        assert all(before < after for before, after in pairwise(values))
