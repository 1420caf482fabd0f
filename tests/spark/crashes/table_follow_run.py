"""Topics followed into tables, while the follower, a compaction and the broker are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from table_input import CLICKS, KEYED, Input, change, click, click_or_bad, is_bad, newest
from table_kills import Kills, Victim, wait_for

from penstock.tables import Table
from support.processes.broker import BrokerProcess

DECK = [Victim.FOLLOWER, Victim.COMPACTION, Victim.FOLLOWER, Victim.BROKER, Victim.FOLLOWER]
MOST_OF_A_COMPACTION_S = 1.5
CONFIG = """
commit-interval = "50ms"
keep = "2s"

[{clicks}]
to = "{place}/clicks"
mode = "json"
schema = "id long, kind string"

[{keyed}]
to = "{place}/keyed"
key = ["key"]
"""


class FollowRun:
    def __init__(self, directory: Path, broker: BrokerProcess, kills: Kills, seed: int) -> None:
        self._directory = directory
        self._broker = broker
        self._kills = kills
        self._chance = random.Random(seed)
        self._clicks, self._keyed = directory / CLICKS, directory / KEYED
        self._log = directory / "follow.log"
        self._config = directory / "tables.toml"
        self._config.write_text(CONFIG.format(place=directory, clicks=CLICKS, keyed=KEYED))
        self._follower: subprocess.Popen[bytes] | None = None

    def run(self, wanted: int) -> None:
        """Makes so many kills. The tables have what was acknowledged in the end, or it raises AssertionError."""
        with Input(self._broker.bootstrap_servers, lambda number: [click_or_bad(number), change(number)]) as sending:
            try:
                while self._kills.total < wanted:
                    self._kill(DECK[self._kills.total % len(DECK)])
                    print(f"{self._kills.total} of {wanted} kills", flush=True)
                count = sending.finish()
            finally:
                if self._follower is not None:
                    self._end(self._follower)
        ended = self._penstock("follow", "--config", str(self._config), "--once", *self._servers())
        assert ended.wait(120) == 0, self._said()
        self._judge(count)

    def _kill(self, victim: Victim) -> None:
        follower = self._following()
        before = self._versions()
        wait_for(lambda: self._has_moved(before), "the tables move on", self._said)
        if victim is Victim.COMPACTION:
            self._kill_compaction()
            return
        moment, seen = self._kills.moment([self._clicks, self._keyed])
        if victim is Victim.BROKER:
            self._kills.make(victim, [], moment)
            self._broker.kill()
            self._broker.start()
            return
        self._kills.make(victim, [follower.pid], moment)
        follower.wait()
        self._kills.note_files(seen)

    def _kill_compaction(self) -> None:
        """Beside the follower. It imports for a while, so many of these kills come before its first file."""
        place = self._chance.choice((self._clicks, self._keyed))
        process = self._penstock("compact", str(place), "--thorough")
        deadline = time.monotonic() + MOST_OF_A_COMPACTION_S
        while time.monotonic() < deadline and process.poll() is None and not writes_to(process.pid, place):
            time.sleep(0.001)
        time.sleep(self._chance.random() * 0.02)
        moment = "in mid-commit" if writes_to(process.pid, place) else "at random"
        self._kills.make(Victim.COMPACTION, [process.pid], moment)
        process.wait()

    def _has_moved(self, before: list[int]) -> bool:
        self._following()
        return all(now > then for now, then in zip(self._versions(), before, strict=True))

    def _versions(self) -> list[int]:
        return [newest_version(place) for place in (self._clicks, self._keyed)]

    def _following(self) -> subprocess.Popen[bytes]:
        if self._follower is None or self._follower.poll() is not None:
            self._follower = self._penstock("follow", "--config", str(self._config), *self._servers())
        return self._follower

    def _servers(self) -> list[str]:
        return ["--bootstrap-server", self._broker.bootstrap_servers]

    def _penstock(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "penstock.cli", "table", *words]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def _judge(self, count: int) -> None:
        rows = Table.open(self._clicks).at().arrow().select(["id", "kind", "_partition", "_offset"]).to_pylist()
        wanted = [number for number in range(count) if not is_bad(number)]
        found = Counter((row["id"], row["kind"]) for row in rows)
        assert found == Counter((number, click_kind(number)) for number in wanted)
        dead = Table.open(self._clicks / "_dead_letters").at().arrow().column("value").to_pylist()
        assert Counter(dead) == Counter(f"no JSON {number}".encode() for number in range(count) if is_bad(number))
        changed = Table.open(self._keyed).at().arrow().select(["key", "value"]).to_pylist()
        assert {row["key"].decode(): row["value"].decode() for row in changed} == newest(count)
        assert len(changed) == len(newest(count))

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def click_kind(number: int) -> str:
    value = click(number).value
    assert value is not None
    return value.rpartition('"kind": "')[2].rstrip('"}')


def writes_to(pid: int, place: Path) -> bool:
    """Whether it has a file of this table open."""
    try:
        return any(os.readlink(one).startswith(f"{place}/") for one in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it or the file is gone
        return False


def newest_version(table: Path) -> int:
    """-1 if there is none."""
    return max((int(entry.stem) for entry in table.glob("_delta_log/[0-9]*.json")), default=-1)
