"""The rules of one log, example by example. Random histories are in tests/property/test_log_model.py."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, ForeignDirectory, LogOffline, StorageError
from penstock.ports.disk import Buffer, Disk
from penstock.records.batch import iterate_headers, read_header, with_append_time
from penstock.records.builder import Record, build_batch
from penstock.records.compression import ZSTD, recompress
from penstock.runtime.disk import OsDisk
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import flush_blocking
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

DIRECTORY = "/data/events-0"
NOW_MS = 1_700_000_000_000
BATCH_BYTES = 200


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


def open_log(
    disk: Disk,
    config: LogConfig | None = None,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    directory: str = DIRECTORY,
    topic_id: bytes | None = None,
) -> Log:
    return Log.open(
        disk,
        directory,
        config or LogConfig(),
        LastRun(recovery_point=recovery_point, was_clean=clean),
        now_ms=NOW_MS,
        topic_id=topic_id,
    )


def batch(timestamps: list[int], size: int = BATCH_BYTES) -> bytes:
    records = [Record(None, b"", (), timestamp) for timestamp in timestamps]
    room = size - len(build_batch(records))
    while True:
        data = build_batch([*records[:-1], records[-1]._replace(value=bytes(room))])
        if len(data) == size:
            return data
        room -= len(data) - size


def append(log: Log, *timestamps: int, size: int = BATCH_BYTES, epoch: int = 0) -> int:
    data = batch(list(timestamps) or [NOW_MS], size)
    return log.append(read_header(data), data, epoch, NOW_MS)


def flush(log: Log, disk: Disk) -> None:
    ticket = log.begin_flush()
    assert ticket is not None
    for file in ticket.files:
        file.sync()
    for directory in ticket.directories:
        disk.sync_directory(directory)
    log.end_flush(ticket, None)


def no_codec(codec: int, payload: Buffer) -> Buffer:
    raise AssertionError("nothing here is compressed")


# -- append and roll -----------------------------------------------------------------------------------------


def test_offsets_and_epoch_are_written_into_the_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    assert append(log, 1, 2, 3, epoch=4) == 0
    assert append(log, 4, epoch=6) == 3
    piece = log.reader.read(0, 10_000)
    assert piece is not None
    headers = [header for _, header in iterate_headers(piece.read(), "log")]
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers] == [(0, 2, 4), (3, 3, 6)]
    assert log.epochs.entries() == [(4, 0), (6, 3)]
    assert log.end_position() == (4, 0, 2 * BATCH_BYTES)


def test_an_empty_log_leaves_nothing_on_disk(disk: SimDisk) -> None:
    log = open_log(disk, topic_id=b"\7" * 16)
    assert log.begin_flush() is None
    log.checkpoint()
    log.close(clean=True)
    assert not disk.exists(DIRECTORY)
    assert open_log(disk, clean=True, topic_id=b"\7" * 16).log_end_offset == 0


def test_the_first_append_makes_the_directory_and_its_flush_keeps_it(disk: SimDisk) -> None:
    log = open_log(disk, topic_id=b"\7" * 16)
    append(log)
    assert disk.list_directory(DIRECTORY) == [f"{0:020d}.log", "offsets.contiguous", "partition.metadata"]
    flush(log, disk)
    disk.crash()
    assert open_log(disk, topic_id=b"\7" * 16).log_end_offset == 1


def test_another_topics_directory_is_refused(disk: SimDisk) -> None:
    log = open_log(disk, topic_id=b"\7" * 16)
    append(log)
    log.close(clean=True)
    with pytest.raises(StorageError, match="topic id"):
        open_log(disk, clean=True, topic_id=b"\1" * 16)


def test_a_log_that_was_never_flushed_and_lost_its_topic_id_is_foreign(disk: SimDisk) -> None:
    """It may be of a topic of this name that is gone."""
    append(open_log(disk, topic_id=b"\7" * 16))
    disk.remove(f"{DIRECTORY}/partition.metadata")
    with pytest.raises(ForeignDirectory, match="has no topic id"):
        open_log(disk, topic_id=b"\7" * 16)


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_id_that_was_stable_and_is_gone_is_damage(disk: SimDisk, clean: bool) -> None:
    log = open_log(disk, topic_id=b"\7" * 16)
    append(log)
    log.close(clean=True)
    disk.remove(f"{DIRECTORY}/partition.metadata")
    with pytest.raises(StorageError, match=r"missing or damaged\. Restore it") as caught:
        open_log(disk, topic_id=b"\7" * 16, recovery_point=1, clean=clean)
    assert not isinstance(caught.value, ForeignDirectory)


@pytest.mark.parametrize("keeps_id", [True, False])
def test_a_topic_id_read_after_a_kill_is_stable_with_the_next_flush(disk: SimDisk, keeps_id: bool) -> None:
    log = open_log(disk, topic_id=b"\7" * 16)
    append(log)
    if not keeps_id:
        log.truncate_to(0)
        disk.remove(f"{DIRECTORY}/partition.metadata")
    log = open_log(disk, topic_id=b"\7" * 16)  # the process was killed: the system has all that it wrote
    append(log)
    flush(log, disk)
    end = log.log_end_offset
    disk.crash()
    assert open_log(disk, topic_id=b"\7" * 16).log_end_offset == end


def test_a_log_that_begins_after_deleted_records_says_whose_it_is(disk: SimDisk) -> None:
    def opened() -> Log:
        return Log.open(
            disk,
            DIRECTORY,
            LogConfig(),
            LastRun(log_start_offset=5),
            now_ms=NOW_MS,
            topic_id=b"\7" * 16,
        )

    log = opened()
    append(log)
    flush(log, disk)
    disk.crash()
    assert opened().log_end_offset == 6


def test_roll_by_size(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    for _ in range(5):
        append(log)
    assert log.segment_bases == [0, 2, 4]
    append(log, size=3 * BATCH_BYTES)
    assert log.segment_bases == [0, 2, 4, 5], "one larger than a segment gets its own"
    append(log)
    assert log.segment_bases == [0, 2, 4, 5, 6]


def test_roll_by_time_counts_from_the_first_batch(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_ms=1000))
    append(log, NOW_MS)
    append(log, NOW_MS + 1000)
    assert log.segment_bases == [0]
    append(log, NOW_MS + 1001)
    assert log.segment_bases == [0, 2]
    log.close(clean=True)
    log = open_log(disk, LogConfig(segment_ms=1000), clean=True)
    append(log, NOW_MS + 2001)
    assert log.segment_bases == [0, 2], "also after a restart"
    append(log, NOW_MS + 2002)
    assert log.segment_bases == [0, 2, 4]


def test_a_jitter_rolls_earlier_but_always_at_the_same_time(disk: SimDisk) -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
    rolled = []
    for _ in range(2):
        log = open_log(SimDisk(Random(0)), config)
        append(log, NOW_MS)
        step = 0
        while log.segment_bases == [0]:
            step += 10
            append(log, NOW_MS + step)
        rolled.append(step)
    assert rolled[0] == rolled[1]
    assert 500 <= rolled[0] <= 1010


def test_roll_when_an_index_is_full(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_index_bytes=32, index_interval_bytes=0))
    for number in range(8):
        append(log, NOW_MS + number)
    assert len(log.segment_bases) > 1


def test_settings_change_while_the_log_is_open(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    append(log)
    log.config = replace(log.config, segment_bytes=3 * BATCH_BYTES)
    append(log)
    assert log.segment_bases == [0]
    append(log)
    assert log.segment_bases == [0, 3]


def test_index_entries_are_kafkas(disk: SimDisk) -> None:
    """After more than the interval: (last offset, position) of the batch, (largest timestamp so far, its offset)."""
    log = open_log(disk, LogConfig(index_interval_bytes=2 * BATCH_BYTES))
    for timestamp in (50, 10, 20, 60, 30, 40, 35, 80):
        append(log, timestamp, timestamp - 5)
    log.close(clean=True)
    index = disk.open(f"{DIRECTORY}/00000000000000000000.index")
    entries = index.read(0, index.size())
    assert [int.from_bytes(entries[at : at + 4], "big") for at in range(0, len(entries), 4)] == [
        *(7, 3 * BATCH_BYTES),
        *(13, 6 * BATCH_BYTES),
    ]
    time_index = disk.open(f"{DIRECTORY}/00000000000000000000.timeindex")
    entries = time_index.read(0, time_index.size())
    assert [
        (int.from_bytes(entries[at : at + 8], "big"), int.from_bytes(entries[at + 8 : at + 12], "big"))
        for at in range(0, len(entries), 12)
    ] == [(60, 7), (80, 15)]


def test_replicated_batches_keep_offsets_and_epochs(disk: SimDisk) -> None:
    leader, follower = open_log(disk), open_log(disk, directory="/data/events-1")
    for number in range(5):
        append(leader, NOW_MS, NOW_MS, epoch=number // 2)
    piece = leader.reader.read(0, 100_000)
    assert piece is not None
    follower.append_replicated(piece.read(), NOW_MS)
    copy = follower.reader.read(0, 100_000)
    assert copy is not None
    assert copy.read() == piece.read()
    assert follower.epochs.entries() == leader.epochs.entries()
    with pytest.raises(StorageError, match="offset 0 follows 10"):
        follower.append_replicated(piece.read(), NOW_MS)


COMPACTED = LogConfig(segment_bytes=2 * BATCH_BYTES, compact=True, delete=False)


def followed_with_gaps(disk: SimDisk) -> Log:
    """A copy of a compacted log that has offsets 0, 1, 5, 6, 9, 10: two batches a segment, gaps at their seams."""
    source, copy = open_log(disk, directory="/data/source-0"), open_log(disk, COMPACTED)
    for _ in range(11):
        append(source)
    for offset in (0, 1, 5, 6, 9, 10):
        piece = source.reader.read(offset, 1)
        assert piece is not None
        copy.append_replicated(piece.read(), NOW_MS)
    return copy


def test_what_was_fetched_with_gaps_and_flushed_is_there_after_a_crash(disk: SimDisk) -> None:
    flush(followed_with_gaps(disk), disk)
    disk.crash()
    log = open_log(disk, COMPACTED)
    assert (log.log_start_offset, log.log_end_offset) == (0, 11)
    assert log.segment_bases == [0, 2, 7]


@pytest.mark.parametrize(
    ("offset", "end", "bases"), [(3, 2, [0, 2]), (2, 2, [0, 2]), (8, 7, [0, 2, 7]), (7, 7, [0, 2, 7])]
)
def test_a_cut_where_compaction_left_nothing_ends_the_log_with_its_last_batch(
    disk: SimDisk, offset: int, end: int, bases: list[int]
) -> None:
    log = followed_with_gaps(disk)
    assert log.truncate_to(offset)
    assert log.log_end_offset == end
    assert log.segment_bases == bases
    assert not log.truncate_to(offset)
    assert append(log) == end
    flush(log, disk)
    disk.crash()
    assert open_log(disk, COMPACTED).log_end_offset == end + 1


def test_a_cut_into_a_gap_too_wide_for_one_segment(disk: SimDisk) -> None:
    far = 3 * 2**30
    log = open_log(disk, COMPACTED)
    append(log)
    log.append_replicated(far.to_bytes(8, "big") + batch([NOW_MS])[8:], NOW_MS)
    assert log.segment_bases == [0, far]
    assert log.truncate_to(7)
    assert (log.log_end_offset, log.segment_bases) == (1, [0, 1])
    assert append(log) == 1
    piece = log.reader.read(1, 10_000)
    assert piece is not None
    assert piece.next_offset == 2


# -- read ----------------------------------------------------------------------------------------------------


def test_replicated_batches_of_impossible_epochs_are_refused_as_a_whole(disk: SimDisk) -> None:
    source, log = open_log(disk), open_log(disk, directory="/data/copy-0")
    for epoch in (1, 1, 4):
        append(source, epoch=epoch)
    piece = source.reader.read(0, 10_000)
    assert piece is not None
    data = piece.read()
    with pytest.raises(CorruptBatch, match="leader epoch 4, expected 1 to 3 at offset 2"):
        log.append_replicated(data, NOW_MS, max_epoch=3)
    back = bytearray(data)
    back[BATCH_BYTES + 15] = 0
    with pytest.raises(CorruptBatch, match="leader epoch 0, expected 1 to 4 at offset 1"):
        log.append_replicated(back, NOW_MS, max_epoch=4)
    assert log.log_end_offset == 0
    log.append_replicated(data, NOW_MS, max_epoch=4)
    assert log.epochs.entries() == [(1, 0), (4, 2)]


def test_a_batch_of_another_epoch_than_is_known_is_not_served_where_epochs_count(disk: SimDisk) -> None:
    log = open_log(disk)
    for epoch in (1, 1, 4):
        append(log, epoch=epoch)
    piece = log.reader.read(0, 10_000)
    assert piece is not None
    assert log.reader.verify_slice(piece, log.epochs.copy()) is piece
    disk.flip_bit(piece.file.path, BATCH_BYTES + 15)
    assert log.reader.verify_slice(piece).next_offset == 3
    assert log.reader.verify_slice(piece, log.epochs.copy()).next_offset == 1
    second = log.reader.read(1, 10_000)
    assert second is not None
    with pytest.raises(CorruptBatch, match="leader epoch 0, expected 1"):
        log.reader.verify_slice(second, log.epochs.copy())
    log.advance_log_start(2)
    log.epochs.truncate_from_start(2)
    last = log.reader.read(2, 10_000)
    assert last is not None
    assert log.reader.verify_slice(last, log.epochs.copy()) is last


@pytest.mark.parametrize("damaged", [0, 1])
def test_what_recovery_scans_is_checked_again_where_epochs_go_back(disk: SimDisk, damaged: int) -> None:
    log = open_log(disk)
    for _ in range(3):
        append(log, epoch=2)
    flush(log, disk)
    log.close(clean=False)
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", damaged * BATCH_BYTES + 12, 3)
    log = open_log(disk)
    assert log.log_end_offset == 3  # nothing is lost: no checksum says that it is bad
    assert any("leader epoch 2 at offset" in message for message in log.recovery.messages)
    piece = log.reader.read(damaged + 1, 10_000)
    assert piece is not None
    assert not piece.is_trusted()
    with pytest.raises(CorruptBatch):
        log.reader.verify_slice(piece, log.epochs.copy())


def test_the_first_batch_comes_whole_even_if_too_large(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 1, 2, 3)
    append(log, 4)
    piece = log.reader.read(1, 10)
    assert piece is not None
    assert (piece.position, piece.size, piece.next_offset) == (0, BATCH_BYTES, 3)
    assert log.reader.read(4, 10) is None
    with pytest.raises(ApiError) as caught:
        log.reader.read(5, 10)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_nothing_is_read_beyond_the_bound(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    append(log)
    bound = log.end_position()
    append(log)
    append(log)
    piece = log.reader.read(0, 10_000, bound)
    assert piece is not None
    assert (piece.size, piece.next_offset) == (BATCH_BYTES, 1)
    assert log.reader.read(1, 10_000, bound) is None
    below = log.reader.read_below(0, 10_000, 1)
    assert below is not None
    assert below.size == BATCH_BYTES


def test_a_slice_in_flight_survives_the_deletion_of_its_segment(tmp_path: Path) -> None:
    log = open_log(OsDisk(), LogConfig(segment_bytes=BATCH_BYTES), directory=str(tmp_path / "events-0"))
    for _ in range(4):
        append(log)
    piece = log.reader.read(0, 10_000)
    assert piece is not None
    sound = piece.read()
    log.advance_log_start(3)
    log.remove_deleted()
    assert sorted(path.suffix for path in (tmp_path / "events-0").iterdir()) == [".contiguous", ".log"]
    assert piece.read() == sound
    log.close(clean=False)


def test_few_sealed_files_stay_open(tmp_path: Path) -> None:
    log = open_log(OsDisk(), LogConfig(segment_bytes=BATCH_BYTES), directory=str(tmp_path / "events-0"))
    for _ in range(20):
        append(log)
    flush(log, OsDisk())
    for offset in range(20):
        assert log.reader.read(offset, 1) is not None
    held = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(path.resolve())]
    assert len(held) <= 3
    log.close(clean=True)
    assert not [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(path.resolve())]


def test_lookup_by_timestamp_finds_the_record(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=3 * BATCH_BYTES, index_interval_bytes=0))
    assert log.reader.offset_for_timestamp(0) is None
    assert log.reader.max_timestamp() is None
    for first in range(100, 200, 20):
        append(log, first, first + 10, first + 5)
    assert log.reader.offset_for_timestamp(0) == (100, 0)
    assert log.reader.offset_for_timestamp(106) == (110, 1)
    assert log.reader.offset_for_timestamp(111) == (120, 3)
    assert log.reader.offset_for_timestamp(190) == (190, 13)
    assert log.reader.offset_for_timestamp(191) is None
    assert log.reader.max_timestamp() == (190, 13)
    log.advance_log_start(5)
    assert log.reader.offset_for_timestamp(0) == (125, 5)


def test_lookup_under_log_append_time_and_compression(disk: SimDisk) -> None:
    log = open_log(disk)
    plain = batch([10, 20, 30])
    stamped = with_append_time(plain, 500)
    log.append(read_header(stamped), bytes(stamped), 0, NOW_MS)
    assert log.reader.offset_for_timestamp(400) == (500, 0)
    plain = batch([600, 700])
    packed = recompress(read_header(plain), plain, ZSTD)
    log.append(read_header(packed), packed, 0, NOW_MS)
    assert log.reader.offset_for_timestamp(650) == (700, 4)
    assert log.reader.max_timestamp() == (700, 4)


# -- flush, checkpoint, close --------------------------------------------------------------------------------


def test_a_flush_covers_what_was_there_when_it_began(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    for _ in range(3):
        append(log)
    assert (log.unflushed_messages, log.first_unflushed_ms, log.stable_offset) == (3, NOW_MS, 0)
    ticket = log.begin_flush()
    assert ticket is not None
    assert [file.path[-8:] for file in ticket.files] == ["0000.log", "0002.log"], "sealed first, active last"
    assert DIRECTORY in ticket.directories
    assert log.begin_flush() is None, "one at a time"
    append(log)
    assert log.unflushed_messages == 1
    log.end_flush(ticket, None)
    assert log.stable_offset == log.recovery_point == ticket.end.offset == 3
    ticket = log.begin_flush()
    assert ticket is not None
    assert [file.path[-8:] for file in ticket.files] == ["0002.log"]
    assert ticket.directories == []
    log.end_flush(ticket, None)
    assert log.begin_flush() is None


def test_a_flush_from_before_a_truncation_moves_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(4):
        append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(2)
    append(log)
    log.end_flush(ticket, None)
    assert (log.log_end_offset, log.stable_offset) == (3, 0)


def test_a_clean_open_reads_no_batches(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=40 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
    log = open_log(disk, config)
    for number in range(100):
        append(log, NOW_MS + number, epoch=number // 60)
    log.close(clean=True)
    log = open_log(disk, config, clean=True, recovery_point=100)
    assert (log.log_end_offset, log.stable_offset, log.size_bytes) == (100, 100, 100 * BATCH_BYTES)
    assert (log.recovery.scanned_bytes, log.recovery.messages) == (0, [])
    assert log.epochs.entries() == [(0, 0), (1, 60)]
    piece = log.reader.read(0, 1000)
    assert piece is not None
    assert not piece.is_trusted()
    log.reader.mark_trusted(log.reader.verify_slice(piece))
    assert piece.is_trusted()


def test_a_crash_scans_only_from_the_recovery_point(disk: SimDisk) -> None:
    config = LogConfig(index_interval_bytes=BATCH_BYTES)
    log = open_log(disk, config)
    for _ in range(50):
        append(log)
    flush(log, disk)
    point = log.checkpoint()
    assert point == 50
    for _ in range(5):
        append(log)
    disk.kill()
    log = open_log(disk, config, recovery_point=point)
    assert log.recovery.scanned_bytes == 5 * BATCH_BYTES
    assert (log.log_end_offset, log.stable_offset) == (55, 50)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "torn", "zeros"])
def test_damaged_indexes_are_rebuilt(disk: SimDisk, damage: str, clean: bool) -> None:
    config = LogConfig(segment_bytes=400 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
    log = open_log(disk, config)
    for number in range(900):
        append(log, NOW_MS + number)
    log.close(clean=True)
    for base in log.segment_bases:
        for suffix in ("index", "timeindex"):
            path = f"{DIRECTORY}/{base:020d}.{suffix}"
            if damage == "missing":
                disk.remove(path)
            elif damage == "torn":
                disk.open(path).truncate(disk.open(path).size() - 5)
            else:
                file = disk.open(path)
                file.write(file.size() - 24, (bytes(24),))
    log = open_log(disk, config, clean=clean, recovery_point=900)
    assert log.log_end_offset == 900
    for offset in (0, 123, 456, 899):
        piece = log.reader.read(offset, 1)
        assert piece is not None
        assert read_header(piece.read()).base_offset == offset
        assert log.reader.offset_for_timestamp(NOW_MS + offset) == (NOW_MS + offset, offset)
    if damage == "missing" or not clean:
        assert log.recovery.rebuilt_indexes >= 2, "the last, short one needs none"
        assert "rebuilt" in log.recovery.messages[0]


def test_a_segment_of_one_large_batch_needs_no_index_and_no_remark(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 1, size=300_000)
    log.close(clean=True)
    reopened = open_log(disk, clean=True, recovery_point=1)
    assert reopened.recovery.messages == []
    assert reopened.log_end_offset == 1


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_five_batches_of_a_producer_are_remembered_across_segments(disk: SimDisk, clean: bool) -> None:
    """With anything between them in the log, and any number of segments."""
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    sent = [
        build_batch([Record(None, b"v", (), NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=number)
        for number in range(7)
    ]
    offsets = []
    for data in sent:
        offsets.append(log.append(read_header(data), data, 0, NOW_MS))
        append(log)
        append(log)
    log.truncate_to(log.log_end_offset - 1)  # replays them too
    flush(log, disk)
    recovery_point = log.checkpoint()
    log.close(clean=clean)
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES), clean=clean, recovery_point=recovery_point)
    assert [log.producers.check(read_header(data)) for data in sent[2:]] == offsets[2:]
    with pytest.raises(ApiError) as caught:
        log.producers.check(read_header(sent[0]))
    assert caught.value.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_leftovers_are_dropped_at_open(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    for name in ("00000000000000000009.log.deleted", "00000000000000000009.log.cleaned", "x.swap", "y.tmp"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    disk.open(f"{DIRECTORY}/00000000000000000077.index", create=True)
    open_log(disk, clean=True)
    assert disk.list_directory(DIRECTORY) == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "offsets.contiguous",
    ]


def test_a_closed_log_refuses(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    log.close(clean=True)
    with pytest.raises(StorageError, match="closed"):
        append(log)
    assert log.checkpoint() == 1


# -- both ends -----------------------------------------------------------------------------------------------


def test_truncation_drops_segments_epochs_and_index_entries(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=0)
    log = open_log(disk, config)
    for number in range(10):
        append(log, NOW_MS + number, epoch=number)
    assert log.truncate_to(6)
    assert not log.truncate_to(6)
    assert (log.log_end_offset, log.segment_bases, log.size_bytes) == (6, [0, 4], 6 * BATCH_BYTES)
    assert log.epochs.latest == 5
    assert log.reader.max_timestamp() == (NOW_MS + 5, 5)
    assert append(log, NOW_MS + 50, epoch=9) == 6
    assert log.reader.offset_for_timestamp(NOW_MS + 6) == (NOW_MS + 50, 6)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.segment_bases) == (100, 100, [100])
    assert append(log, epoch=9) == 100
    log.close(clean=True)
    log = open_log(disk, config, clean=True)
    assert (log.log_start_offset, log.log_end_offset) == (100, 101)


@pytest.mark.parametrize("failing", [".log", ".index"])
def test_segments_that_could_not_be_set_aside_are_still_there(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A full disk may have no room for a name either. Files that are left and forgotten are a hole after a crash."""
    config = LogConfig(segment_bytes=2 * BATCH_BYTES, index_interval_bytes=0)
    log = open_log(disk, config)
    for _ in range(12):
        append(log)
    flush(log, disk)
    rename = disk.rename

    def full(source: str, target: str) -> None:
        if source.endswith(f"4{failing}"):
            raise OSError(errno.ENOSPC, "no space left on device", source)
        rename(source, target)

    monkeypatch.setattr(disk, "rename", full)
    with pytest.raises(StorageError, match="cannot delete segments"):
        log.advance_log_start(8)
    is_there = failing == ".log"
    assert log.segment_bases == ([4, 6, 8, 10] if is_there else [6, 8, 10])
    assert log.log_start_offset == 8
    with pytest.raises(StorageError) if is_there else nullcontext():
        log.advance_log_start(9)
    monkeypatch.setattr(disk, "rename", rename)
    assert log.advance_log_start(10)
    assert log.segment_bases == [10]
    append(log)
    flush(log, disk)
    disk.crash()
    log = open_log(disk, config, recovery_point=0)
    assert (log.segment_bases[-1], log.log_end_offset) == (12, 13)


