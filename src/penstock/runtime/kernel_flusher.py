"""Group commit's fdatasync by Linux' asynchronous I/O, without a thread.

A thread that returns from fdatasync must take the interpreter's lock from the loop, three times a flush: measured, a
flush of a busy broker cost twice the CPU, and its answers took twice as long. Here the loop submits, a kernel worker
syncs, and an eventfd wakes the loop. This needs Linux 4.18, and works for every file system that can sync files.

Only the common job goes this way: one file and no directory. Everything else, and everything that the kernel refuses,
goes to the threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import platform
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.runtime.flusher import OnStable, Outcomes, ThreadFlusher

if TYPE_CHECKING:
    from penstock.ports.disk import Disk, File

log = logging.getLogger(__name__)

IN_FLIGHT_LIMIT = 1024  # of the machine's fs.aio-max-nr, usually 65,536
EVENTS_AT_ONCE = 64
FDSYNC = 3  # IOCB_CMD_FDSYNC
TELL_EVENTFD = 1  # IOCB_FLAG_RESFD

# struct iocb, struct io_event; the second pair of fields of an iocb is in little-endian order
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")


class _Calls(NamedTuple):
    """Numbers of the system calls; the C library has no functions for them."""

    setup: int
    destroy: int
    submit: int
    get_events: int


_X86_64 = _Calls(setup=206, destroy=207, submit=209, get_events=208)
_GENERIC = _Calls(setup=0, destroy=1, submit=2, get_events=4)
_CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}


class KernelAio:
    """A context of Linux' asynchronous I/O, for fdatasync only. Raises OSError if the kernel does not support it."""

    def __init__(self) -> None:
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
        if calls is None or ctypes.sizeof(ctypes.c_void_p) != 8:
            raise OSError(errno.ENOSYS, "no asynchronous fdatasync on this platform")
        self._calls = calls
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        self._check(self._syscall(calls.setup, IN_FLIGHT_LIMIT, ctypes.byref(context)))
        self._context = context
        self._control = ctypes.create_string_buffer(_IOCB.size)  # the kernel copies it at submission
        self._controls = (ctypes.c_void_p * 1)(ctypes.addressof(self._control))
        self._events = ctypes.create_string_buffer(_EVENT.size * EVENTS_AT_ONCE)
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @staticmethod
    def _check(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def fdatasync(self, fd: int, key: int) -> None:
        """Submit a sync; `done` returns `key` when it has ended. Raises OSError if it cannot be submitted."""
        _IOCB.pack_into(self._control, 0, key, 0, 0, FDSYNC, 0, fd, 0, 0, 0, 0, TELL_EVENTFD, self.eventfd)
        self._check(self._syscall(self._calls.submit, self._context, 1, self._controls))

    def done(self) -> list[tuple[int, int]]:
        """(key, error number or 0) of the syncs that ended since the last call."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return []
        ended: list[tuple[int, int]] = []
        while True:
            try:
                count = self._check(
                    self._syscall(self._calls.get_events, self._context, 0, EVENTS_AT_ONCE, self._events, None)
                )
            except InterruptedError:
                return ended  # raised only when there is nothing left
            for number in range(count):
                key, _, result, _ = _EVENT.unpack_from(self._events, number * _EVENT.size)
                ended.append((key, -result))
            if count < EVENTS_AT_ONCE:
                return ended

    def close(self) -> None:
        """Waits for syncs under way."""
        self._syscall(self._calls.destroy, self._context)
        os.close(self.eventfd)


class KernelFlusher:
    def __init__(self, loop: asyncio.AbstractEventLoop, aio: KernelAio, threads: ThreadFlusher) -> None:
        self._loop = loop
        self._aio = aio
        self._threads = threads
        self._outcomes = Outcomes(loop)
        self._is_refused = False
        self._next_key = 0
        self._under_way: dict[int, tuple[File, OnStable]] = {}  # files stay open until their flush has ended
        loop.add_reader(aio.eventfd, self._ended)

    def flush(self, files: Sequence[File], directories: Sequence[str], on_stable: OnStable) -> None:
        if self._is_refused or directories or len(files) != 1 or len(self._under_way) >= IN_FLIGHT_LIMIT:
            self._threads.flush(files, directories, on_stable)
            return
        [file] = files
        key = self._next_key
        self._next_key = key + 1
        try:
            self._aio.fdatasync(file.fileno(), key)
        except OSError as error:
            if error.errno != errno.EAGAIN:  # unsupported here, now and later
                self._is_refused = True
                log.info("the kernel refused asynchronous fdatasync (%s): threads flush from now on", error)
            self._threads.flush(files, directories, on_stable)
            return
        self._under_way[key] = (file, on_stable)

    def _ended(self) -> None:
        for key, code in self._aio.done():
            file, on_stable = self._under_way.pop(key)
            self._outcomes.add(on_stable, OSError(code, os.strerror(code), file.path) if code else None)
        self._outcomes.tell()

    def close(self) -> None:
        self._loop.remove_reader(self._aio.eventfd)
        self._aio.close()
        self._threads.close()


def open_flusher(loop: asyncio.AbstractEventLoop, disk: Disk, threads: int) -> KernelFlusher | ThreadFlusher:
    """The kernel flusher if supported, else threads."""
    by_threads = ThreadFlusher(loop, disk, threads)
    try:
        aio = KernelAio()
    except OSError as error:
        log.info("files are flushed by threads: %s", error)
        return by_threads
    return KernelFlusher(loop, aio, by_threads)
