from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.pipeline.errors import DefinitionError, PipelineError
from penstock.spark.pipeline.project import PipelineProject

SPEC = """\
name: shop
storage: storage
configuration:
  penstock.kafka.bootstrap.servers: "one:9092"
  penstock.kafka.security.protocol: "SSL"
  penstock.source.topics: "a, b"
  penstock.output.topic: "c"
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob:
      include: transformations/**
"""


def load(directory: Path, text: str) -> PipelineProject:
    path = directory / "spark-pipeline.yml"
    path.write_text(text)
    return PipelineProject.load(path)


def test_places_and_settings(tmp_path: Path) -> None:
    project = load(tmp_path, SPEC)
    assert project.storage == (tmp_path / "storage").as_uri()
    assert project.checkpoints == tmp_path / "storage" / "_checkpoints"
    assert project.client_options == {"kafka.bootstrap.servers": "one:9092", "kafka.security.protocol": "SSL"}
    assert project.configured_topics == ["a", "b", "c"]
    assert project.with_servers("two:1").servers == "two:1"
    assert project.database == "default"


def test_storage_elsewhere_is_left_alone(tmp_path: Path) -> None:
    project = load(tmp_path, SPEC.replace("storage: storage", "storage: s3a://bucket/shop"))
    assert project.storage == "s3a://bucket/shop"
    assert project.checkpoints is None


def test_found_from_below(tmp_path: Path) -> None:
    load(tmp_path, SPEC)
    below = tmp_path / "transformations" / "deep"
    below.mkdir(parents=True)
    assert PipelineProject.find(below).root == tmp_path


def test_none_found(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="penstock pipeline init"):
        PipelineProject.find(tmp_path)
    with pytest.raises(PipelineError, match="there is no directory"):
        PipelineProject.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: shop", "nam: shop"), "spark-pipeline.yml:1: 'nam' is not known here"),
        (("name: shop\n", ""), "'name' is missing"),
        (("name: shop", "name: 7"), "spark-pipeline.yml:1: 'name' is 7: write text"),
        (("storage: storage", "storage: ' '"), "spark-pipeline.yml:2: 'storage' is empty"),
        (('"2"', "2"), "spark-pipeline.yml:8: 'spark.sql.shuffle.partitions' in configuration is 2: put it in quotes"),
        (("include: transformations/**", "include: '**/x.py'"), "neither a file nor a folder"),
        (("  - glob:\n      include: transformations/**", "  - transformations"), "'libraries' has 'transformations'"),
        (("libraries:\n  - glob:\n      include: transformations/**", ""), "'libraries' names no definitions"),
        (("storage: storage", "storage: [\n"), "spark-pipeline.yml:"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in SPEC
    with pytest.raises(DefinitionError) as raised:
        load(tmp_path, SPEC.replace(*change))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_definition_files(tmp_path: Path) -> None:
    project = load(tmp_path, SPEC)
    folder = tmp_path / "transformations"
    with pytest.raises(DefinitionError, match="no file matches"):
        project.definition_files()
    for name in ("b.sql", "a.py", "__pycache__/a.pyc", ".hidden.py", "sub/c.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert [project.relative(path) for path in project.definition_files()] == [
        "transformations/a.py",
        "transformations/b.sql",
        "transformations/sub/c.py",
    ]
    (folder / "notes.txt").touch()
    with pytest.raises(DefinitionError, match=r"notes\.txt: only \.py and \.sql"):
        project.definition_files()


def test_a_project_in_a_test_writes_elsewhere_and_reaches_no_other_cluster(project: PipelineProject) -> None:
    text = project.spec_path.read_text().replace(
        "configuration:\n",
        "configuration:\n"
        '  penstock.kafka.security.protocol: "SASL_SSL"\n  penstock.kafka.sasl.password: "${env:NOT_SET}"\n'
        '  penstock.kafka.fetch.max.bytes: "1000"\n  mine: "${env:NOT_SET}"\n',
    )
    project.spec_path.write_text(text)
    workspace = project.root.parent / "workspace"
    found = PipelineProject.find(project.root).for_test("127.0.0.1:5", workspace, {"mine": "x"}).resolved()
    assert found.client_options == {"kafka.bootstrap.servers": "127.0.0.1:5", "kafka.fetch.max.bytes": "1000"}
    assert found.configuration["mine"] == "x"
    assert found.checkpoints == workspace / "storage" / "_checkpoints"
    for path in (found.state, found.warehouse, found.log_path, found.metastore):
        assert path.is_relative_to(workspace)
    assert found.definition_files() == project.definition_files()
