"""Asks the operating system to run the event loop's thread soon after input has arrived.

Linux 6.12 and later let a thread ask for short time slices. Such a thread gets no more processor time than others, but
gets it sooner: it need not wait until a worker process on the same processor has used up a slice of some milliseconds.
Older kernels, and other systems, ignore the request; nothing depends on it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

SLICE_NS: Final = 100_000
"""The shortest that Linux grants."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355}
_SCHED_OTHER: Final = 0
_RESET_ON_FORK: Final = 1
"""Threads and processes that this thread starts get ordinary slices."""
_ATTR: Final = struct.Struct("<IIQiIQQQ")


def ask_for_short_slices(slice_ns: int = SLICE_NS) -> bool:
    """For the calling thread. Returns whether the kernel accepted the request."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or sys.byteorder != "little" or number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTR.pack(_ATTR.size, _SCHED_OTHER, _RESET_ON_FORK, nice, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, wanted, 0) == 0)
