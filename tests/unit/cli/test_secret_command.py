"""penstock cluster secret, penstock start --join: the secret on its way to a new node."""

from __future__ import annotations

import stat
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.cluster.secret import join
from penstock.cli.commands import penstock
from penstock.config.broker import BrokerConfig
from penstock.model.errors import ConfigError
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import new_secret, read_secrets
from penstock.testing import Broker

JOINING = {"controller.quorum.bootstrap.servers": "elsewhere:9092", "node.id": "4"}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(penstock, ["cluster", "secret", *arguments])


def test_a_new_one_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    done = invoke("--new", str(path))
    assert (done.exit_code, done.stdout) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"wrote {path}" in done.stderr
    again = invoke("--new", str(path))
    assert again.exit_code != 0
    assert invoke("--new", str(path), "--data", str(tmp_path)).exit_code != 0


def test_that_of_a_node_goes_to_another(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "one"):
        pass
    printed = invoke("--data", str(tmp_path / "one"))
    assert printed.exit_code == 0
    handed = tmp_path / "handed"
    handed.write_text(printed.stdout)
    config, _ = BrokerConfig.load(None, {**JOINING, "log.dirs": str(tmp_path / "two")})
    for _ in range(2):  # whoever types it again
        join(config, str(handed))
    assert read_secrets(str(tmp_path / "two" / "cluster.secret")) == read_secrets(str(tmp_path / "one/cluster.secret"))
    handed.write_text("A" * 43)
    with pytest.raises(ConfigError, match="holds another secret"):
        join(config, str(handed))


def test_where_there_is_none_it_says_where_it_looked(tmp_path: Path) -> None:
    result = invoke("--data", str(tmp_path))
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"node.id": "1"}, "--join is for a node that joins a cluster"),
        ({**JOINING, "penstock.cluster.secret.file": "/elsewhere"}, "not both"),
        (JOINING, "cannot read"),
    ],
)
def test_what_cannot_be_joined(tmp_path: Path, settings: dict[str, str], sentence: str) -> None:
    config, _ = BrokerConfig.load(None, {**settings, "log.dirs": str(tmp_path / "data")})
    with pytest.raises(ConfigError, match=sentence):
        join(config, str(tmp_path / "missing"))


def test_the_secret_itself_is_no_argument(tmp_path: Path) -> None:
    """`ps` would show it. Nor is it repeated in the sentence, which ends up in logs."""
    secret = new_secret(SystemEntropy())
    config, _ = BrokerConfig.load(None, {**JOINING, "log.dirs": str(tmp_path / "data")})
    with pytest.raises(ConfigError, match="--join takes a file, not the secret itself") as refused:
        join(config, secret)
    assert "--join -" in str(refused.value)
    assert secret not in str(refused.value)
    assert not (tmp_path / "data").exists()


def test_a_file_whose_name_looks_like_a_secret_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = new_secret(SystemEntropy())
    Path(name).write_text("A" * 43)
    config, _ = BrokerConfig.load(None, {**JOINING, "log.dirs": str(tmp_path / "data")})
    join(config, name)
    assert read_secrets(str(tmp_path / "data" / "cluster.secret")) == (bytes(32),)


def test_standard_input_is_joined_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("A" * 43 + "\n"))
    config, _ = BrokerConfig.load(None, {**JOINING, "log.dirs": str(tmp_path / "data")})
    join(config, "-")
    assert read_secrets(str(tmp_path / "data" / "cluster.secret")) == (bytes(32),)
