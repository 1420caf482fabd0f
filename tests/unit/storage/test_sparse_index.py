"""The index file against a plain list, in memory, on file, and across the two."""

from __future__ import annotations

from array import array
from random import Random
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sim.machine.disk import SimDisk
from penstock.storage.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, pack

PATH = "/00000000000000000000.index"


def rising(numbers: list[int]) -> list[int]:
    total, result = 0, []
    for number in numbers:
        total += number
        result.append(total)
    return result


entries = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40).map(
    lambda steps: list(zip(rising([a for a, _ in steps]), rising([b for _, b in steps]), strict=True))
)


def floor(pairs: list[tuple[int, int]], column: int, key: int) -> tuple[int, int] | None:
    return max((pair for pair in pairs if pair[column] <= key), default=None)


@given(entries, st.integers(0, 40), st.integers(0, 1), st.integers(0, 380))
def test_lookup_in_file_and_memory_equals_a_list(
    pairs: list[tuple[int, int]], written: int, column: int, key: int
) -> None:
    disk = SimDisk(Random(0))
    index = SparseIndex(disk, PATH, OFFSET_ENTRY, exists=False)
    for number, pair in enumerate(pairs):
        if number == written:
            index.seal()
        index.append(*pair)
    assert index.floor(column, key) == floor(pairs, column, key)
    assert index.last() == (pairs[-1] if pairs else None)
    index.write()
    assert index.entries() == pairs
    assert SparseIndex(disk, PATH, OFFSET_ENTRY, exists=True).entries() == pairs


@given(entries, st.integers(0, 40), st.integers(0, 1), st.integers(0, 380), st.booleans())
def test_truncation_equals_a_list(
    pairs: list[tuple[int, int]], written: int, column: int, bound: int, is_written: bool
) -> None:
    disk = SimDisk(Random(0))
    index = SparseIndex(disk, PATH, TIME_ENTRY, exists=False)
    for number, pair in enumerate(pairs):
        if number == written:
            index.seal()
        index.append(*pair)
    if is_written:
        index.write()
    index.truncate(column, bound)
    left = [pair for pair in pairs if pair[column] < bound]
    assert index.entries() == left
    index.append(1000, 1000)
    index.seal()
    assert SparseIndex(disk, PATH, TIME_ENTRY, exists=True).entries() == [*left, (1000, 1000)]


def test_a_long_file_is_searched_not_read() -> None:
    disk = SimDisk(Random(0))
    index = SparseIndex(disk, PATH, OFFSET_ENTRY, exists=False)
    for number in range(10_000):
        index.append(number * 3, number * 100)
    index.seal()
    assert index.floor(0, 7 * 3 + 1) == (21, 700)
    assert index.floor(1, 999_999) == (29_997, 999_900)
    assert len(index) == 10_000


def test_sanity() -> None:
    disk = SimDisk(Random(0))
    index = SparseIndex(disk, PATH, OFFSET_ENTRY, exists=False)
    assert not index.is_sane(1, 500), "missing"
    index.append(3, 100)
    index.append(5, 400)
    index.seal()
    assert index.is_sane(1, 500)
    assert not index.is_sane(1, 400), "points behind the end"
    file = disk.open(PATH)
    file.write(16, (b"\0\0\0",))
    assert not index.is_sane(1, 500), "not whole entries"
    file.write(16, (bytes(8),))
    assert not index.is_sane(1, 500), "zeros at the end, as a preallocated file has them"


@pytest.mark.parametrize(("entry", "largest"), [(OFFSET_ENTRY, 2**32 - 1), (TIME_ENTRY, 2**63 - 1)])
def test_entries_are_packed_as_one_by_one(entry: Struct, largest: int) -> None:
    random = Random(1)
    for count in (0, 1, 2, 100):
        firsts = array("q", [0, largest, *(random.randint(0, largest) for _ in range(count))])
        seconds = array("q", [2**32 - 1, 0, *(random.randrange(2**32) for _ in range(count))])
        expected = b"".join(map(entry.pack, firsts, seconds))
        assert pack(entry, firsts, seconds) == expected
    assert pack(entry, array("q"), array("q")) == b""
    if entry is TIME_ENTRY:
        assert pack(entry, array("q", [-1]), array("q", [7])) == entry.pack(-1, 7)
