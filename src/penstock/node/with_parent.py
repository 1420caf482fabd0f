"""`python with_parent.py PARENT PROGRAM ...`: becomes the program, which is told to stop when its parent is no more.

The kernel counts as parent the thread that started this process. Run as a file and without site: it must cost next to
nothing. Asking between fork and exec would be shorter, but Python in a fork of a process with threads may hang.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:  # else it was gone before we asked
        os.execv(program[0], program)


if __name__ == "__main__":
    main()
