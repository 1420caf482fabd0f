"""A process in which `penstock pipeline` commands find Spark running already: one JVM for many of them.

Spark Connect and an ordinary session do not go together in one process, so the tests' own cannot be this one. Commands
come as lines of JSON, a list of words each; the answer is a line with the exit code and what was printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from support.processes.command_line import Ran


class WarmCommandLine:
    """`penstock` in such a process; the engine is that of the project in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # tests' modules, too
            text=True,
        )

    def __call__(self, *words: str) -> Ran:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(words)}\n")
        self._process.stdin.flush()
        return Ran(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def __enter__(self) -> WarmCommandLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def ran(words: list[str]) -> list[Any]:
    from penstock.cli import main

    sys.argv = ["penstock", *words]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return [code, out.getvalue(), err.getvalue()]


def drive(directory: Path) -> None:
    from penstock.spark.pipeline import engine
    from penstock.spark.pipeline.project import PipelineProject

    real = engine.PipelineEngine
    with real(PipelineProject.find(directory), master="local[2,4]", fast_start=True) as warm:

        class Borrowed:
            def __init__(self, project: PipelineProject, **options: object) -> None:
                warm.project = project

            def __enter__(self) -> Any:
                return warm

            def __exit__(self, *error: object) -> None:
                pass

        engine.PipelineEngine = Borrowed  # type: ignore[assignment, misc]
        answers = sys.stdout
        for line in sys.stdin:
            answers.write(f"{json.dumps(ran(json.loads(line)))}\n")
            answers.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    drive(Path(sys.argv[1]))
