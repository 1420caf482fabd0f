"""The inlined walk over records against the plain way."""

from __future__ import annotations

from random import Random

import pytest

from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.builder import MalformedRecords, Record, build_batch, iterate_records
from penstock.storage.cleaner.walk import copy_runs, digest, put_keys, retain

KEY_SIZES = (0, 1, 31, 32, 33, 64, 200)


def random_batch(random: Random) -> bytes:
    records = [
        Record(
            None if random.random() < 0.1 else bytes([random.randrange(6)]) * random.choice(KEY_SIZES),
            None if random.random() < 0.3 else random.randbytes(random.choice([0, 1, 63, 64, 20_000])),
            (("name", random.randbytes(3)),) * random.choice([0, 0, 2]),
            random.choice([1000, 1000 + 10**12, 900]),
        )
        for _ in range(random.choice([1, 2, 70, 200]))
    ]
    return build_batch(records, base_offset=random.choice([0, 5, 10**13]))


def reference(
    records: list[Record], offsets: dict[bytes, int], latest_offset: int, drops_tombstones: bool
) -> list[Record]:
    kept = []
    for record in records:
        if record.offset > latest_offset:
            kept.append(record)
            continue
        is_latest = record.key is not None and record.offset >= offsets.get(digest(record.key), -1)
        if is_latest and (record.value is not None or not drops_tombstones):
            kept.append(record)
    return kept


def test_the_walk_equals_the_plain_way() -> None:
    for seed in range(300):
        random = Random(seed)
        batch = b"before" + random_batch(random) + b"behind"
        header = read_header(batch, 6)
        start, end = 6 + HEADER_SIZE, len(batch) - 6
        records = list(iterate_records(header, batch[start:end]))
        since = header.base_offset + random.randint(-3, len(records))
        offsets: dict[bytes, int] = {}
        assert put_keys(batch, start, end, header.base_offset, since, offsets) == len(records)
        expected = {digest(r.key): r.offset for r in records if r.key is not None and r.offset >= since}
        assert offsets == expected, f"seed {seed}"

        latest = header.base_offset + random.randint(-1, len(records))
        offsets = {key: offset for key, offset in offsets.items() if offset <= latest}
        drops = random.random() < 0.5
        retained = retain(batch, start, end, header.base_offset, latest, offsets, drops)
        wanted = reference(records, offsets, latest, drops)
        payload, largest = copy_runs(batch, retained.runs, 0)
        assert list(iterate_records(header._replace(record_count=retained.kept), payload)) == wanted, f"seed {seed}"
        assert retained.read == len(records)
        assert retained.has_tombstones == any(record.value is None for record in wanted)
        if not wanted:
            continue
        assert header.base_timestamp + largest == max(record.timestamp_ms for record in wanted)
        shift = random.choice([-5, 1, 10**11])
        payload, _ = copy_runs(batch, retained.runs, shift)
        moved = header._replace(record_count=retained.kept, base_timestamp=header.base_timestamp + shift)
        assert list(iterate_records(moved, payload)) == wanted


def test_cut_and_flipped_bytes_are_an_error_or_records_but_nothing_else() -> None:
    refused = 0
    for seed in range(500):
        random = Random(seed)
        batch = bytearray(random_batch(random))
        end = len(batch)
        if random.random() < 0.5:
            end = random.randint(HEADER_SIZE, end)
        for _ in range(3):
            batch[random.randrange(HEADER_SIZE, len(batch))] = random.randrange(256)
        try:
            put_keys(bytes(batch), HEADER_SIZE, end, 0, 0, {})
            retain(bytes(batch), HEADER_SIZE, end, 0, 10**6, {}, False)
        except MalformedRecords:
            refused += 1
    assert refused > 50


def test_a_digest_never_equals_a_short_key() -> None:
    assert digest(b"x" * 32) == b"x" * 32
    assert len(digest(b"x" * 33)) == 33
    assert digest(b"x" * 33) != b"x" * 33
    with pytest.raises(MalformedRecords, match="64 bits"):
        put_keys(b"\xff" * 40, 0, 40, 0, 0, {})
