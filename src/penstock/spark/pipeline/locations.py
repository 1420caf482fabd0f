"""The locations of the tables' files, recorded from the catalog by runs, for commands without Spark.

Only the catalog knows them: it writes names in lower case, `spark.sql.warehouse.dir` may be elsewhere, and a database
may have its own location. A wrong guess would lose rows, so a table that no run has recorded has no location.

Locations inside the project are stored relative to it. Others belong to the project that recorded them, not to a copy
of its directory. This module does not know Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.state_files import replace_text

VERSION = 1


class TableLocations:
    """Locations by (catalog, database, table), case-insensitive: a local path, or a URI."""

    def __init__(self, project: PipelineProject) -> None:
        self._path = project.tables_path
        self._root = project.root.resolve()
        self._recorded_at = self._root
        self._places: dict[str, str] = {}
        self._load()

    @property
    def is_of_a_copy(self) -> bool:
        """Whether they were recorded when the project was in another directory."""
        return self._recorded_at != self._root

    def directory(self, table: Sequence[str]) -> Path | None:
        """The table's directory. None if no run has recorded it or it is not on this machine."""
        place = self._places.get(_key(table))
        return None if place is None else self._directory(place)

    def is_remote(self, table: Sequence[str]) -> bool:
        place = self._places.get(_key(table))
        return place is not None and self._directory(place) is None

    def tables(self) -> list[str]:
        return sorted(self._places)

    def outside(self) -> list[Path]:
        """Directories of tables outside the project."""
        found = [self._directory(place) for place in self._places.values()]
        return sorted({path for path in found if path is not None and self._root not in path.parents})

    def record(self, found: Mapping[Sequence[str], str]) -> None:
        """`found`: the catalog's locations, as URIs or paths."""
        places = {**({} if self.is_of_a_copy else self._places), **{_key(t): self._short(p) for t, p in found.items()}}
        if places != self._places or self.is_of_a_copy:
            self._places, self._recorded_at = places, self._root
            told = {"version": VERSION, "root": str(self._root), "tables": dict(sorted(places.items()))}
            replace_text(self._path, json.dumps(told, indent=2) + "\n")

    def _short(self, place: str) -> str:
        path = _local_path(place)
        if path is None:
            return place
        path = path.resolve()
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def _directory(self, place: str) -> Path | None:
        path = _local_path(place)
        return None if path is None else self._root / path

    def _load(self) -> None:
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            if told["version"] != VERSION:
                raise ValueError(f"version {told['version']}, but this penstock reads version {VERSION}")
            self._places = {str(name): str(place) for name, place in told["tables"].items()}
            self._recorded_at = Path(told["root"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"{self._path} cannot be read ({error}): delete it, and the next run asks the catalog again"
            ) from error


def same_table(one: Sequence[str], other: Sequence[str]) -> bool:
    return _key(one) == _key(other)


def _key(table: Sequence[str]) -> str:
    return ".".join(table).lower()


def _local_path(place: str) -> Path | None:
    """Catalogs do not escape blanks and percent signs in file:/a/b."""
    scheme, colon, rest = place.partition(":")
    if colon and "/" not in scheme:
        return Path("/" + rest.lstrip("/")) if scheme == "file" else None
    return Path(place)
