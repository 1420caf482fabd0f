"""The command line in this process: what `main` prints and the code it ends with."""

from __future__ import annotations

import io
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
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, said.out, said.err)
