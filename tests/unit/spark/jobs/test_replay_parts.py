"""Replays without Spark: ranges, steps, pace, and how far one came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from archived_rows import DAY_MS, ORIGINS, new_archive, rows, staged

from penstock.spark.jobs.archives.compaction import compact
from penstock.spark.jobs.archives.manifest import Archive
from penstock.spark.jobs.clusters import Brokers
from penstock.spark.jobs.errors import WrongJob
from penstock.spark.jobs.pieces import rows_for
from penstock.spark.jobs.replay import Pace, ReplayJob, ReplayState, begin, is_unfinished, next_step
from penstock.spark.jobs.replay_sources import ArchiveSource, OffsetRange, chosen_range


@pytest.fixture
def source(tmp_path: Path) -> ArchiveSource:
    """Partition 0 has offsets 10 to 19, a record each second, the sixth of them late; partition 1 has 0 to 4."""
    archive = new_archive(tmp_path)
    late = [DAY_MS + 1000 * n for n in range(10)]
    late[5] = DAY_MS - 1
    archive.add(staged(archive, rows(range(10, 20), late)), ORIGINS)
    archive.add(staged(archive, rows(range(5), [DAY_MS + 1000 * n for n in range(5)], partition=1)), ORIGINS)
    return ArchiveSource(archive, None)


def test_an_archive_of_one_topic_need_not_be_told_which(source: ArchiveSource, tmp_path: Path) -> None:
    assert source.topic == "clicks"
    archive = Archive(tmp_path / "archive")
    archive.add(staged(archive, rows([0], [0], topic="views")), ORIGINS)
    with pytest.raises(WrongJob, match="has clicks, views: choose with --topic"):
        ArchiveSource(archive, None)
    with pytest.raises(WrongJob, match="has no topic orders, only clicks, views"):
        ArchiveSource(archive, "orders")
    with pytest.raises(WrongJob, match="is not an archive"):
        ArchiveSource(Archive(tmp_path / "nowhere"), None)


def test_times_are_places_in_the_log(source: ArchiveSource) -> None:
    assert source.edges() == ({0: 10, 1: 0}, {0: 20, 1: 5})
    assert source.positions_at(0) == {0: 10, 1: 0}
    assert source.positions_at(DAY_MS + 3000) == {0: 13, 1: 3}
    # The late record is behind 14 and before 16: it counts as what stands around it.
    assert source.positions_at(DAY_MS + 4500) == {0: 16, 1: 5}
    assert source.positions_at(2 * DAY_MS) == {0: 20, 1: 5}


def test_ranges_by_time(source: ArchiveSource) -> None:
    assert chosen_range(source, None, DAY_MS + 2000, DAY_MS + 4000) == ({0: 12, 1: 2}, {0: 14, 1: 4})


def test_the_pace_of_a_range_by_time_begins_at_its_beginning(source: ArchiveSource) -> None:
    """Lookups for the end of the range do not count as due records."""
    assert chosen_range(source, None, None, DAY_MS + 4000) == ({0: 10, 1: 0}, {0: 14, 1: 4})
    assert source.positions_at(DAY_MS + 1) == {0: 11, 1: 1}
    assert source.positions_at(DAY_MS + 1001) == {0: 12, 1: 2}


@pytest.mark.parametrize(
    ("asked", "starts", "ends"),
    [
        (None, {0: 10, 1: 0}, {0: 20, 1: 5}),
        ({0: OffsetRange()}, {0: 10}, {0: 20}),
        ({0: OffsetRange(12, 15), 1: OffsetRange(3)}, {0: 12, 1: 3}, {0: 15, 1: 5}),
    ],
)
def test_ranges_by_offset(
    source: ArchiveSource, asked: dict[int, OffsetRange] | None, starts: dict[int, int], ends: dict[int, int]
) -> None:
    assert chosen_range(source, asked, None, None) == (starts, ends)


@pytest.mark.parametrize("asked", [{0: OffsetRange(0, 15)}, {0: OffsetRange(10, 21)}, {7: OffsetRange()}])
def test_ranges_outside_are_refused(source: ArchiveSource, asked: dict[int, OffsetRange]) -> None:
    with pytest.raises(WrongJob, match=r"which has 10 to 20|the partitions are 0, 1"):
        chosen_range(source, asked, None, None)


def test_a_step_is_limited_and_leaves_out_what_does_not_move() -> None:
    assert next_step({0: 0, 1: 5, 2: 9}, {0: 100, 1: 6, 2: 9}, limit=20) == {0: 10, 1: 6}
    assert next_step({0: 4}, {0: 4}) == {}
    assert next_step({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, limit=1) == {0: 1, 1: 1, 2: 1}


def test_large_records_go_in_small_pieces(source: ArchiveSource) -> None:
    assert [rows_for(size) for size in (0.0, 100.0, 8192.0, 100_000.0, 1e6)] == [2000, 2000, 1024, 83, 16]
    assert 0 < source.record_bytes() < 10_000


def test_the_pace_is_that_of_the_records() -> None:
    now = 100.0
    pace = Pace(10.0, 5_000, clock=lambda: now)
    assert pace.now_ms() == 5_000
    now = 103.0
    assert pace.now_ms() == 35_000


def job(tmp_path: Path, **others: Any) -> ReplayJob:
    return ReplayJob(Brokers("localhost:1"), "copy", tmp_path / "archive", checkpoint=tmp_path / "state", **others)


def test_a_replay_that_was_left_goes_on_and_one_that_was_finished_stays_so(
    source: ArchiveSource, tmp_path: Path
) -> None:
    replay = job(tmp_path)
    place = replay.place("cluster", source, "to-1")
    place.make(is_unfinished)
    state, is_resumed = begin(replay, place, source)
    assert (state.positions, state.ends, state.left, is_resumed) == ({0: 10, 1: 0}, {0: 20, 1: 5}, 15, False)
    state.positions[0], state.sent = 17, 7
    state.save()
    again, is_resumed = begin(replay, place, source)
    assert (again.positions, again.sent, is_resumed) == ({0: 17, 1: 0}, 7, True)
    anew, is_resumed = begin(replay, place, source, restart=True)
    assert (anew.positions, anew.sent, is_resumed) == ({0: 10, 1: 0}, 0, False)
    anew.positions = dict(anew.ends)
    anew.save()
    assert begin(replay, place, source) == (ReplayState({0: 10, 1: 0}, {0: 20, 1: 5}, 0, anew.path), False), (
        "nothing was sent"
    )
    anew.sent = 15
    anew.save()
    done, is_resumed = begin(replay, place, source)
    assert (done.is_done, done.sent, is_resumed) == (True, 15, True)
    assert begin(replay, place, source, restart=True)[0].positions == {0: 10, 1: 0}


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text('{"positions": 1}')
    with pytest.raises(WrongJob, match="start again with --restart"):
        ReplayState.load(tmp_path / "replay.json")


def test_what_makes_a_replay_another_one(source: ArchiveSource, tmp_path: Path) -> None:
    def place(target_id: str = "to-1", servers: str = "localhost:1", **others: Any) -> Path:
        job = ReplayJob(Brokers(servers), "copy", others.pop("directory", tmp_path / "archive"), **others)
        return job.place("cluster", source, target_id).directory

    (tmp_path / "link").symlink_to(tmp_path / "archive")
    for same in (place(speed=1.0), place(servers="x:1,y:1"), place(topic="clicks"), place(directory=tmp_path / "link")):
        assert same == place()
    assert place(since_ms=1) != place()
    assert place("to-2") != place(), "into a topic that was created anew"
    assert place(offsets={0: OffsetRange(1, 2)}) != place(offsets={0: OffsetRange(1, 3)})


def test_a_replay_into_the_target_of_one_that_is_not_finished_is_refused(
    source: ArchiveSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = (
        ReplayJob(Brokers("localhost:1"), "copy", tmp_path / "archive", until_ms=until) for until in (None, DAY_MS + 1)
    )
    place, other = (job.place("cluster", source, "to-1") for job in (first, second))
    place.make(is_unfinished)
    state, _ = begin(first, place, source)
    with pytest.raises(WrongJob, match="another replay job: its until_ms is null, not 86400001"):
        other.make(is_unfinished)
    state.positions, state.sent = dict(state.ends), 15
    state.save()
    other.make(is_unfinished)
    (place.directory / "replay.json").write_text("{")
    assert is_unfinished(place.directory)


def test_a_merge_that_a_crash_left_is_finished_before_the_archive_is_read(
    source: ArchiveSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path / "archive")
    archive.add(staged(archive, rows(range(20, 30), [DAY_MS] * 10)), ORIGINS)
    with monkeypatch.context() as patched:
        patched.setattr(Archive, "_finish_swap", lambda self, found: found)
        assert compact(archive, 1 << 20) > 0
    assert archive.load().swap is not None
    again = ArchiveSource(archive, None)
    assert again.edges() == ({0: 10, 1: 0}, {0: 30, 1: 5})
    assert archive.load().swap is None
    assert again.positions_at(2 * DAY_MS) == {0: 30, 1: 5}
