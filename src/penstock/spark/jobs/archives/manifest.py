"""The manifest of an archive lists its files. Every change of the archive is one atomic replacement of the manifest.

`add` adds records: their files are complete in staging, are renamed into place, and count once the manifest has them. A
crash in between leaves strays: files in place that are not in the manifest. `recover` moves them to `_penstock/strays`.
Their records are read from the topic again, because the manifest's ends did not move. Strays are not deleted: if the
manifest is from an older backup, they may be the only copy of their records.

`swap` merges files: the merged file is complete in staging, and the manifest names it and the files that it replaces.
Then the directory of the day is exchanged with one that has the merged file instead of the old files. `recover`
finishes a swap after a crash. So a listing of the files shows each record once at any moment. If the file system cannot
exchange directories, the old files are removed before the new one is in place: for that moment their records are
missing.

Invariants: in place and in the manifest, no two files have a record in common. Files of the manifest without a swap
under way are in place. All records of a topic have one topic id. Must not know: Spark, Arrow, the content of files.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs.archives.exchange import exchange
from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.jobs.places import JobLock
from penstock.spark.state_files import replace_text, sync_directory

logger = logging.getLogger(__name__)

VERSION = 1
# Not .parquet: tools that search all directories must not find these files.
STAGED_SUFFIX = ".parquet.tmp"
STRAY_SUFFIX = ".stray"
DAY_PREFIX = "day-"
FILE_NAME = re.compile(r"p\d{5,}-\d{20}-\d{20}\.parquet")


class OverlappingFiles(JobError):
    """Records that are already archived: two processes write the archive, despite the lock."""


class ChangedTopic(JobError):
    """The old offsets of the topic are invalid: it was created again, or its log became shorter."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """The records of one partition of one day with offsets from `first` to `last`, in order."""

    topic: str
    date: str
    partition: int
    first: int
    last: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int

    @property
    def path(self) -> str:
        """The path relative to the archive's directory."""
        name = f"p{self.partition:05d}-{self.first:020d}-{self.last:020d}.parquet"
        return f"topic={self.topic}/date={self.date}/{name}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Complete, but not in place: `name` is in the staging directory."""

    name: str
    file: ArchivedFile


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a batch's records, by one source of information."""

    topic_ids: Mapping[str, str]
    read_to: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The ends of the batch, also for partitions without records."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A merge under way: the staged file replaces `replaced`."""

    staged: StagedFile
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The next offset to be archived, by partition."""
    files: tuple[ArchivedFile, ...] = ()
    swap: Swap | None = None

    def files_of(self, topic: str) -> list[ArchivedFile]:
        return [file for file in self.files if file.topic == topic]

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, Any] = {name: {"id": text, "ends": {}} for name, text in sorted(self.topic_ids.items())}
        for tp, end in sorted(self.ends.items()):
            topics.setdefault(tp.topic, {"id": "", "ends": {}})["ends"][str(tp.partition)] = end
        return {
            "version": VERSION,
            "topics": topics,
            "files": [asdict(file) for file in self.files],
            "swap": None if self.swap is None else asdict(self.swap),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Manifest:
        """Raises KeyError, TypeError or ValueError if it is not a manifest of this version."""
        if given["version"] != VERSION:
            raise ValueError(f"version {given['version']}, but this penstock reads version {VERSION}")
        topics = given["topics"]
        ends = {
            TopicPartition(name, int(partition)): int(end)
            for name, entry in topics.items()
            for partition, end in entry["ends"].items()
        }
        files = tuple(ArchivedFile(**entry) for entry in given["files"])
        swap = None
        if given["swap"] is not None:
            staged = given["swap"]["staged"]
            swap = Swap(StagedFile(staged["name"], ArchivedFile(**staged["file"])), tuple(given["swap"]["replaced"]))
        return cls({name: entry["id"] for name, entry in topics.items()}, ends, files, swap)


P = ParamSpec("P")
R = TypeVar("R")


def _changing(method: Callable[Concatenate[Archive, P], R]) -> Callable[Concatenate[Archive, P], R]:
    """Serializes changes. A commit may outlive its stopped query, and the next change waits for it."""

    @functools.wraps(method)
    def alone(archive: Archive, /, *args: P.args, **kwargs: P.kwargs) -> R:
        archive.state.mkdir(parents=True, exist_ok=True)
        file = os.open(archive.state / "changing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            return method(archive, *args, **kwargs)
        finally:
            os.close(file)

    return alone


class Archive:
    """A directory with a manifest. Only the holder of its lock, and processes that it started, may change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "_penstock"
        self.staging = self.state / "staging"
        self.manifest_path = self.state / "manifest.json"

    @property
    def exists(self) -> bool:
        return self.manifest_path.exists()

    def load(self) -> Manifest:
        """Raises WrongJob."""
        try:
            return Manifest.from_json(json.loads(self.manifest_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Manifest()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WrongJob(f"{self.manifest_path} is not a manifest of an archive: {error}") from None

    def lock(self) -> JobLock:
        return JobLock(self.state / "lock", f"archive {self.directory}")

    def place_of(self, file: ArchivedFile) -> Path:
        return self.directory / file.path

    @_changing
    def create(self, topic_ids: Mapping[str, str], starts: Mapping[TopicPartition, int]) -> Manifest:
        """Makes the directory an archive, also of these topics. Raises WrongJob if a topic has changed.

        starts: the first offset of each partition. A new topic begins there. The offsets are saved right away, so that
        records that arrive and expire before the next run are noticed. A partition that is added later begins at 0.
        """
        found = self.load()
        if not self.exists and any(self.directory.glob("**/*.parquet")):
            raise WrongJob(f"{self.directory} has Parquet files but is not an archive: choose another directory")
        for topic, text in topic_ids.items():
            known = found.topic_ids.get(topic, text)
            if known != text:
                raise WrongJob(self._created_again(topic, known, text))
        self.staging.mkdir(parents=True, exist_ok=True)
        begins = {tp: start if tp.topic not in found.topic_ids else 0 for tp, start in starts.items()}
        changed = replace(found, topic_ids={**found.topic_ids, **topic_ids}, ends={**begins, **found.ends})
        self._save(changed)
        return changed

    @_changing
    def add(self, staged: Iterable[StagedFile], origins: Iterable[Origin]) -> Manifest:
        """Adds files of new records, which must follow the archived ones. Raises OverlappingFiles, ChangedTopic.

        origins: the origins of the whole batch, also of records that are already archived. They must not have changed.
        """
        found = self.load()
        for origin in origins:
            self._check(found, origin)
        ends = dict(found.ends)
        added = sorted(staged, key=lambda one: (one.file.topic, one.file.partition, one.file.first))
        for one in added:
            if one.file.first < found.ends.get(one.file.topic_partition, 0):
                raise OverlappingFiles(f"{one.file.path} is in {self.directory} already: is another archive running?")
        if not added:
            return found
        for one in added:
            self._put_in_place(one)
            end = one.file.last + 1
            ends[one.file.topic_partition] = max(end, ends.get(one.file.topic_partition, end))
        self._sync_directories(one.file for one in added)
        changed = replace(found, ends=ends, files=(*found.files, *(one.file for one in added)))
        self._save(changed)
        return changed

    def _check(self, found: Manifest, origin: Origin) -> None:
        for topic, text in origin.topic_ids.items():
            known = found.topic_ids.get(topic, text)
            if known != text:
                raise ChangedTopic(self._created_again(topic, known, text))
        for tp, end in origin.read_to.items():
            if end < found.ends.get(tp, 0):
                raise ChangedTopic(
                    f"the log of partition {tp.partition} of topic {tp.topic} became shorter: it ends at {end}, but "
                    f"is archived in {self.directory} up to {found.ends[tp]}: archive it into another directory"
                )

    def _created_again(self, topic: str, known: str, now: str) -> str:
        return (
            f"topic {topic} was deleted and created again since it was archived in {self.directory} (its id was "
            f"{known}, now {now}), so its offsets began again: archive it into another directory"
        )

    @_changing
    def swap(self, swap: Swap) -> Manifest:
        """Replaces files by their merged file."""
        found = self.load()
        gone = set(swap.replaced)
        kept = [file for file in found.files if file.path not in gone]
        self._save(replace(found, files=(*kept, swap.staged.file), swap=swap))
        return self._finish_swap(self.load())

    @_changing
    def recover(self, say: Callable[[str], None] = logger.warning) -> Manifest:
        """Finishes or undoes a change that a crash interrupted. `say` reports files that are moved aside."""
        found = self._finish_swap(self.load())
        known = {file.path for file in found.files}
        strays = [path for path in self._in_place() if str(path.relative_to(self.directory)) not in known]
        for path in self.staging.iterdir() if self.staging.is_dir() else ():
            if path.name.endswith(STAGED_SUFFIX):
                path.unlink()
            elif path.name.startswith(DAY_PREFIX):
                shutil.rmtree(path)
            else:
                strays.append(path)
        self._move_aside(strays, say)
        for directory in (*self.directory.glob("topic=*/date=*"), *self.directory.glob("topic=*")):
            _remove_if_empty(directory)
        missing = [path for path in sorted(known) if not (self.directory / path).is_file()]
        if missing:
            raise WrongJob(
                f"{self.directory} lacks {len(missing)} of the files in its manifest, the first is {missing[0]}: "
                "restore them, or archive the topics again into another directory"
            )
        return found

    def _move_aside(self, strays: list[Path], say: Callable[[str], None]) -> None:
        if not strays:
            return
        aside = self.state / "strays" / uuid.uuid4().hex[:8]
        for path in strays:
            place = aside / f"{path.relative_to(self.directory)}{STRAY_SUFFIX}"
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        say(
            f"Moved {len(strays)} files that the manifest does not name to {aside}, the first is "
            f"{strays[0].relative_to(self.directory)}: a crash left them, or the manifest is an older one. Their "
            "records are read again if the topic still has them. Check the files and delete that directory"
        )

    def staged_path(self, name: str) -> Path:
        return self.staging / name

    def _finish_swap(self, found: Manifest) -> Manifest:
        if found.swap is None:
            return found
        # A merged file in place means that the swap is done: that is the last step.
        if not self.place_of(found.swap.staged.file).exists() and not self._exchange_day(found.swap):
            for path in found.swap.replaced:
                (self.directory / path).unlink(missing_ok=True)
            self._put_in_place(found.swap.staged)
        self._sync_directories([found.swap.staged.file])
        changed = replace(found, swap=None)
        self._save(changed)
        return changed

    def _exchange_day(self, swap: Swap) -> bool:
        """False if the file system does not support it."""
        day = self.place_of(swap.staged.file).parent
        fresh = self.staging / f"{DAY_PREFIX}{uuid.uuid4().hex}"
        fresh.mkdir()
        gone = {Path(path).name for path in swap.replaced}
        try:
            for path in day.iterdir():
                if path.name not in gone:
                    os.link(path, fresh / path.name)
            os.link(self.staged_path(swap.staged.name), fresh / self.place_of(swap.staged.file).name)
            sync_directory(fresh)
        except OSError:  # no hard links
            shutil.rmtree(fresh)
            return False
        is_done = exchange(fresh, day)
        shutil.rmtree(fresh)
        if is_done:
            self.staged_path(swap.staged.name).unlink()
        return is_done

    def _put_in_place(self, one: StagedFile) -> None:
        place = self.place_of(one.file)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.staged_path(one.name).replace(place)

    def _in_place(self) -> Iterator[Path]:
        for path in self.directory.glob("topic=*/date=*/*.parquet"):
            if FILE_NAME.fullmatch(path.name):
                yield path

    def _sync_directories(self, files: Iterable[ArchivedFile]) -> None:
        days = {self.place_of(file).parent for file in files}
        for directory in days | {day.parent for day in days} | {self.directory}:
            sync_directory(directory)

    def _save(self, manifest: Manifest) -> None:
        replace_text(self.manifest_path, json.dumps(manifest.to_json(), separators=(",", ":")))


def _remove_if_empty(directory: Path) -> None:
    if not any(directory.iterdir()):
        directory.rmdir()
