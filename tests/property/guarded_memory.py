"""Memory that ends where a process may read: a read out of bounds kills it, and does not go unnoticed."""

from __future__ import annotations

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE


class Guarded:
    """A copy of `data` between two pages that must not be touched, as close as it goes to one of them."""

    def __init__(self, data: bytes, *, at_the_end: bool) -> None:
        room = -(-max(len(data), 1) // PAGE) * PAGE
        self._memory = mmap.mmap(-1, room + 2 * PAGE)
        begin = PAGE + (room - len(data) if at_the_end else 0)
        self._memory[begin : begin + len(data)] = data
        self.view = memoryview(self._memory)[begin : begin + len(data)]
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for page in (address, address + PAGE + room):
            assert protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0, os.strerror(ctypes.get_errno())
