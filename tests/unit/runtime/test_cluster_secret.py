"""The file of the cluster's secret: made once, readable by its owner alone, and never shown in an error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.model.errors import ConfigError
from penstock.runtime.clock import SystemEntropy
from penstock.runtime.cluster_secret import (
    CLUSTER_SECRET,
    new_secret,
    parse_secrets,
    read_secrets,
    secrets_of_node,
    write_secrets,
)
from penstock.runtime.data_directory import DataDirectory

ENTROPY = SystemEntropy()


def of_node(directory: Path, named: Path | None = None, *, is_clustered: bool = False) -> tuple[bytes, ...]:
    name = None if named is None else str(named)
    return secrets_of_node(str(directory), name, ENTROPY, is_clustered=is_clustered)


def test_a_lone_node_makes_its_own_and_keeps_it(tmp_path: Path) -> None:
    [secret] = of_node(tmp_path)
    assert len(secret) == 32
    assert of_node(tmp_path) == (secret,)
    assert stat.S_IMODE((tmp_path / CLUSTER_SECRET).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [CLUSTER_SECRET]
    assert of_node(tmp_path, is_clustered=True) == (secret,), "as when it becomes the first of three"


def test_two_nodes_make_different_ones(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert of_node(tmp_path / "a") != of_node(tmp_path / "b")


def test_one_of_several_must_be_given_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no cluster secret: put the file .*penstock cluster secret --new"):
        of_node(tmp_path, is_clustered=True)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="has no cluster secret"):
        DataDirectory.open(str(tmp_path / "data"), 1, None, ENTROPY, is_joining=True)


def test_a_file_that_is_named_counts_and_must_be_there(tmp_path: Path) -> None:
    named = tmp_path / "shared"
    with pytest.raises(ConfigError, match="there is no "):
        of_node(tmp_path, named)
    write_secrets(str(named), new_secret(ENTROPY))
    assert of_node(tmp_path, named, is_clustered=True) == read_secrets(str(named))
    assert not (tmp_path / CLUSTER_SECRET).exists()


def test_the_first_is_shown_and_all_are_accepted(tmp_path: Path) -> None:
    new, old = new_secret(ENTROPY), new_secret(ENTROPY)
    found = parse_secrets(f"# since monday\n{new}\n\n{old}\n", "file")
    assert found == (*parse_secrets(new, "file"), *parse_secrets(old, "file"))


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    of_node(tmp_path)
    (tmp_path / CLUSTER_SECRET).chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others: run chmod 600"):
        of_node(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "password", "x" * 43 + "!", "a\n" * 5, "\xe4", "A" * 5000])
def test_what_is_no_secret_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    path = tmp_path / CLUSTER_SECRET
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        of_node(tmp_path)
    assert "password" not in str(refused.value)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    write_secrets(path, new_secret(ENTROPY))
    before = read_secrets(path)
    with pytest.raises(ConfigError, match="exists already"):
        write_secrets(path, new_secret(ENTROPY))
    assert read_secrets(path) == before
    assert os.listdir(tmp_path) == ["s"]
