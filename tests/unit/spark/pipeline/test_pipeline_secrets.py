"""References in a project's settings, and where their values must not appear."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.spark.options.secret_names import is_secret_name
from penstock.spark.pipeline import engine as engine_module
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import DefinitionError, PipelineError
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.status_file import StatusFile
from penstock.spark.pipeline.secrets import HIDDEN, Secrets, has_reference
from penstock.spark.pipeline.status import pipeline_status
from support.processes.command_line import CommandLine

KEY = """\
-----BEGIN PRIVATE KEY-----
bm90IGEga2V5LCBidXQgYXMg
bG9uZyBhcyBhIGxpbmUgb2Yg
-----END PRIVATE KEY-----
"""


def with_settings(project: PipelineProject, **settings: str) -> PipelineProject:
    """`settings`: by names with _ in place of dots."""
    lines = "".join(f"  {name.replace('_', '.')}: {json.dumps(value)}\n" for name, value in settings.items())
    text = project.spec_path.read_text()
    project.spec_path.write_text(text.replace("configuration:\n", f"configuration:\n{lines}"))
    return PipelineProject.load(project.spec_path)


def test_variables_and_files(project: PipelineProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLICKS_PASSWORD", "hunter22")
    (project.root / "secrets").mkdir()
    (project.root / "secrets" / "client.key").write_text(KEY)
    (tmp_path / "elsewhere").write_text("broker:9092\n")
    project = with_settings(
        project,
        penstock_kafka_sasl_jaas_config='Login required username="ada" password="${env:CLICKS_PASSWORD}";',
        penstock_kafka_ssl_keystore_key="${file:secrets/client.key}",
        penstock_kafka_sasl_username=f"${{file:{tmp_path}/elsewhere}}",
        literal="$${env:CLICKS_PASSWORD} ${spark.master} $${x}",
    )
    assert project.configuration["penstock.kafka.ssl.keystore.key"] == "${file:secrets/client.key}", "not yet"
    found = project.resolved().configuration
    assert found["penstock.kafka.sasl.jaas.config"] == 'Login required username="ada" password="hunter22";'
    assert found["penstock.kafka.ssl.keystore.key"] == KEY.removesuffix("\n")
    assert found["penstock.kafka.sasl.username"] == "broker:9092"
    assert found["literal"] == "${env:CLICKS_PASSWORD} ${spark.master} $${x}"
    assert project.resolved().resolved().configuration == found


def test_what_is_missing_is_one_sentence(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    missing = with_settings(project, penstock_kafka_sasl_password="${env:NOT_THERE}")
    with pytest.raises(PipelineError) as refused:
        missing.resolved()
    line = next(n for n, text in enumerate(project.spec_path.read_text().splitlines(), 1) if "NOT_THERE" in text)
    assert str(refused.value) == (
        f"spark-pipeline.yml:{line}: 'penstock.kafka.sasl.password' needs the environment variable NOT_THERE, "
        "which is not set"
    )
    (project.root / "latin").write_bytes(b"\xff")
    for name, why in (("gone", "cannot be read: No such file"), ("latin", "is not UTF-8"), (".", "Is a directory")):
        with pytest.raises(PipelineError, match=rf"needs the file {re.escape(str(project.root))}.*{why}"):
            with_settings(project, some_name=f"${{file:{name}}}").resolved()
        project.spec_path.write_text(re.sub(r"  some\.name.*\n", "", project.spec_path.read_text()))


def test_references_are_for_values_of_the_configuration(project: PipelineProject) -> None:
    text = project.spec_path.read_text()
    project.spec_path.write_text(text.replace("storage: storage", "storage: ${env:PLACE}"))
    with pytest.raises(DefinitionError, match=r"'storage' is .*: only values of configuration can have references"):
        PipelineProject.load(project.spec_path)
    project.spec_path.write_text(text)
    project = with_settings(project, spark_master="${env:NO_MASTER}")
    with pytest.raises(PipelineError, match=r"'spark\.master' needs the environment variable NO_MASTER"):
        project.resolved()


def test_a_master_is_checked_when_it_is_known(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER", "foo")
    with pytest.raises(DefinitionError, match=r"'spark\.master' is 'foo', not a Spark master"):
        with_settings(project, spark_master="${env:MASTER}").resolved()


def test_what_is_secret(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"P": "hunter22", "T": "orders", "A": "key-of-api", "AB": "ab"}.items():
        monkeypatch.setenv(name, value)
    project = with_settings(
        project,
        penstock_kafka_sasl_password="${env:P}",
        penstock_kafka_ssl_key_password="literal-one",
        penstock_kafka_client_id="${env:T}",
        my_api="${env:A}",
        short="${env:AB}",
    )
    secrets = project.resolved().secrets
    text = "hunter22 literal-one orders key-of-api ab"
    assert secrets.hide(text) == f"{HIDDEN} {HIDDEN} orders {HIDDEN} ab"
    assert secrets.hide_all({"a": ["hunter22", 1, None], "b": ("x",)}) == {"a": [HIDDEN, 1, None], "b": ["x"]}
    monkeypatch.setenv("P", "hunter33")
    assert project.resolved().secrets.hide("hunter22 hunter33") == f"{HIDDEN} {HIDDEN}", "former ones, too"


def test_a_key_is_hidden_line_by_line_and_a_login_by_its_password() -> None:
    secrets = Secrets()
    secrets.note("key", KEY)
    secrets.note("login", "Module username='ada' password='hunter22' x='y';")
    printed = KEY.replace("\n", "\\n") + " hunter22"
    assert "bm90IGEga2V5" not in secrets.hide(printed)
    assert "bG9uZyBhcyBh" not in secrets.hide(printed)
    assert "hunter22" not in secrets.hide(printed)


def test_names() -> None:
    for name in (
        "kafka.sasl.jaas.config", "kafka.sasl.password", "kafka.ssl.keystore.key", "kafka.ssl.key.pem",
        "kafka.ssl.keystore.certificate.chain", "spark.hadoop.fs.s3a.secret.key", "kafka.ssl.key.password",
        "schemaRegistry",
    ):  # fmt: skip
        assert is_secret_name(name), name
    for name in ("kafka.bootstrap.servers", "subscribe", "kafka.ssl.truststore.location", "kafka.sasl.mechanism"):
        assert not is_secret_name(name), name
    assert has_reference("a ${env:B}")
    assert not has_reference("$${env:B} ${spark.x} $x {env:B}")


def redacted(pattern: str, name: str) -> bool:
    """As Spark does it: the pattern may be found anywhere in the name."""
    return re.search(pattern, name) is not None


def test_spark_is_told_names_and_values(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "key.of+api")
    monkeypatch.setenv("S", "s3-secret-key")
    project = with_settings(
        project,
        my_api="${env:A}",
        penstock_kafka_ssl_key_pem=KEY,
        spark_hadoop_fs_account_x="${env:S}",
        spark_redaction_regex="(?i)theirs",
    ).resolved()
    engine = PipelineEngine(project)
    settings = engine.graph_settings()
    options = settings["spark.sql.redaction.options.regex"]
    for name in ("url", "my.api", "kafka.ssl.key.pem", "KAFKA.SASL.JAAS.CONFIG", "spark.sql.redaction.string.regex"):
        assert redacted(options, name), name
    assert not redacted(options, "subscribe")
    printed = "x=key.of+api, keyXofYapi " + KEY.replace("\n", "\\n")
    text = re.sub(settings["spark.sql.redaction.string.regex"], HIDDEN, printed)
    assert text.startswith(f"x={HIDDEN}, keyXofYapi -----BEGIN")
    assert "bm90" not in text
    static = engine._static()
    for name in ("theirs", "my.api", "spark.sql.redaction.string.regex"):
        assert redacted(static["spark.redaction.regex"], name), name
    assert engine._static_secrets() == {"spark.hadoop.fs.account.x": "s3-secret-key"}
    assert "s3-secret-key" not in str(static), "these are seen by everybody in the list of processes"


def test_nothing_written_has_them(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter22")
    monkeypatch.chdir(tmp_path)
    project = with_settings(project, penstock_kafka_sasl_password="${env:PASSWORD}")
    words: Any = {}

    def start(*arguments: object, **options: Any) -> Any:
        words.update(options)
        os.write(1, b"the password is hunter22\n")
        raise RuntimeError("hunter22 is wrong")

    monkeypatch.setattr(engine_module, "session", start)
    monkeypatch.setattr("penstock.cli.pipeline.command._look_for_broker", lambda project: None)
    ran = CommandLine(monkeypatch, capsys)("pipeline", "run", "--project", str(project.root))
    assert ran.code == 1
    assert f"Spark did not start: {HIDDEN} is wrong" in ran.err
    assert f"the password is {HIDDEN}" in ran.err, "the last words of Spark's log"
    assert "hunter22" not in ran.out + ran.err
    assert "hunter22" not in str(words["config"])
    project = project.resolved()
    status = StatusFile(project, "run")
    status.take(FlowProgress("events", FlowState.FAILED, error="SASL: hunter22"))
    status.end("failed", "why hunter22")
    with PipelineEngine(project).quiet():
        print("my password is hunter22")
    engine_module.LinesToLog(project).emit(logging.makeLogRecord({"msg": "hunter22"}))
    for file in (path for path in project.state.rglob("*") if path != project.log_path and path.is_file()):
        assert "hunter22" not in file.read_text(), file
    assert project.log_path.read_text().splitlines()[-2:] == [f"my password is {HIDDEN}", HIDDEN]


def test_status_without_the_secret_still_shows_what_is_on_disk(project: PipelineProject) -> None:
    project = with_settings(project, penstock_kafka_sasl_password="${env:NOT_HERE}")
    StatusFile(project, "run").take(FlowProgress("events", FlowState.COMPLETED, rows_read=5))
    found = pipeline_status(project, 0.2)
    assert found.flows[0].rows_read == 5
    (problem,) = found.problems
    assert problem.startswith("the lag is unknown: spark-pipeline.yml:")
    assert problem.endswith("needs the environment variable NOT_HERE, which is not set")


class Conf:
    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.is_gone = False

    def set(self, name: str, value: str) -> None:
        if self.is_gone:
            raise PySparkException("Connection refused")
        self.settings[name] = value


def test_a_file_that_is_replaced_counts_from_the_next_run_on(project: PipelineProject) -> None:
    file = project.root / "password"
    file.write_text("hunter22\n")
    engine = PipelineEngine(with_settings(project, penstock_kafka_sasl_password="${file:password}").resolved())
    conf = Conf()
    engine._session, engine._given = SimpleNamespace(conf=conf), engine.graph_settings()
    assert not engine.renew_settings()
    assert conf.settings == {}
    file.write_text("hunter33\n")
    conf.is_gone = True
    with pytest.raises(PipelineError, match=r"Spark does not take .*: Connection refused"):
        engine.renew_settings()
    conf.is_gone = False
    assert engine.renew_settings()
    assert conf.settings["penstock.kafka.sasl.password"] == "hunter33"
    assert engine.project.client_options["kafka.sasl.password"] == "hunter33"
    assert set(conf.settings) == {"penstock.kafka.sasl.password", "spark.sql.redaction.string.regex"}
    file.unlink()
    with pytest.raises(PipelineError, match="needs the file"):
        engine.renew_settings()
    assert engine.project.client_options["kafka.sasl.password"] == "hunter33"
