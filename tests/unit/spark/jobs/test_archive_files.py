"""Archives without Spark: what is staged, what counts, and crashes at every point."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from archived_rows import CLICKS, DAY_MS, MIB, ORIGINS, globbed, new_archive, rows, staged

from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs.archive import starting_offsets
from penstock.spark.jobs.archives import manifest as manifest_module
from penstock.spark.jobs.archives import writing
from penstock.spark.jobs.archives.compaction import compact, merges
from penstock.spark.jobs.archives.manifest import (
    Archive,
    ArchivedFile,
    ChangedTopic,
    Manifest,
    Origin,
    OverlappingFiles,
)
from penstock.spark.jobs.archives.origins import planned_origin, present_origin
from penstock.spark.jobs.archives.reading import interleaved, read_in_order
from penstock.spark.jobs.archives.writing import FILE_SCHEMA
from penstock.spark.jobs.errors import JobError, JobFailed, WrongJob
from penstock.spark.source.offsets import SourceOffset, topic_id_text
from penstock.wire_client.requests.metadata import PartitionMetadata, TopicMetadata

CLICKS_0 = TopicPartition("clicks", 0)


class Crash(BaseException):
    """The process is gone: nothing may clean up after it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, target: object, name: str, call: int) -> None:
    """The call of that number does not happen, and nothing after it."""
    real = getattr(target, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Crash(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, counted)


def test_rows_are_filed_by_partition_and_day(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    first = rows(range(4), [0, DAY_MS - 1, DAY_MS, DAY_MS + 1])
    second = rows([7, 9], [2 * DAY_MS] * 2, partition=3)
    archive.add(staged(archive, first, second), ORIGINS)
    assert sorted(file.path for file in archive.load().files) == [
        "topic=clicks/date=1970-01-01/p00000-00000000000000000000-00000000000000000001.parquet",
        "topic=clicks/date=1970-01-02/p00000-00000000000000000002-00000000000000000003.parquet",
        "topic=clicks/date=1970-01-03/p00003-00000000000000000007-00000000000000000009.parquet",
    ]
    assert archive.load().ends == {CLICKS_0: 4, TopicPartition("clicks", 3): 10}
    assert globbed(archive) == [(0, 0), (0, 1), (0, 2), (0, 3), (3, 7), (3, 9)]
    (day,) = [file for file in archive.load().files if file.date == "1970-01-02"]
    assert (day.rows, day.min_ms, day.max_ms) == (2, DAY_MS, DAY_MS + 1)


@pytest.mark.parametrize(
    ("time_ms", "day"),
    [
        (-(2**63 // 1000), "0001-01-01"),
        (-62_135_596_800_001, "0001-01-01"),
        (-1, "1969-12-31"),
        (253_402_300_800_000, "9999-12-31"),
        (1_700_000_000_000_000, "9999-12-31"),
        (2**63 // 1000 - 1, "9999-12-31"),
    ],
)
def test_an_odd_timestamp_has_a_day_too(tmp_path: Path, time_ms: int, day: str) -> None:
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows([0, 1], [time_ms, 0])), ORIGINS)
    assert {file.date for file in archive.load().files} == {day, "1970-01-01"}
    assert {file.min_ms for file in archive.load().files} == {time_ms, 0}
    assert globbed(archive) == [(0, 0), (0, 1)]


def test_days_that_interleave_come_back_in_the_order_of_offsets(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    batch = rows(range(1000), [DAY_MS * (offset % 3) for offset in range(1000)])
    archive.add(staged(archive, batch), ORIGINS)
    files = archive.load().files
    assert len(files) == 3
    names = FILE_SCHEMA.names
    found = [row for part in read_in_order(archive.directory, files, 10, 990, names) for row in part.to_pylist()]
    wanted = [row for row in batch.select(names).to_pylist() if 10 <= row["offset"] < 990]
    assert found == wanted


def test_only_row_groups_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 2_000)
    archive = new_archive(tmp_path)
    archive.add(staged(archive, *(rows(range(n * 100, n * 100 + 100), [0] * 100) for n in range(10))), ORIGINS)
    (file,) = archive.load().files
    groups: list[int] = []
    read = pq.ParquetFile.iter_batches

    def noted(self: Any, size: int, row_groups: list[int], columns: list[str]) -> Any:
        groups.extend(row_groups)
        return read(self, size, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    found = [
        row for part in read_in_order(archive.directory, [file], 250, 410, FILE_SCHEMA.names) for row in part["offset"]
    ]
    assert [offset.as_py() for offset in found] == list(range(250, 410))
    assert groups == [2, 3, 4]


def test_files_that_follow_each_other_are_not_merged_in_memory() -> None:
    def file(first: int, last: int) -> ArchivedFile:
        return ArchivedFile("t", "1970-01-01", 0, first, last, 1, 1, 0, 0)

    a, b, c, d = file(0, 9), file(10, 30), file(20, 25), file(31, 40)
    assert interleaved([d, c, b, a]) == [[a], [b, c], [d]]


def test_a_file_that_is_large_enough_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 2_000)
    archive = new_archive(tmp_path)
    batches = [rows(range(n * 100, n * 100 + 100), [0] * 100) for n in range(20)]
    archive.add(staged(archive, *batches, max_file_bytes=10_000), ORIGINS)
    files = archive.load().files
    assert len(files) > 1
    assert all(file.size_bytes > 10_000 for file in files[:-1])
    assert globbed(archive) == [(0, offset) for offset in range(2000)]


def test_many_days_at_once_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_OPEN", 2)
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows(range(9), [DAY_MS * (n % 3) for n in range(9)])), ORIGINS)
    assert globbed(archive) == [(0, offset) for offset in range(9)]
    archive.recover()
    compact(archive, MIB)
    assert globbed(archive) == [(0, offset) for offset in range(9)]


def test_rows_out_of_order_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    with pytest.raises(JobFailed, match="clicks-0 are not in the order"):
        staged(archive, rows([0, 1, 5, 4], [0] * 4))
    assert not list(archive.staging.iterdir())


# -- exactly once -----------------------------------------------------------------------


def test_what_is_archived_is_not_staged_again(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows(range(100), [0] * 100)), ORIGINS)
    assert staged(archive, rows(range(100), [0] * 100)) == []
    archive.add(staged(archive, rows(range(50, 150), [0] * 100)), ORIGINS)
    assert globbed(archive) == [(0, offset) for offset in range(150)]


