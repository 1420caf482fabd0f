"""The broker under attack, with its log lines and its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import Penstock, free_ports
from bench.load.client import HOST

SAMPLE_S = 0.05


class Victim(Penstock):
    def __init__(self, home: Path, settings: Mapping[str, str], descriptors: int | None) -> None:
        super().__init__(home)
        self._descriptors = descriptors
        self.http_port, self.line_port = free_ports(2)
        more = {
            "penstock.http.listener": f"{HOST}:{self.http_port}",
            "penstock.line.listener": f"{HOST}:{self.line_port}",
            **settings,
        }
        lines = "".join(f"{name}={value}\n" for name, value in more.items())
        self.properties.write_text(self.properties.read_text() + lines)

    def command(self) -> list[str]:
        if self._descriptors is None:
            return super().command()
        return ["sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "sh", *super().command()]

    def lines(self) -> int:
        return len(self.log.read_text(errors="replace").splitlines())

    def waited_for_cpu_s(self) -> float:
        """How long the thread of the loop was ready to run and did not, since the start."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    @contextmanager
    def peak_of_memory(self) -> Iterator[list[float]]:
        """Megabytes at the beginning, at most, and at the end."""
        numbers = [self.rss_mb()] * 3
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                numbers[1] = max(numbers[1], self.rss_mb())

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield numbers
        finally:
            ended.set()
            thread.join()
            numbers[2] = self.rss_mb()
            numbers[1] = max(numbers)
