"""The committed message modules are what the generator writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "src" / "penstock" / "wire" / "messages"


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "generate_messages.py"), str(tmp_path)], check=True)
    written = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    committed = {path.name: path.read_text() for path in COMMITTED.glob("*.py")}
    assert written.keys() == committed.keys()
    assert [name for name in written if written[name] != committed[name]] == []