def test_files_of_records_that_are_there_are_refused(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    twice = staged(archive, rows(range(10), [0] * 10)), staged(archive, rows(range(10), [0] * 10))
    archive.add(twice[0], ORIGINS)
    with pytest.raises(OverlappingFiles, match="another archive running"):
        archive.add(twice[1], ORIGINS)


@pytest.mark.parametrize("at", ["before", "between", "after"])
def test_a_crash_while_files_are_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows(range(10), [0] * 10)), ORIGINS)
    batch = rows(range(10, 20), [0] * 5 + [DAY_MS] * 5)
    files = staged(archive, batch)
    with monkeypatch.context() as patched:
        if at == "after":
            crash_at(patched, Archive, "_save", 1)
        else:
            crash_at(patched, Archive, "_put_in_place", 1 if at == "before" else 2)
        with pytest.raises(Crash):
            archive.add(files, ORIGINS)
    seen = globbed(archive)
    assert len(seen) == len(set(seen)), "not even before recovery is a record there twice"
    archive.recover()
    assert globbed(archive) == [(0, offset) for offset in range(10)]
    assert not list(archive.staging.iterdir())
    archive.add(staged(archive, batch), ORIGINS)  # Spark runs the batch again
    assert globbed(archive) == [(0, offset) for offset in range(20)]


# -- merging ----------------------------------------------------------------------------


