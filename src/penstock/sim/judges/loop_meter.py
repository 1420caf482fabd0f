"""Meters a broker's disk operations on its own loop: they cost virtual time, and a long turn is a violation.

Workers and flushers may wait for a disk, the loop may not: while it waits, no heartbeat leaves and no client is served.
The simulated disk is slow but healthy. Logs in a history are a thousandth of real ones or less, so reading them takes
the time of BYTES_STAND_FOR times as many bytes; a name or a sync takes its normal time. Bytes sent to a socket from a
file (sendfile) are not work of the loop. A broker that starts or stops may wait: no client counts on it.
Must not know: what is read, and why. Invariant: metering changes only the time of the next turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple

from penstock.sim.judges.history import Violation
from penstock.sim.judges.judging import Judging
from penstock.sim.machine.disk import SimDisk, SimFile
from penstock.sim.machine.loop import SimLoop
from penstock.sim.machine.process import SimProcess, current_process
from penstock.sim.places import replaced

LIMIT_S = 0.1
CHECKSUMS = "checksums of"
BYTES_STAND_FOR = 100
READ_S_PER_BYTE = 11e-9 * BYTES_STAND_FOR
"""A reader also walks the bytes and verifies checksums: 11 ms per megabyte."""
SEGMENT_S = 1.0
"""Checking a whole segment: segments are small here, but a hundred megabytes and more in production."""
COLD_S = 0.008
SYNC_S = 0.015
NAME_S = 0.001
FILE = "penstock.sim.machine.disk:SimFile"
DISK = "penstock.sim.machine.disk:SimDisk"
OWN = ("penstock.sim", "penstock.storage.log_disk", "contextlib", "functools")


class Work(NamedTuple):
    what: str
    path: str
    takes_s: float
    where: str


class LoopMeter:
    def __init__(self, loop: SimLoop, judging: Judging, is_counted_on: Callable[[SimProcess], bool]) -> None:
        """`is_counted_on`: whether the process's broker serves."""
        self._loop = loop
        self._judging = judging
        self._is_counted_on = is_counted_on
        self._elsewhere = 0  # depth of calls in a worker or in the kernel
        self.work: dict[SimProcess, list[Work]] = {}
        """The disk operations of this turn."""
        self.longest: dict[str, float] = {}
        """The longest turn in seconds, by its main cause."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, make in (
                (f"{FILE}.read", self._meter_read),
                (f"{FILE}.read_cached", self._leave_out),
                (f"{FILE}.sync", self._meter_file("sync", SYNC_S)),
                (f"{FILE}.truncate", self._meter_file("truncate", NAME_S)),
                (f"{DISK}.sync_directory", self._meter_sync_directory),
                (f"{DISK}.rename", self._meter_name("rename")),
                (f"{DISK}.remove", self._meter_name("remove")),
                ("penstock.storage.segments.segment:Segment.check_checksums", self._meter_checksums),
                ("penstock.sim.machine.channel:SimChannel._send_part", self._leave_out),
                ("penstock.sim.machine.threads:SimWorkers.run", self._leave_out_work),
            ):
                stack.enter_context(replaced(place, make))
            yield

    def end_turn(self) -> None:
        """Let time pass for the working processes; too much of it is a violation."""
        turn, self.work = self.work, {}
        for process, work in turn.items():
            takes_s = sum(piece.takes_s for piece in work)
            self._loop.keep_busy(process, takes_s)
            worst = max(work, key=lambda piece: piece.takes_s)
            name = f"{worst.what} in {worst.where}"
            self.longest[name] = max(takes_s, self.longest.get(name, 0.0))
            if takes_s > LIMIT_S and process.is_alive and self._is_counted_on(process):
                self._judging.failed(
                    Violation(
                        "the loop never waits",
                        f"a turn of {process.name} takes {takes_s * 1000:.0f} ms: {len(work)} calls of its disk, the "
                        f"longest {worst.what} {worst.path} in {worst.where}",
                    )
                )

    def _spend(self, what: str, path: str, takes_s: float) -> None:
        process = current_process()
        if process is not None and not self._elsewhere:
            where = _place(sys._getframe(2)) if takes_s >= NAME_S else ""
            self.work.setdefault(process, []).append(Work(what, path, takes_s, where))

    # -- what is metered ----------------------------------------------------------------

    def _meter_read(self, read: Any) -> Any:
        def metered(file: SimFile, position: int, size: int) -> bytes:
            data: bytes = read(file, position, size)
            is_cold = file._disk.is_cold
            self._spend("a read of", file.path, len(data) * READ_S_PER_BYTE + (COLD_S if is_cold else 0.0))
            return data

        return metered

    def _meter_checksums(self, check: Any) -> Any:
        def metered(segment: Any, start: int, end: int) -> None:
            self._spend(CHECKSUMS, segment.path, (end - start) / max(segment.size, 1) * SEGMENT_S)
            check(segment, start, end)

        return metered

    def _meter_file(self, what: str, takes_s: float) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def metered(file: SimFile, *args: Any) -> Any:
                self._spend(f"a {what} of", file.path, takes_s)
                return original(file, *args)

            return metered

        return make

    def _meter_sync_directory(self, sync: Any) -> Any:
        def metered(disk: SimDisk, path: str, mark: int | None = None) -> None:
            if mark is None:  # the flusher passes a mark
                self._spend("a sync of", path, SYNC_S)
            sync(disk, path, mark)

        return metered

    def _meter_name(self, what: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def metered(disk: SimDisk, path: str, *args: Any) -> Any:
                self._spend(f"a {what} of", path, NAME_S)
                return original(disk, path, *args)

            return metered

        return make

    # -- what is not --------------------------------------------------------------------

    def _leave_out(self, original: Any) -> Any:
        def left_out(*args: Any) -> Any:
            self._elsewhere += 1
            try:
                return original(*args)
            finally:
                self._elsewhere -= 1

        return left_out

    def _leave_out_work(self, run: Any) -> Any:
        def left_out(workers: Any, work: Callable[[], Any]) -> Any:
            return run(workers, self._leave_out(work))

        return left_out


def _place(frame: FrameType | None) -> str:
    """The innermost caller outside of the simulation."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(OWN):
        frame = frame.f_back
    return "nobody" if frame is None else f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
