"""The commands that need no Spark, and what the others say before they start one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from written_checkpoints import CheckpointWriter

from penstock.sdk import BlockingAdmin
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.lock import ProjectLock
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject, is_master
from penstock.spark.pipeline.runs.status_file import StatusFile
from penstock.spark.pipeline.served import ServedDefinitions
from penstock.spark.pipeline.templates.template import TEMPLATES
from penstock.testing import Broker
from support.processes.command_line import CommandLine

TABLE = "spark_catalog/default/events"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def test_init(cli: CommandLine, tmp_path: Path) -> None:
    made = cli("pipeline", "init", "store", "--topic", "a", "--topic", "b", "--bootstrap-server", "one:9092")
    assert made.lines[0] == "  store/spark-pipeline.yml"
    assert made.lines[-1].startswith("Created pipeline store. Next: cd store")
    project = PipelineProject.find(tmp_path / "store")
    assert project.configured_topics == ["a", "b", "a-clean", "a-dead-letters"]
    assert project.servers == "one:9092"
    again = cli("pipeline", "init", "store")
    assert (again.code, again.err) == (1, "penstock: store exists already: choose another name, or remove it\n")
    elsewhere = cli("pipeline", "init", str(tmp_path / "below" / "store"))
    assert elsewhere.code == 0
    assert (tmp_path / "below" / "store" / "README.md").is_file()


def test_init_with_templates(cli: CommandLine, tmp_path: Path) -> None:
    said = cli("pipeline", "init", "--help").out
    for template in TEMPLATES:
        assert re.search(rf"^ +{template} +\w", said, re.MULTILINE), "a line of help"
        assert cli("pipeline", "init", f"my-{template}", "--template", template).code == 0
        assert PipelineProject.find(tmp_path / f"my-{template}").configured_topics[0] == TEMPLATES[template].topics[0]
    refused = cli("pipeline", "init", "store", "--template", "widows")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no template widows (there are: clicks, windows, joins, deduplication)" in refused.err


def test_init_of_what_cannot_be(cli: CommandLine, tmp_path: Path) -> None:
    refused = cli("pipeline", "init", "store", "--bootstrap-server", "one:two:three")
    assert (refused.code, "'one:two:three' is not a broker address" in refused.err) == (2, True)
    assert "name different topics" in cli("pipeline", "init", "store", "--output-topic", "clicks").err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("archive --to d --topic a/b", "'a/b' is not a topic name: use letters"),
        ("replay --from-topic a/b --to c", "'a/b' is not a topic name"),
        ("replay --from-topic a --to c/d", "'c/d' is not a topic name"),
        ("aggregate --topic a --window 1 --dead-letter c/d", "'c/d' is not a topic name"),
        ("replay --from-topic a --to c --since 1h --until 2h", "--since is not before --until"),
        ("mirror --topic a --from , --to b", "',' is not a broker address: write HOST:PORT"),
        ("mirror --topic a --from a --to b --from-config binary", "binary is not a UTF-8 text file: write NAME=VALUE"),
        ("mirror --topic a --from a --to b --from-config none", "cannot read none: No such file or directory"),
    ],
)
def test_arguments_of_jobs_that_cannot_be(cli: CommandLine, tmp_path: Path, words: str, says: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    ran = cli("pipeline", *words.split(), *(("--bootstrap-server", "no.such.host:9092") * ("mirror" not in words)))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_outside_of_a_project(cli: CommandLine) -> None:
    for command in ("check", "run", "serve", "status", "reset"):
        refused = cli("pipeline", command)
        assert refused.code == 1
        assert "create a project with `penstock pipeline init NAME`" in refused.err


def test_a_wrong_specification_is_exit_2(cli: CommandLine, project: PipelineProject) -> None:
    project.spec_path.write_text(project.spec_path.read_text().replace("libraries:", "library:"))
    for command in ("check", "run", "serve", "status", "reset"):
        refused = cli("pipeline", command, "--project", str(project.root))
        assert refused.code == 2
        assert re.match(r"penstock: spark-pipeline\.yml:\d+: 'library' is not known here: there are name,", refused.err)
        assert refused.err.count("\n") == 1


def test_status_for_people_and_for_programs(
    cli: CommandLine, project: PipelineProject, checkpoint: CheckpointWriter
) -> None:
    checkpoint(TABLE, "events", [{"0": 5}])
    shown = cli("pipeline", "status", "--project", str(project.root), "--timeout", "0.2")
    assert shown.lines[0] == "Pipeline shop: never run"
    assert "events  clicks          0       5  -    -" in shown.lines
    assert shown.err.startswith("the lag is unknown: ")
    told = json.loads(
        cli("pipeline", "status", "--project", str(project.root), "--timeout", "0.2", "--json").out,
    )
    assert told["flows"][0]["partitions"] == [
        {"topic": "clicks", "partition": 0, "offset": 5, "end_offset": None, "lag": None}
    ]
    assert told["problems"]
    assert told["error"] is None


def test_status_says_why_a_run_failed(cli: CommandLine, project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    flows = {
        "events": FlowProgress("events", FlowState.FAILED, error="the disk is full"),
        "stats": FlowProgress("stats", FlowState.FAILED, error="another thing"),
    }
    status.end_run(flows)
    status.end("failed", "flow events failed: the disk is full")
    told = cli("pipeline", "status", "--project", str(project.root), "--timeout", "0.2")
    assert told.err == "flow events failed: the disk is full\nflow stats: another thing\n"


def test_reset_says_what_goes_and_asks(
    cli: CommandLine, project: PipelineProject, checkpoint: CheckpointWriter
) -> None:
    directory = checkpoint("output_topic", "results", [{"0": 5}])
    words = ("pipeline", "reset", "--project", str(project.root))
    asked = cli(*words, stdin=b"n\n")
    assert asked.code == 1
    assert "To be reset: results. To be deleted:\n  storage/_checkpoints/\n" in asked.out
    assert "The next run sends everything to output_topic again. The present data there stays." in asked.out
    assert directory.exists()
    assert cli(*words, "--flow", "nope", "--yes").code == 1
    with ProjectLock(project, "pipeline serve"):
        assert "is in use by process" in cli(*words, "--yes").err
    assert directory.exists()
    assert cli(*words, stdin=b"y\n").lines[-1].endswith("Done.")
    assert not directory.exists()
    assert cli(*words, "--yes").lines == ["There is nothing to reset."]


def test_reset_that_nobody_can_confirm(
    cli: CommandLine, project: PipelineProject, checkpoint: CheckpointWriter
) -> None:
    directory = checkpoint("output_topic", "results", [{"0": 5}])
    ran = cli("pipeline", "reset", "--project", str(project.root))
    assert (ran.code, ran.err) == (1, "penstock: nothing was changed: nobody can answer, so give --yes\n")
    assert directory.exists()


def test_reset_for_programs(cli: CommandLine, project: PipelineProject, checkpoint: CheckpointWriter) -> None:
    directory = checkpoint("output_topic", "results", [{"0": 5}])
    words = ("pipeline", "reset", "--project", str(project.root), "--json")
    asked = cli(*words)
    error = "--json cannot ask for confirmation: give --yes as well"
    assert (asked.code, json.loads(asked.out)) == (2, {"error": error})
    assert directory.exists()
    told = json.loads(cli(*words, "--yes").out)
    assert told == {
        "pipeline": "shop",
        "flows": ["results"],
        "deleted": ["storage/_checkpoints"],
        "sent_again_to": ["output_topic"],
        "groups_deleted": [],
        "error": None,
    }
    assert not directory.exists()
    assert json.loads(cli(*words, "--yes").out)["deleted"] == []


def test_a_reset_that_was_interrupted_is_finished_before_anything_else(
    cli: CommandLine, project: PipelineProject, checkpoint: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    from penstock.spark.pipeline import reset

    real = importlib.util.find_spec
    for command in ("run", "serve", "reset"):
        table = project.root / "warehouse" / "events"
        (table / "_spark_metadata").mkdir(parents=True)
        left = checkpoint(TABLE, "events", [{"0": 5}])
        with monkeypatch.context() as killed:
            killed.setattr(reset, "_carry_out", lambda project, plan: None)
            reset.reset(project, reset.plan_reset(project, None))
        told = cli("pipeline", "status", "--project", str(project.root), "--timeout", "0.2")
        assert told.lines[0] == "Pipeline shop: reset interrupted"
        assert "a reset is not finished: the next run, serve or reset finishes it first" in told.err
        with pytest.raises(PipelineError, match="a reset of this project is not finished"):
            PipelineEngine(project).start()
        assert left.exists()
        with monkeypatch.context() as without_spark:
            without_spark.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
            ran = cli("pipeline", command, "--project", str(project.root), *(["--yes"] if command == "reset" else []))
        assert "Finished an interrupted reset. Flows reset: events." in ran.out
        assert not table.exists()
        assert not left.exists()


def test_run_and_serve_refuse_a_project_in_use(cli: CommandLine, project: PipelineProject) -> None:
    with ProjectLock(project, "pipeline run"):
        for command in ("run", "serve"):
            refused = cli("pipeline", command, "--project", str(project.root))
            assert refused.code == 1
            assert "pipeline shop is in use by process" in refused.err


def test_without_spark_it_says_how_to_get_it(
    cli: CommandLine, project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
    for command in ("check", "run"):
        refused = cli("pipeline", command, "--project", str(project.root))
        assert refused.code == 1
        assert "pip install 'penstock[spark]'" in refused.err


def test_without_a_broker_no_spark_is_started(
    cli: CommandLine, project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PipelineEngine, "start", lambda engine: pytest.fail("Spark was started"))
    for command in ("check", "run"):
        refused = cli("pipeline", command, "--project", str(project.root))
        assert refused.code == 1
        assert refused.err.startswith("penstock: no broker answers at 127.0.0.1:1")
    told = cli("pipeline", "status", "--project", str(project.root))
    assert told.lines[0] == "Pipeline shop: failed"
    assert told.err.startswith("no broker answers at 127.0.0.1:1"), "why"


def test_python_that_cannot_be_read_is_told_before_spark_starts(
    cli: CommandLine, project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PipelineEngine, "start", lambda engine: pytest.fail("Spark was started"))
    (project.root / "transformations" / "a.py").write_text("x = 1\nclass:\n")
    (project.root / "transformations" / "b.py").write_bytes(b"x = '\xff'\n")
    for command in ("check", "run", "serve"):
        refused = cli("pipeline", command, "--project", str(project.root))
        assert refused.code == 2
        first, second, *more = refused.err.splitlines()
        assert first == "penstock: transformations/a.py:2: invalid syntax"
        assert second.startswith("transformations/b.py:1: (unicode error) 'utf-8' codec can't decode byte 0xff")
        assert more == []
    told = json.loads(cli("pipeline", "check", "--project", str(project.root), "--json").out)
    assert [(one["file"], one["line"]) for one in told["mistakes"]] == [
        ("transformations/a.py", 2),
        ("transformations/b.py", 1),
    ]
    assert json.loads(cli("pipeline", "run", "--project", str(project.root), "--json").out)["error"] == told["error"]


def test_serve_starts_with_wrong_python_if_it_has_good_definitions(
    cli: CommandLine, project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(engine: PipelineEngine) -> PipelineEngine:
        raise PipelineError("it would start")

    served = ServedDefinitions(project)
    served.choose()
    served.accept()
    (project.root / "transformations" / "a.py").write_text("class:\n")
    monkeypatch.setattr(PipelineEngine, "start", start)
    assert cli("pipeline", "serve", "--project", str(project.root)).err == "penstock: it would start\n"
    assert cli("pipeline", "run", "--project", str(project.root)).code == 2


def test_status_shows_wrong_definitions(cli: CommandLine, project: PipelineProject) -> None:
    broken = {
        "since": "2026-03-01T12:00:00+00:00",
        "running": "2026-02-01T08:00:00+00:00",
        "mistakes": [{"file": "a.py", "line": 3, "flow": "events", "what": "no such column"}],
    }
    StatusFile(project, "serve").change(broken=broken)
    words = ("pipeline", "status", "--project", str(project.root), "--timeout", "0.2")
    assert cli(*words).err.splitlines()[:3] == [
        "The definitions have been wrong since 2026-03-01T12:00:00+00:00:",
        "  a.py:3: flow events: no such column",
        "Until they are repaired, those of 2026-02-01T08:00:00+00:00 run.",
    ]
    assert json.loads(cli(*words, "--json").out)["broken_definitions"] == broken


def test_a_master_that_is_none_is_refused_before_java_starts(cli: CommandLine, project: PipelineProject) -> None:
    where = ("--project", str(project.root))
    sentence = "'foo' is not a Spark master: write local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
    for words in (("check", *where), ("run", *where), ("serve", *where), ("archive", "--topic", "a", "--to", "b")):
        refused = cli("pipeline", *words, "--master", "foo")
        assert refused.code == 2
        assert "--master" in refused.err
        assert sentence in refused.err
    text = project.spec_path.read_text()
    project.spec_path.write_text(text.replace("configuration:\n", "configuration:\n  spark.master: foo\n"))
    refused = cli("pipeline", "run", *where)
    assert refused.code == 2
    assert "'spark.master' is 'foo', not a Spark master" in refused.err


def test_masters() -> None:
    for text in ("local", "local[*]", "local[2]", "local[*,4]", "local-cluster[2,1,1024]", "spark://a:7077", "yarn"):
        assert is_master(text), text
    for text in ("", "foo", "local[]", "local[x]", "local[2", "spark://", "localhost:7077"):
        assert not is_master(text), text


def test_a_program_sees_an_object_however_it_ends(
    cli: CommandLine, project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(code: int, command: str) -> str:
        ran = cli("pipeline", command, "--project", str(project.root), "--json")
        assert ran.code == code
        told = json.loads(ran.out)
        assert ran.err == f"penstock: {told['error']}\n", "the same sentence as without --json"
        return str(told["error"])

    with ProjectLock(project, "pipeline serve"):
        assert "is in use by process" in refused(1, "run")
    with monkeypatch.context() as without_spark:
        without_spark.setattr("importlib.util.find_spec", lambda name: None)
        for command in ("check", "run"):
            assert "pip install" in refused(1, command)
    project.reset_path.write_text("{")
    assert "a reset was not finished" in refused(1, "run")
    project.spec_path.write_text("name: 1\n")
    for command in ("check", "run", "status"):
        assert "'name' is 1" in refused(2, command)
    project.spec_path.unlink()
    for command in ("check", "run", "status"):
        assert "there is no spark-pipeline.yml" in refused(1, command)


def test_a_replay_that_is_refused_leaves_nothing_behind(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Broker() as broker, BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic("from", 2)
        admin.create_topic("to", 2)
        words = ("--from-topic", "from", "--offsets", "7:1-2", "--to", "to")
        for more in ((), ("--checkpoint", str(tmp_path / "chosen"))):
            where = ("--bootstrap-server", broker.bootstrap_servers)
            refused = cli("pipeline", "replay", *words, *more, *where)
            assert refused.code == 2
            assert "--offsets has partition 7; the partitions are 0, 1" in refused.err
    assert [path for path in (tmp_path / "state").rglob("*") if path.name.startswith("replay")] == []
    assert not (tmp_path / "chosen").exists()


def test_every_command_has_help(cli: CommandLine) -> None:
    for command in ("init", "check", "run", "serve", "status", "reset"):
        assert f"Usage: penstock pipeline {command}" in cli("pipeline", command, "--help", name="penstock").out
