from __future__ import annotations

import pytest

from penstock.model.errors import StorageError
from penstock.storage.leader_epochs import LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    result = LeaderEpochs()
    for epoch, start in entries:
        result.assign(epoch, start)
    return result


def test_an_epoch_ends_where_the_next_begins() -> None:
    cache = epochs((0, 0), (2, 10), (5, 30))
    assert cache.end_offset_for(0, 99) == (0, 10)
    assert cache.end_offset_for(1, 99) == (0, 10), "unknown: the largest below it"
    assert cache.end_offset_for(4, 99) == (2, 30)
    assert cache.end_offset_for(5, 99) == (5, 99)
    assert cache.end_offset_for(6, 99) == (-1, -1), "of the future"
    assert cache.end_offset_for(-1, 99) == (-1, -1)
    assert LeaderEpochs().end_offset_for(0, 99) == (-1, -1)


def test_before_the_first_epoch() -> None:
    assert epochs((3, 20)).end_offset_for(1, 99) == (1, 20)


def test_epoch_of_an_offset() -> None:
    cache = epochs((0, 0), (2, 10))
    assert [cache.epoch_of(offset) for offset in (0, 9, 10, 50)] == [0, 0, 2, 2]
    assert epochs((2, 10)).epoch_of(3) == -1


def test_an_older_epoch_changes_nothing_and_an_unused_one_is_replaced() -> None:
    cache = epochs((3, 10))
    cache.stable_version = cache.version
    cache.assign(2, 20)
    assert not cache.is_dirty
    cache.assign(4, 10)
    assert cache.entries() == [(4, 10)]


def test_truncation_at_both_ends() -> None:
    cache = epochs((0, 0), (2, 10), (5, 30))
    cache.truncate_from_end(30)
    assert cache.entries() == [(0, 0), (2, 10)]
    assert cache.latest == 2
    cache.truncate_from_start(15)
    assert cache.entries() == [(2, 15)]
    cache.truncate_from_start(15)
    assert cache.entries() == [(2, 15)]


def test_kafkas_text_format() -> None:
    cache = epochs((0, 0), (2, 10))
    assert cache.encode() == b"0\n2\n0 0\n2 10\n"
    assert LeaderEpochs.decode(cache.encode(), "x").entries() == cache.entries()


@pytest.mark.parametrize("data", [b"", b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 0", b"0\n1\nx y\n", b"\xff\xfe"])
def test_a_damaged_file_is_named(data: bytes) -> None:
    with pytest.raises(StorageError, match="the-file"):
        LeaderEpochs.decode(data, "the-file")
