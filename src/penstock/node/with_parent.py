"""`python with_parent.py PARENT PROGRAM ...`: becomes the program, which gets SIGTERM when its parent ends.

For the kernel the parent is the thread that started this process. Run as a file and without site, to start fast.
Calling prctl between fork and exec would be shorter, but Python may hang after the fork of a process with threads.
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
    if os.getppid() == parent:  # if not, the parent ended before the call
        os.execv(program[0], program)


if __name__ == "__main__":
    main()