def grown(archive: Archive, runs: int) -> None:
    for run in range(runs):
        archive.add(staged(archive, rows(range(run * 10, run * 10 + 10), [0] * 10)), ORIGINS)


BOTH_WAYS: list[tuple[object, str, int]] = [
    (Archive, "_save", 1),
    (Archive, "_finish_swap", 1),
    (os, "link", 1),
    (os, "link", 2),
    (manifest_module, "exchange", 1),
    (shutil, "rmtree", 1),
    (Path, "unlink", 1),
    (Archive, "_sync_directories", 1),
    (Archive, "_save", 2),
]


@pytest.mark.parametrize(
    ("target", "name", "call", "can_exchange"),
    [
        *((*point, can_exchange) for point in BOTH_WAYS for can_exchange in (True, False)),
        (Path, "unlink", 3, False),
        (Archive, "_put_in_place", 1, False),
    ],
)
def test_a_crash_at_any_point_of_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: object, name: str, call: int, can_exchange: bool
) -> None:
    archive = new_archive(tmp_path)
    grown(archive, 4)
    archive.add(staged(archive, rows(range(10), [0] * 10, partition=1)), ORIGINS)  # stays as it is
    everything = [(0, offset) for offset in range(40)] + [(1, offset) for offset in range(10)]
    with monkeypatch.context() as patched:
        if not can_exchange:
            patched.setattr(manifest_module, "exchange", lambda one, other: False)
        crash_at(patched, target, name, call)
        with pytest.raises(Crash):
            compact(archive, MIB)
    seen = globbed(archive)
    assert len(seen) == len(set(seen))
    if can_exchange:
        assert seen == everything, "nor is one missing, even before recovery"
    archive.recover()
    assert globbed(archive) == everything
    assert not list(archive.staging.iterdir())
    assert not list(archive.state.glob("strays/*"))
    compact(archive, MIB)
    assert len(archive.load().files) == 2
    assert globbed(archive) == everything


def test_files_that_the_manifest_does_not_name_are_moved_aside_and_told(tmp_path: Path) -> None:
    """As with a manifest from a backup: they may be all there is of these records."""
    archive = new_archive(tmp_path)
    grown(archive, 1)
    older = archive.manifest_path.read_bytes()
    grown(archive, 2)
    stray = archive.load().files[1]
    content = archive.place_of(stray).read_bytes()
    (archive.staging / "notes").write_text("of somebody")
    (archive.staging / f"x{manifest_module.STAGED_SUFFIX}").touch()
    archive.manifest_path.write_bytes(older)
    said: list[str] = []
    archive.recover(said.append)
    assert globbed(archive) == [(0, offset) for offset in range(10)]
    assert {path.name for path in archive.state.glob("strays/**/*.stray")} == {
        f"{Path(stray.path).name}.stray",
        "notes.stray",
    }
    (aside,) = archive.state.glob(f"strays/*/{stray.path}.stray")
    assert aside.read_bytes() == content
    assert f"Moved 2 files that the manifest does not name to {archive.state / 'strays'}" in said[0]
    archive.recover(said.append)
    assert len(said) == 1