def test_a_cut_to_the_start_of_the_log_keeps_its_producers(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    sent = [
        build_batch([Record(None, b"v", (), NOW_MS)], producer_id=7, producer_epoch=1, base_sequence=number)
        for number in range(3)
    ]
    offsets = [log.append(read_header(data), data, 0, NOW_MS) for data in sent]
    flush(log, disk)
    log.checkpoint()
    start = log.log_end_offset
    assert log.advance_log_start(start)
    for _ in range(3):
        append(log)
    assert log.truncate_to(start)
    assert (log.log_start_offset, log.log_end_offset) == (start, start)
    assert [log.producers.check(read_header(data)) for data in sent] == offsets
    assert append(log) == start


def test_damage_met_after_a_cut_leaves_no_log_that_claims_to_know_its_producers(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=0))
    for number in range(4):
        data = build_batch([Record(None, b"v", (), NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=number)
        log.append(read_header(data), data, 0, NOW_MS)
    disk.flip_bit(log.segments[0].path, 16)  # the magic byte of the first batch, which the index leads past
    with pytest.raises(CorruptBatch):
        log.truncate_to(2)
    assert log.log_end_offset == 2
    assert log.offline is not None
    assert isinstance(log.offline.__cause__, CorruptBatch)
    with pytest.raises(LogOffline):
        append(log)


def test_delete_records_moves_the_start(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES))
    for number in range(7):
        append(log, epoch=number)
    assert log.advance_log_start(5)
    assert (log.log_start_offset, log.segment_bases) == (5, [4, 6])
    assert log.epochs.entries()[0] == (5, 5)
    assert not log.advance_log_start(3)
    with pytest.raises(ApiError):
        log.reader.read(4, 100)
    with pytest.raises(ApiError):
        log.advance_log_start(8)
    assert log.advance_log_start(7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    assert append(log) == 7


def test_retention_by_size(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=BATCH_BYTES, retention_bytes=2 * BATCH_BYTES))
    for _ in range(5):
        append(log)
    assert log.apply_retention(NOW_MS, high_watermark=2) == [0, 1], "not beyond the high watermark"
    assert log.apply_retention(NOW_MS, high_watermark=5) == [2]
    assert (log.log_start_offset, log.size_bytes) == (3, 2 * BATCH_BYTES)


def test_retention_by_time_rolls_the_active_segment_first(disk: SimDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * BATCH_BYTES, retention_ms=1000))
    for number in range(4):
        append(log, NOW_MS + 100 * number)
    assert log.apply_retention(NOW_MS + 1100, 4) == []
    assert log.apply_retention(NOW_MS + 1101, 4) == [0]
    assert log.apply_retention(NOW_MS + 9999, 4) == [2]
    assert (log.log_start_offset, log.log_end_offset, log.segment_bases) == (4, 4, [4])
    log.close(clean=True)
    disk.crash()
    log = open_log(disk, clean=True, recovery_point=4)
    assert append(log) == 4, "offsets go on"


