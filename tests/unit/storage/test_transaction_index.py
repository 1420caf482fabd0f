"""Aborted transactions of a log: the `.txnindex` files, byte for byte as Kafka has them, and who is told of them."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model.errors import CorruptBatch, NotCached
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.sim.machine.disk import SimDisk
from penstock.storage import checkpoints
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.producers.transaction_index import ENTRY, TransactionIndex, encode
from penstock.storage.producers.transactions import AbortedTransaction

DIRECTORY = "/data/orders-0"
FIRST = f"{DIRECTORY}/00000000000000000000.txnindex"
NOW_MS = 1_700_000_000_000


def entry(first: int, last: int, stable: int | None = None, producer_id: int = 7) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last + 1 if stable is None else stable)


# -- one file ------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(1))
    disk.make_directory(DIRECTORY)
    return disk


def index(disk: SimDisk, *entries: AbortedTransaction, stored: int = 0) -> TransactionIndex:
    result = TransactionIndex(disk, FIRST, stored=stored)
    for one in entries:
        result.append(one)
    return result


def content(disk: SimDisk) -> bytes:
    return disk.peek(FIRST, 0, 1 << 20)


def test_the_bytes_of_an_entry() -> None:
    assert encode([AbortedTransaction(producer_id=7, first_offset=100, last_offset=0x103, last_stable_offset=101)]) == (
        bytes.fromhex("0000" "0000000000000007" "0000000000000064" "0000000000000103" "0000000000000065")
    )  # fmt: skip
    assert ENTRY.size == 34


def test_there_is_no_file_before_there_is_an_entry(disk: SimDisk) -> None:
    empty = index(disk)
    assert not empty.write()
    empty.seal()
    assert not disk.exists(FIRST)
    empty.append(entry(1, 2))
    assert empty.write()
    assert not empty.write()
    empty.append(entry(3, 4))
    assert empty.entries() == [entry(1, 2), entry(3, 4)]
    empty.seal()
    assert content(disk) == encode([entry(1, 2), entry(3, 4)])
    assert len(empty) == empty.stored == 2


@pytest.mark.parametrize("is_sealed", [False, True])
def test_truncation_takes_the_file_with_the_last_entry(disk: SimDisk, is_sealed: bool) -> None:
    some = index(disk, *(entry(number, number + 1) for number in range(0, 20, 2)))
    some.write()
    if is_sealed:
        some.seal()
    assert some.truncate(12)
    assert content(disk) == encode([entry(number, number + 1) for number in range(0, 12, 2)])
    some.append(entry(12, 13))
    assert some.truncate(13)
    some.write()
    assert len(some) == len(content(disk)) // ENTRY.size == 6
    assert not some.truncate(1)
    assert not disk.exists(FIRST)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_kafkas_rule_for_a_range(disk: SimDisk, is_sealed: bool) -> None:
    found = index(disk, entry(0, 10, 4), entry(4, 12, 8), entry(13, 20, 8), entry(8, 30, 31), entry(40, 50, 51))
    if is_sealed:
        found.seal()
    assert [one.last_offset for one in found.overlapping(10, 9).entries] == [10, 12, 30]
    assert [one.last_offset for one in found.overlapping(11, 8).entries] == [12]
    assert found.overlapping(11, 8).is_complete
    assert [one.last_offset for one in found.overlapping(13, 60).entries] == [20, 30, 50]
    assert not found.overlapping(13, 60).is_complete


@pytest.mark.parametrize("count", [1, 511, 512, 513, 3000])
def test_a_large_file_is_searched(disk: SimDisk, count: int) -> None:
    entries = [entry(10 * number, 10 * number + 9) for number in range(count)]
    found = index(disk, *entries)
    found.seal()
    for number in {0, count // 2, count - 1}:
        first = 10 * number
        assert found.overlapping(first, first + 25).entries == entries[number : number + 3]
        assert found.overlapping(first + 9, first + 10, may_wait=False).entries == [entries[number]]
        assert found.overlapping(first + 10, 10 * count).entries == entries[number + 1 :]


def test_the_loop_does_not_wait_nor_read_for_long(disk: SimDisk) -> None:
    found = index(disk, *(entry(2 * number, 2 * number + 1) for number in range(6000)))
    found.seal()
    with pytest.raises(NotCached):
        found.overlapping(0, 12_000, may_wait=False)
    disk.is_cold = True
    with pytest.raises(NotCached):
        found.overlapping(0, 2, may_wait=False)
    assert len(found.overlapping(0, 12_000).entries) == 6000


@pytest.mark.parametrize("damage", [b"\0\1", b"", b"\0" * 34])
def test_what_makes_no_sense_is_damage(disk: SimDisk, damage: bytes) -> None:
    found = index(disk, entry(0, 1), entry(2, 3))
    found.seal()
    file = disk.open(FIRST)
    if damage:
        file.write(34, (damage,))
    else:
        file.truncate(50)
    with pytest.raises(CorruptBatch):
        found.overlapping(0, 10)
    with pytest.raises(CorruptBatch):
        TransactionIndex(disk, FIRST, stored=-1).sound_entries(0, 10, 10)
    assert TransactionIndex(disk, FIRST, stored=-1).sound_entries(0, 10, 1) == []


# -- a log ---------------------------------------------------------------------------------------------------


class Scene:
    """A log whose producers abort as often as not."""

    def __init__(self, **config: int) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_directory("/data")
        self.disk.sync_directory("")
        self.config = LogConfig(**config)  # type: ignore[arg-type]
        self.log = self.open(clean=True)

    def open(self, *, clean: bool, recovery_point: int = 0) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            self.config,
            LastRun(recovery_point=recovery_point, was_clean=clean),
            now_ms=NOW_MS,
        )

    def data(self, producer_id: int = 7) -> int:
        producer = self.log.producers.get(producer_id)
        sequence = 0 if producer is None else producer.last_sequence + 1
        return self.append(
            build_batch(
                [Record(b"k", b"v", (), NOW_MS)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=TRANSACTIONAL_BIT,
            )
        )

    def marker(self, kind: int, producer_id: int = 7) -> int:
        return self.append(build_marker(producer_id, 0, kind, 1, NOW_MS))

    def abort(self, producer_id: int = 7) -> AbortedTransaction:
        first, last = self.data(producer_id), self.marker(ABORT, producer_id)
        return entry(first, last, producer_id=producer_id)

    def append(self, data: bytes) -> int:
        return self.log.append(read_header(data), data, 0, NOW_MS)

    def names(self) -> list[str]:
        return [name for name in self.disk.list_directory(DIRECTORY) if "txnindex" in name]

    def everything(self) -> list[AbortedTransaction]:
        return self.log.aborted_between(0, self.log.log_end_offset)

    def looked_up(self) -> list[AbortedTransaction]:
        lookup = self.log.aborted_lookup(0, self.log.log_end_offset)
        found = lookup.run()
        assert self.log.end_aborted_lookup(lookup)
        return found

    def stable_checkpoint(self) -> int:
        flush_blocking(self.disk, self.log)
        return self.log.checkpoint()

    def crash(self, recovery_point: int = 0) -> None:
        self.disk.crash()
        self.log = self.open(clean=False, recovery_point=recovery_point)


def test_a_log_without_aborted_transactions_has_no_file_and_looks_at_none() -> None:
    scene = Scene()
    scene.data()
    scene.marker(COMMIT)
    scene.log.roll(NOW_MS)
    scene.disk.is_cold = True
    assert not scene.log.has_aborted
    assert scene.everything() == []
    scene.log.close(clean=True)
    assert scene.names() == []


def test_aborted_transactions_of_several_segments() -> None:
    scene = Scene()
    first = scene.abort()
    scene.log.roll(NOW_MS)
    scene.data(8)
    second = scene.abort()
    scene.log.roll(NOW_MS)
    third = entry(scene.log.log_end_offset - 3, scene.marker(ABORT, 8), producer_id=8)
    assert scene.everything() == [first, second._replace(last_stable_offset=2), third]
    assert scene.log.aborted_between(2, 3) == [third]
    assert scene.log.aborted_between(0, 2) == [first]
    assert scene.log.aborted_between(5, 6) == [third], "its marker is all that is left"
    assert scene.looked_up() == scene.everything()
    assert scene.names() == [f"{0:020d}.txnindex", f"{2:020d}.txnindex"]


def test_a_cold_file_goes_to_a_worker() -> None:
    scene = Scene()
    aborted = scene.abort()
    scene.log.roll(NOW_MS)
    scene.disk.is_cold = True
    with pytest.raises(NotCached):
        scene.everything()
    assert scene.looked_up() == [aborted]


def test_the_active_segment_is_in_memory_also_after_a_restart() -> None:
    scene = Scene()
    aborted = scene.abort()
    scene.log.close(clean=True)
    scene.log = scene.open(clean=True)
    scene.disk.is_cold = True
    assert scene.everything() == [aborted]
    again = scene.abort()
    assert scene.everything() == [aborted, again]
    scene.log.close(clean=True)
    assert content(scene.disk) == encode([aborted, again])


def test_a_checkpoint_makes_it_stable_before_the_recovery_point_passes() -> None:
    scene = Scene()
    aborted = scene.abort()
    recovery_point = scene.stable_checkpoint()
    assert recovery_point == 2
    assert scene.disk.stable_size(FIRST) == 34
    later = scene.abort()
    flush_blocking(scene.disk, scene.log)
    scene.crash(recovery_point)
    assert scene.everything() == [aborted, later], "the second from the batches"


def test_a_transaction_whose_marker_was_cut_is_open_again() -> None:
    scene = Scene()
    kept = scene.abort()
    scene.data()
    scene.log.roll(NOW_MS)
    last = scene.marker(ABORT)
    assert scene.log.last_stable_offset(last) == 2
    assert scene.log.last_stable_offset(last + 1) == last + 1
    scene.log.truncate_to(last)
    assert scene.log.last_stable_offset(last) == 2
    assert scene.everything() == [kept]
    assert scene.names() == [f"{0:020d}.txnindex"]
    scene.log.truncate_to(1)
    assert scene.everything() == []
    assert scene.names() == []
    assert scene.log.last_stable_offset(1) == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_cut_into_a_segment_whose_file_is_damaged(is_lost: bool) -> None:
    scene = Scene()
    kept = scene.abort()
    scene.abort()
    scene.log.roll(NOW_MS)
    scene.data()
    if is_lost:
        scene.disk.remove(FIRST)
    else:
        scene.disk.flip_bit(FIRST, 1)
    scene.log.truncate_to(3)
    assert scene.everything() == [kept]
    assert scene.log.last_stable_offset(3) == 2
    assert content(scene.disk) == encode([kept])


def test_what_is_replicated_is_forgotten_where_nobody_reads() -> None:
    scene = Scene()
    for _ in range(3):
        scene.abort()
    scene.log.apply_retention(NOW_MS, 4)
    assert [one.marker_offset for one in scene.log.producers.transactions.decided] == [5]


def test_a_follower_learns_them_from_the_batches() -> None:
    leader, follower = Scene(), Scene()
    leader.abort()
    leader.data(8)
    leader.abort()
    piece = leader.log.reader.read(0, 1 << 20)
    assert piece is not None
    follower.log.append_replicated(piece.read(), NOW_MS)
    assert follower.everything() == leader.everything() != []
    assert follower.log.last_stable_offset(5) == leader.log.last_stable_offset(5) == 2


def test_deleted_segments_take_their_files_along() -> None:
    scene = Scene()
    for _ in range(3):
        last = scene.abort()
        scene.log.roll(NOW_MS)
    flush_blocking(scene.disk, scene.log)
    scene.log.advance_log_start(4)
    assert scene.everything() == [last]
    assert [name for name in scene.names() if name.endswith(".txnindex")] == [f"{4:020d}.txnindex"]
    scene.log.remove_deleted()
    assert scene.names() == [f"{4:020d}.txnindex"]


def test_the_last_stable_offset_is_not_below_the_log_start() -> None:
    scene = Scene()
    scene.data()
    scene.data(8)
    scene.data()
    scene.log.move_log_start(2)
    assert scene.log.last_stable_offset(3) == 2
    scene.marker(COMMIT)
    assert scene.log.last_stable_offset(4) == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_orphans_and_empty_files_go_when_the_log_is_opened(is_clean: bool) -> None:
    scene = Scene()
    scene.abort()
    scene.log.roll(NOW_MS)
    scene.data()
    scene.log.close(clean=True)
    for base in (1, 2):
        file = scene.disk.open(f"{DIRECTORY}/{base:020d}.txnindex", create=True)
        file.write(0, (b"" if base == 2 else encode([entry(0, 1)]),))
    scene.log = scene.open(clean=is_clean, recovery_point=2)
    assert scene.names() == [f"{0:020d}.txnindex"]


@pytest.mark.parametrize("recovery_point", [0, 2, 4, 5])
def test_a_damaged_file_is_made_again_after_a_crash(recovery_point: int) -> None:
    scene = Scene()
    wanted = [scene.abort()]
    scene.data(8)
    wanted.append(scene.abort()._replace(last_stable_offset=2))
    scene.log.roll(NOW_MS)
    wanted.append(entry(2, scene.marker(ABORT, 8), producer_id=8))
    scene.log.close(clean=True)
    scene.disk.flip_bit(FIRST, 1)
    scene.log = scene.open(clean=False, recovery_point=recovery_point)
    assert scene.everything() == wanted
    assert content(scene.disk) == encode(wanted[:2])


def test_a_file_that_is_damaged_in_service_is_made_again_by_who_looks() -> None:
    scene = Scene()
    aborted = scene.abort()
    scene.log.roll(NOW_MS)
    scene.data()
    flush_blocking(scene.disk, scene.log)
    scene.disk.flip_bit(FIRST, 1)
    with pytest.raises(NotCached):
        scene.everything()
    assert scene.looked_up() == [aborted]
    assert scene.everything() == [aborted]
    assert scene.names() == [f"{0:020d}.txnindex"]
    scene.disk.remove(FIRST)
    assert scene.looked_up() == [aborted], "lost"


def test_a_lookup_is_stale_when_segments_go_meanwhile() -> None:
    scene = Scene()
    scene.abort()
    scene.log.roll(NOW_MS)
    scene.abort()
    scene.log.roll(NOW_MS)
    flush_blocking(scene.disk, scene.log)
    scene.disk.flip_bit(FIRST, 1)
    lookup = scene.log.aborted_lookup(0, 4)
    lookup.run()
    scene.log.advance_log_start(2)
    assert not scene.log.end_aborted_lookup(lookup)
    assert not [name for name in scene.names() if name.endswith(".tmp")]


def test_open_transactions_outlive_idleness_and_restarts() -> None:
    scene = Scene(producer_id_expiration_ms=1)
    scene.data()
    for now_ms in (NOW_MS, NOW_MS + 10):
        scene.log.producers.expire(now_ms, 1)
    scene.log.close(clean=True)
    checkpoints.write_clean_shutdown_marker(scene.disk, "/data")
    scene.log = scene.open(clean=True)
    assert scene.log.last_stable_offset(1) == 0
    last = scene.marker(ABORT)
    assert scene.everything() == [entry(0, last)]