def test_files_that_have_other_records_than_the_manifest_says_are_not_merged(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    grown(archive, 3)
    damaged = archive.place_of(archive.load().files[1])
    table = pq.ParquetFile(damaged).read()
    pq.write_table(table.slice(0, 9), damaged)
    before = archive.load()
    with pytest.raises(JobFailed, match=r"3 files of .* have 30 records from 0 to 29, and 29 from 0 to 29 were read"):
        compact(archive, MIB)
    assert archive.load() == before
    assert not list(archive.staging.iterdir())
    archive.recover()


def test_merged_files_hold_the_same_rows(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    batch = rows(range(100), [offset * 7 for offset in range(100)])
    for start in range(0, 100, 10):
        archive.add(staged(archive, batch.slice(start, 10)), ORIGINS)
    assert compact(archive, MIB) == 9
    (file,) = archive.load().files
    assert pq.ParquetFile(archive.place_of(file)).read().to_pylist() == batch.select(FILE_SCHEMA.names).to_pylist()
    assert (file.first, file.last, file.rows, file.min_ms, file.max_ms) == (0, 99, 100, 0, 693)


def sized(*sizes: int) -> list[ArchivedFile]:
    return [ArchivedFile("t", "1970-01-01", 0, n, n, 1, size, 0, 0) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "fan_in", "is_thorough", "merged"),
    [
        ((1, 1), 2, False, [(1, 1)]),
        ((50, 1, 1), 2, False, [(1, 1)]),
        ((50, 3, 1), 2, False, []),
        ((50, 2, 1, 1), 2, False, [(2, 1, 1)]),
        ((80, 70, 39), 2, False, []),
        ((90, 5, 5), 2, False, [(5, 5)]),
        ((1,) * 7, 8, False, []),
        ((1,) * 8, 8, False, [(1,) * 8]),
        ((50, 2, 1), 2, True, [(50, 2, 1)]),
        ((60, 60, 30), 2, True, [(60, 30)]),
        ((100,), 2, True, []),
    ],
)
def test_which_files_are_merged(
    sizes: tuple[int, ...], fan_in: int, is_thorough: bool, merged: list[tuple[int, ...]]
) -> None:
    found = merges(sized(*sizes), 100, fan_in, is_thorough=is_thorough)
    assert [tuple(file.size_bytes for file in group) for group in found] == merged


def test_each_record_is_rewritten_a_few_times_only() -> None:
    """A thousand runs that add one unit each, with a merge after each."""
    files = sized()
    written = 0
    for run in range(1000):
        files.append(ArchivedFile("t", "1970-01-01", 0, run, run, 1, 1, 0, 0))
        for group in merges(files, 10**6):
            size = sum(file.size_bytes for file in group)
            written += size
            kept = [file for file in files if file not in group]
            files = sorted(
                [*kept, ArchivedFile("t", "1970-01-01", 0, group[0].first, group[-1].last, 1, size, 0, 0)],
                key=lambda file: file.first,
            )
    assert written <= 17 * 1000  # it grows by half each time
    assert len(files) <= 17


# -- the directory ----------------------------------------------------------------------


def test_a_topic_that_was_created_anew_is_refused(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    with pytest.raises(WrongJob, match="clicks was deleted and created again"):
        archive.create({"clicks": "id-2"}, {})


def test_a_partition_has_an_end_before_it_has_records(tmp_path: Path) -> None:
    """So the next run asks for what came and expired between the two."""
    archive = Archive(tmp_path)
    clicks_1, clicks_2, views_0 = TopicPartition("clicks", 1), TopicPartition("clicks", 2), TopicPartition("views", 0)
    archive.create(CLICKS, {CLICKS_0: 7, clicks_1: 0})
    assert archive.load().ends == {CLICKS_0: 7, clicks_1: 0}
    archive.add(staged(archive, rows(range(7, 9), [0] * 2)), ORIGINS)
    # Later: retention has gone on, a partition was added, and so was a topic.
    archive.create({**CLICKS, "views": "id-3"}, {CLICKS_0: 20, clicks_1: 30, clicks_2: 40, views_0: 50})
    ends = archive.load().ends
    assert ends == {CLICKS_0: 9, clicks_1: 0, clicks_2: 0, views_0: 50}
    parts = tuple(PartitionMetadata(number, 0, (0,), (0,)) for number in range(3))
    topics = {"clicks": TopicMetadata("clicks", bytes(16), False, parts)}
    assert json.loads(starting_offsets(topics, ends)) == {"clicks": {"0": 9, "1": 0, "2": 0}}


@pytest.mark.parametrize("is_new", [True, False])
def test_records_of_a_topic_that_was_created_anew_meanwhile_are_refused(tmp_path: Path, is_new: bool) -> None:
    """Also when all of them seem to be archived already, and so no file was staged."""
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows(range(50), [0] * 50)), ORIGINS)
    before = archive.load()
    files = staged(archive, rows(range(80 if is_new else 30), [0] * (80 if is_new else 30)))
    assert bool(files) == is_new
    with pytest.raises(ChangedTopic, match=r"clicks was deleted and created again .*id-1, now id-2"):
        archive.add(files, [*ORIGINS, Origin({"clicks": "id-2"})])
    assert archive.load() == before
    assert globbed(archive) == [(0, offset) for offset in range(50)]


