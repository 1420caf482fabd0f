"""Which definitions `serve` runs."""

from __future__ import annotations

import pytest

from penstock.spark.pipeline.definitions import Definitions
from penstock.spark.pipeline.errors import DefinitionError, Mistake
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.served import RETRY_S, ServedDefinitions, load_good

WRONG = DefinitionError([Mistake("no such column", "transformations/page_stats.sql", 3, "page_stats")])


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def sql_of(definitions: Definitions) -> bytes:
    return next(content for file, content in definitions.files.items() if file.suffix == ".sql")


def test_good_ones_are_taken_and_stored(project: PipelineProject) -> None:
    served = ServedDefinitions(project)
    assert served.good is None
    chosen = served.choose()
    assert not served.accept()
    stored = load_good(project)
    assert stored is not None
    assert stored.definitions == chosen
    assert list(stored.definitions.files) == list(chosen.files), "the order of registration"
    assert project.good_definitions_path.stat().st_mode & 0o777 == 0o600
    before = project.good_definitions_path.stat().st_mtime_ns
    served.choose()
    served.accept()
    assert project.good_definitions_path.stat().st_mtime_ns == before, "written only when they change"


def test_wrong_ones_are_tried_again_when_a_file_changes_and_now_and_then(project: PipelineProject) -> None:
    clock = Clock()
    served = ServedDefinitions(project, clock)
    good = served.choose()
    served.accept()
    file = project.root / "transformations" / "page_stats.sql"
    file.write_text("wrong")
    assert served.is_changed()
    assert sql_of(served.choose()) == b"wrong"
    assert served.reject(WRONG)
    assert served.to_json() == {
        "since": served.to_json()["since"],  # type: ignore[index]
        "running": served.good.since if served.good else "",
        "mistakes": [
            {"file": "transformations/page_stats.sql", "line": 3, "flow": "page_stats", "what": "no such column"}
        ],
    }
    assert served.choose() == good
    assert not served.accept(), "still wrong"
    assert served.broken is WRONG
    clock.now += RETRY_S
    assert served.is_retry_due()
    assert sql_of(served.choose()) == b"wrong"
    assert served.reject(WRONG)
    assert served.choose() == good
    file.write_text("right")
    assert sql_of(served.choose()) == b"right"
    assert served.accept()
    assert (served.broken, served.to_json()) == (None, None)
    assert served.good is not None
    assert sql_of(served.good.definitions) == b"right"


def test_a_file_that_is_gone_or_unreadable_is_wrong_too(project: PipelineProject) -> None:
    served = ServedDefinitions(project)
    good = served.choose()
    served.accept()
    file = project.root / "transformations" / "clicks.py"
    file.write_bytes(b"x = '\xff'")
    with pytest.raises(DefinitionError) as refused:
        served.choose()
    assert served.reject(refused.value)
    assert served.choose() == good
    for each in file.parent.iterdir():
        each.unlink()
    with pytest.raises(DefinitionError, match="no file matches"):
        served.choose()
    assert served.reject(WRONG)
    assert served.choose() == good


def test_the_same_text_again_is_no_way_out(project: PipelineProject) -> None:
    served = ServedDefinitions(project)
    served.choose()
    assert not served.reject(WRONG), "there never were good ones"
    served.choose()
    assert served.accept(), "it was something else"
    served.choose()
    assert not served.reject(WRONG), "the good ones are these"
    assert served.broken is WRONG


def test_python_in_any_encoding_is_stored(project: PipelineProject) -> None:
    file = project.root / "transformations" / "latin.py"
    file.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    served = ServedDefinitions(project)
    chosen = served.choose()
    served.accept()
    stored = load_good(project)
    assert stored is not None
    assert stored.definitions == chosen


def test_a_store_that_cannot_be_read_is_none(project: PipelineProject) -> None:
    project.state.mkdir()
    for text in ("", "[]", "{}", '{"version": 99}', '{"version": 1, "files": 1}'):
        project.good_definitions_path.write_text(text)
        assert load_good(project) is None
