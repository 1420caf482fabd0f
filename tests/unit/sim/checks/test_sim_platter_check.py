"""The judge of durability: what is committed lies on every platter, whatever brokers believe."""

from __future__ import annotations

from random import Random

import pytest

from penstock.records.batch import with_prefix
from penstock.records.builder import Record, build_batch
from penstock.sim.broker import DATA
from penstock.sim.checks.platter import METADATA, PlatterChecker
from penstock.sim.judges.history import Place, Violation
from penstock.sim.machine.disk import SimDisk, SimFile

PLACE = Place("data", 0)
BATCH = build_batch([Record(None, b"value", (), 1_700_000_000_000)])


def made(place: Place = PLACE) -> tuple[SimDisk, SimFile]:
    disk = SimDisk(Random(1))
    disk.make_directory(f"{DATA}/{place}")
    file = disk.open(f"{DATA}/{place}/00000000000000000000.log", create=True)
    for directory in ("", DATA, f"{DATA}/{place}"):
        disk.sync_directory(directory)
    return disk, file


def append(file: SimFile, offset: int) -> None:
    file.write(file.size(), [with_prefix(BATCH, offset, 0)])


def check(disk: SimDisk, high_watermark: int, *, may_have_gaps: bool = False, is_excused: bool = False) -> None:
    checker = PlatterChecker({1: disk})
    checker.committed(PLACE, high_watermark, [1], may_have_gaps=may_have_gaps, is_excused=lambda _: is_excused)


def test_what_was_synced_counts_and_what_was_written_does_not() -> None:
    disk, file = made()
    checker = PlatterChecker({1: disk})
    append(file, 0)
    file.sync()
    append(file, 1)
    checker.committed(PLACE, 1, [1], may_have_gaps=False, is_excused=lambda _: False)
    with pytest.raises(Violation, match="up to 1 only"):
        checker.committed(PLACE, 2, [1], may_have_gaps=False, is_excused=lambda _: False)
    file.sync()
    checker.committed(PLACE, 2, [1], may_have_gaps=False, is_excused=lambda _: False)
    file.truncate(len(BATCH))
    file.sync()
    with pytest.raises(Violation, match="up to 1 only"):
        checker.committed(PLACE, 2, [1], may_have_gaps=False, is_excused=lambda _: False)
    check(disk, 2, is_excused=True)


def test_a_file_whose_name_is_not_stable_does_not_count() -> None:
    disk, file = made()
    append(file, 0)
    file.sync()
    second = disk.open(f"{DATA}/{PLACE}/00000000000000000001.log", create=True)
    append(second, 1)
    second.sync()
    with pytest.raises(Violation, match="up to 1 only"):
        check(disk, 2)
    disk.sync_directory(f"{DATA}/{PLACE}")
    check(disk, 2)


def test_a_hole_between_segments_ends_the_log_unless_it_is_compacted() -> None:
    disk, file = made()
    append(file, 0)
    second = disk.open(f"{DATA}/{PLACE}/00000000000000000005.log", create=True)
    append(second, 5)
    for each in (file, second):
        each.sync()
    disk.sync_directory(f"{DATA}/{PLACE}")
    with pytest.raises(Violation, match="up to 1 only"):
        check(disk, 6)
    check(disk, 6, may_have_gaps=True)


def test_an_entry_of_the_metadata_log_is_on_most_platters_when_it_is_applied() -> None:
    made_of = {number: made(place=METADATA) for number in (1, 2, 3)}
    checker = PlatterChecker({number: disk for number, (disk, _) in made_of.items()})
    for _, file in made_of.values():
        append(file, 0)
    made_of[1][1].sync()
    with pytest.raises(Violation, match="entry 1 is applied"):
        checker.applied(1, [[1, 2, 3]])
    made_of[2][1].sync()
    PlatterChecker({number: disk for number, (disk, _) in made_of.items()}).applied(1, [[1, 2, 3]])