def test_retention_leaves_a_compacted_topic_alone(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=BATCH_BYTES, retention_bytes=0, delete=False, compact=True)
    log = open_log(disk, config)
    for _ in range(3):
        append(log)
    assert log.apply_retention(NOW_MS, 3) == []


@pytest.mark.parametrize("seed", range(6))
def test_what_a_failed_flush_left_in_memory_is_written_again_at_the_next_start(seed: int) -> None:
    """The pages of a sync that failed count as clean: the next one would not write them and succeed."""
    disk = SimDisk(Random(seed))
    disk.make_directory("/data")
    disk.sync_directory("/")
    config = LogConfig(segment_bytes=3 * BATCH_BYTES, flush_messages=1)
    log = open_log(disk, config)
    for _ in range(5):
        append(log, 1)
    disk.fail_sync = lambda path: path.endswith(".log")
    with pytest.raises(StorageError):
        flush_blocking(disk, log)
    disk.fail_sync = None
    disk.kill()
    again = open_log(disk, config)
    flush_blocking(disk, again)
    assert again.stable_offset == 5
    disk.crash()
    assert open_log(disk, config).log_end_offset == 5


@pytest.mark.parametrize("is_leader", [True, False])
def test_an_index_that_cannot_be_opened_costs_an_entry_and_not_the_append(disk: SimDisk, is_leader: bool) -> None:
    """After a restart the entries are in files, and a process may be out of descriptors."""
    config = LogConfig(index_interval_bytes=BATCH_BYTES)
    log = open_log(disk, config)
    for number in range(7):
        append(log, NOW_MS + number)
    log.close(clean=True)
    log = open_log(disk, config, clean=True, recovery_point=7)
    disk.fail_call = lambda call, path: errno.EMFILE if call == "open" and path.endswith("index") else None
    for number in range(7, 12):
        if is_leader:
            assert append(log, NOW_MS + number) == number
        else:
            data = build_batch([Record(None, b"v", (), NOW_MS + number)], base_offset=number)
            log.append_replicated(data, NOW_MS)
    assert log.log_end_offset == 12
    disk.fail_call = None
    append(log, NOW_MS + 12)
    assert [log.reader.read(offset, 1) is not None for offset in range(13)] == [True] * 13
    assert log.segments[0].index.entries()[-1][0] >= 11


