"""The command line in this process: what `main` prints and the code it ends with."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import dataclass

import pytest

from penstock.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        assert self.code == 0, self.err
        return self.out.splitlines()


class CommandLine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, stdin: bytes = b"", name: str = "streaming-system") -> Ran:
        self._monkeypatch.setattr(sys, "argv", [name, *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        self._capsys.readouterr()
        loggers = [logging.getLogger(), logging.getLogger("penstock")]
        before = [(list(logger.handlers), logger.level) for logger in loggers]
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            # What it set up writes to this test's standard error, which is closed for the next one.
            for logger, (handlers, level) in zip(loggers, before, strict=True):
                logger.handlers[:] = handlers
                logger.setLevel(level)
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err, said.err
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, said.out, said.err)