def test_records_of_a_log_that_became_shorter_are_refused(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    archive.add(staged(archive, rows(range(50), [0] * 50)), [Origin(CLICKS, {CLICKS_0: 50})])
    archive.add([], [Origin(CLICKS, {CLICKS_0: 50, TopicPartition("clicks", 1): 0})])
    with pytest.raises(ChangedTopic, match="partition 0 of topic clicks became shorter: it ends at 40"):
        archive.add([], [Origin(CLICKS, {CLICKS_0: 40})])


def test_the_origin_of_a_batch_is_what_spark_noted(tmp_path: Path) -> None:
    offset = SourceOffset(
        "g", {"clicks": bytes(range(16)), "old": bytes(16)}, {CLICKS_0: 7, TopicPartition("old", 0): 1}
    )
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n" + json.dumps({"conf": {}}) + "\n" + json.dumps(offset.to_json()))
    assert planned_origin(tmp_path, 3) == Origin({"clicks": topic_id_text(bytes(range(16)))}, offset.positions)
    (tmp_path / "offsets" / "4").write_text("v1\n{}")
    for batch in (4, 5):
        with pytest.raises(JobFailed, match=f"does not have the offsets of batch {batch}"):
            planned_origin(tmp_path, batch)


class Listed:
    """The answers of a cluster, one after the other."""

    def __init__(self, *answers: dict[str, bytes]) -> None:
        self._answers = list(answers)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        return {name: TopicMetadata(name, topic_id, False, ()) for name, topic_id in self._answers.pop(0).items()}


def test_the_origin_of_a_batch_is_what_the_cluster_has() -> None:
    here = {"clicks": bytes(range(16))}
    waits: list[float] = []
    wanted = Origin({"clicks": topic_id_text(bytes(range(16)))})
    assert present_origin(Listed({}, here), ["clicks"], waits.append) == wanted
    assert len(waits) == 1
    with pytest.raises(JobFailed, match="topic clicks is gone"):
        present_origin(Listed({}, {}), ["clicks"], waits.append)


def test_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "others.parquet").touch()
    with pytest.raises(WrongJob, match="is not an archive"):
        Archive(tmp_path).create({"clicks": "id"}, {})


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    grown(archive, 2)
    archive.place_of(archive.load().files[0]).unlink()
    with pytest.raises(WrongJob, match="lacks 1 of the files"):
        archive.recover()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 9}', '{"version": 1, "topics": {}, "files": [{}], "swap": null}']
)
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    archive = new_archive(tmp_path)
    archive.manifest_path.write_text(text)
    with pytest.raises(WrongJob, match=r"manifest\.json is not a manifest"):
        archive.load()


def test_a_manifest_comes_back_from_json(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    grown(archive, 2)
    (group,) = merges(archive.load().files, MIB)
    swap = manifest_module.Swap(manifest_module.StagedFile("x", group[0]), tuple(file.path for file in group))
    for manifest in (Manifest(), archive.load(), Manifest({"clicks": "b"}, {CLICKS_0: 1}, tuple(group), swap)):
        assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_one_process_at_a_time(tmp_path: Path) -> None:
    archive = new_archive(tmp_path)
    with archive.lock(), pytest.raises(JobError, match="is in use by process"), archive.lock():
        pass
    with archive.lock():
        pass