def test_voters_may_be_those_before_a_change_or_after_it() -> None:
    made_of = {number: made(place=METADATA) for number in (1, 2, 3)}
    disks = {number: disk for number, (disk, _) in made_of.items()}
    for number in (1, 2):
        append(made_of[number][1], 0)
        made_of[number][1].sync()
    PlatterChecker(disks).applied(1, [[1, 2, 3], [1, 3]])
    PlatterChecker(disks).applied(1, [[1, 3], [1]])
    with pytest.raises(Violation, match="voters are"):
        PlatterChecker(disks).applied(1, [[1, 3], [3]])


def test_a_snapshot_stands_for_the_entries_before_it() -> None:
    disk, _ = made(place=METADATA)
    with pytest.raises(Violation):
        PlatterChecker({1: disk}).applied(7, [[1]])
    disk.open(f"{DATA}/{METADATA}/00000000000000000007-0000000001.checkpoint", create=True)
    disk.sync_directory(f"{DATA}/{METADATA}")
    PlatterChecker({1: disk}).applied(7, [[1]])


def test_damage_ends_it() -> None:
    disk, file = made()
    append(file, 0)
    append(file, 1)
    file.sync()
    check(disk, 2)
    disk.flip_bit(file.path, len(BATCH) - 1)
    with pytest.raises(Violation, match="up to 0 only"):
        check(disk, 1)


# -- what recovery goes by --------------------------------------------------------------


def keep(disk: SimDisk, path: str, data: bytes, *, is_stable: bool = True) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, [data])
    if is_stable:
        file.sync()
    disk.sync_directory(path.rpartition("/")[0])


def test_a_recovery_point_beyond_what_is_stable() -> None:
    disk, file = made()
    for offset in range(3):
        append(file, offset)
    file.sync()
    append(file, 3)
    checker = PlatterChecker({1: disk})
    checker.raised(1, PLACE, 3, [])
    checker.raised(1, Place("gone", 0), 3, [])
    with pytest.raises(Violation, match=r"a recovery point is on the platter.* below 4"):
        checker.raised(1, PLACE, 4, [])


def test_leader_epochs_that_no_file_holds() -> None:
    disk, file = made()
    for offset in range(3):
        append(file, offset)
    file.sync()
    checker = PlatterChecker({1: disk})
    epochs = [(0, 0), (4, 2)]
    keep(disk, f"{DATA}/{PLACE}/leader-epoch-checkpoint", b"0\n1\n0 0\n")
    checker.raised(1, PLACE, 2, epochs)
    with pytest.raises(Violation, match=r"leader epochs are kept before .* epoch 4 began at 2"):
        checker.raised(1, PLACE, 3, epochs)
    keep(disk, f"{DATA}/{PLACE}/leader-epoch-checkpoint", b"0\n2\n0 0\n4 2\n", is_stable=False)
    with pytest.raises(Violation):
        checker.raised(1, PLACE, 3, epochs)
    keep(disk, f"{DATA}/{PLACE}/leader-epoch-checkpoint", b"0\n2\n0 0\n4 2\n")
    checker.raised(1, PLACE, 3, epochs)


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_cut_below_what_recovery_trusts(name: str) -> None:
    disk, _ = made()
    checker = PlatterChecker({1: disk})
    checker.cut(1, PLACE, 3)
    keep(disk, f"{DATA}/{name}", b"0\n2\nother 0 9\ndata 0 7\n")
    checker.cut(1, PLACE, 7)
    with pytest.raises(Violation, match="a cut first lowers the checkpoints of recovery"):
        checker.cut(1, PLACE, 6)


def test_a_vote_that_is_told_too_early() -> None:
    disk, _ = made(METADATA)
    checker = PlatterChecker({1: disk})
    state = f"{DATA}/{METADATA}/quorum-state"
    with pytest.raises(Violation, match="a vote is on the platter"):
        checker.voted(1, 3)
    keep(disk, state, b'{"leaderEpoch": 3}')
    checker.voted(1, 3)
    keep(disk, state, b'{"leaderEpoch": 4}', is_stable=False)
    with pytest.raises(Violation):
        checker.voted(1, 4)
