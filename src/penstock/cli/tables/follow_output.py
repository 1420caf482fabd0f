"""What following topics says: lines for people, or facts at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.topic_tables.progress import FollowProgress

SHOW_S = 2.0


class Output:
    """Lines for people, or one JSON object at the end."""

    def __init__(self, as_json: bool, prefix: str = "") -> None:
        self._as_json = as_json
        self._prefix = prefix
        self._shown_at = time.monotonic()

    def say(self, line: str) -> None:
        if not self._as_json:
            click.echo(f"{self._prefix}{line}")

    def warn(self, line: str) -> None:
        click.echo(f"penstock: {self._prefix}{line}", err=True)

    def watch(self, progress: FollowProgress) -> None:
        if progress.commits and time.monotonic() - self._shown_at >= SHOW_S:
            self._shown_at = time.monotonic()
            self.say(f"  {_described(progress)}, lag {progress.lag}")

    def of(self, topic: str) -> Output:
        """For one of several topics."""
        return Output(self._as_json, f"{topic}: ")

    def end(self, progress: FollowProgress, dead_letters: str, *, is_stopped: bool) -> None:
        commits = f"{progress.commits} commit{'s' * (progress.commits != 1)}"
        line = f"{'Stopped' if is_stopped else 'Done'}: {_described(progress)}, in {commits}"
        if progress.dead_letters:
            line += f"; {progress.dead_letters} dead letters in {dead_letters}"
        self.say(f"{line}; the table is at version {progress.version}")


def _described(progress: FollowProgress) -> str:
    megabytes_per_s = progress.size_bytes / 1e6 / max(progress.seconds, 1e-9)
    return f"{progress.records} records, {progress.records_per_s:.0f} per second ({megabytes_per_s:.1f} MB/s)"


def facts(progress: FollowProgress) -> Mapping[str, Any]:
    return {
        "topic": progress.topic,
        "table": progress.directory,
        "version": progress.version,
        "records": progress.records,
        "bytes": progress.size_bytes,
        "seconds": round(progress.seconds, 3),
        "records_per_s": round(progress.records_per_s, 1),
        "commits": progress.commits,
        "tombstones": progress.tombstones,
        "evolutions": progress.evolutions,
        "dead_letters": progress.dead_letters,
        "lost": progress.lost,
        "lag": progress.lag,
        "positions": {str(partition): offset for partition, offset in sorted(progress.positions.items())},
    }
