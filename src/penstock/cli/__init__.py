"""The `penstock` command (also installed as `streaming-system`).

Almost nothing is imported here, so that Ctrl-C is handled during the imports, too.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as in shells


def main() -> None:
    try:
        from penstock.cli.commands import run

        code = run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