def test_after_a_start_ages_are_learned_in_a_worker_and_only_as_far_as_needed(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(segment_bytes=2 * BATCH_BYTES, retention_ms=1000)
    log = open_log(disk, config)
    for number in range(12):
        append(log, NOW_MS + 100 * number)
    log.close(clean=True)
    log = open_log(disk, config, clean=True, recovery_point=12)
    monkeypatch.setattr(
        "penstock.storage.segments.segment.Segment.load_max_timestamp", None
    )  # on the loop it would read
    now_ms = NOW_MS + 1000 + 350  # the first two segments are too old
    assert log.begin_retention(now_ms, 12) is None
    times = log.reader.times_to_learn(now_ms - 1000)
    assert times is not None
    times.run()
    assert len(times.learning.largest) == 3, "the first that is young enough is the last one looked at"
    assert log.reader.end_time_lookup(times)
    deletion = log.begin_retention(now_ms, 12)
    assert deletion is not None
    assert [one.segment.base_offset for one in deletion.doomed] == [0, 2]
    assert log.reader.times_to_learn(now_ms - 1000) is None


def test_ages_learned_of_segments_that_went_meanwhile_are_void(disk: SimDisk) -> None:
    config = LogConfig(segment_bytes=2 * BATCH_BYTES, retention_ms=1000)
    log = open_log(disk, config)
    for number in range(6):
        append(log, NOW_MS + number)
    log.close(clean=True)
    log = open_log(disk, config, clean=True, recovery_point=6)
    times = log.reader.times_to_learn(NOW_MS + 1000)
    assert times is not None
    times.run()
    log.advance_log_start(5)
    assert not log.reader.end_time_lookup(times)
