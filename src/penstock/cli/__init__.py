"""The `penstock` command (also installed as `streaming-system`).

Next to nothing is imported here: Ctrl-C counts from the first moment, and most of that moment is imports.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main() -> None:
    try:
        from penstock.cli.commands import run

        code = run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
