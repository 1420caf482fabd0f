"""Members in processes, a producer that goes on all the while, and a watch on committed offsets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

MEMBER = Path(__file__).with_name("group_member.py")
PATIENCE_S = 45.0


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.02)


class Member:
    def __init__(self, library: str, bootstrap: str, group: str, topic: str, *options: str) -> None:
        command = [sys.executable, str(MEMBER), library, bootstrap, group, topic, *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["event"] == kind]

    @property
    def handled(self) -> set[tuple[int, int]]:
        return {(event["partition"], event["offset"]) for event in self.of("record")}

    @property
    def generation(self) -> int:
        records = self.of("record")
        return int(records[-1]["generation"]) if records else -1

    def handled_since(self, at: float) -> set[int]:
        return {event["partition"] for event in self.of("record") if event["at"] >= at}

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def leave(self) -> float:
        """SIGTERM: close() and go; how long close() took."""
        self._process.send_signal(signal.SIGTERM)
        self._end()
        assert self._process.returncode == 0, "".join(self.errors)
        return float(self.of("closed")[0]["took"])

    def _end(self) -> None:
        self._process.wait(30)
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def end_if_running(self) -> None:
        if self._process.poll() is None:
            self.kill()


class Trickle:
    """Produces to every partition in turn, some records a second, until stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, pause_s: float = 0.005) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic, self._partitions, self._pause_s = topic, partitions, pause_s
        self.delivered: set[tuple[int, int]] = set()
        self.failed: list[str] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_stopped.is_set():
            self._producer.produce(
                self._topic, str(number), partition=number % self._partitions, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
            time.sleep(self._pause_s)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.delivered.add((message.partition(), message.offset()))
        else:
            self.failed.append(str(error))

    def stop(self) -> set[tuple[int, int]]:
        self._is_stopped.set()
        self._thread.join()
        assert not self.failed
        return self.delivered


class CommitWatch:
    """Asks for the committed offsets over and over; they must never go back."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._group = group
        self.latest: dict[int, int] = {}
        self.went_back: list[tuple[int, int, int]] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped.wait(0.05):
            asked = [ConsumerGroupTopicPartitions(self._group)]
            found = self._admin.list_consumer_group_offsets(asked)[self._group].result(PATIENCE_S)
            for partition in found.topic_partitions or ():
                before = self.latest.get(partition.partition, -1)
                if partition.offset < before:
                    self.went_back.append((partition.partition, before, partition.offset))
                self.latest[partition.partition] = partition.offset

    def stop(self) -> dict[int, int]:
        self._is_stopped.set()
        self._thread.join()
        assert self.went_back == []
        return self.latest


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)


def owners(members: list[Member], since: float) -> dict[int, int]:
    """Which member (by number) has handled records of which partition since a moment."""
    return {partition: number for number, member in enumerate(members) for partition in member.handled_since(since)}


def wait_until_shared(members: list[Member], partitions: int, shares: list[int] | None = None) -> None:
    """Every partition is read by exactly one member, each by its share, in one generation, for half a second."""

    def is_shared() -> bool:
        since = time.time() - 0.5
        parts = [member.handled_since(since) for member in members]
        sizes = sorted(len(part) for part in parts)
        together = set().union(*parts)
        in_one = len({member.generation for member in members}) == 1
        expected = shares or [partitions // len(members)] * len(members)
        return len(together) == partitions and sizes == sorted(expected) and in_one

    wait_until(is_shared, f"{len(members)} members share {partitions} partitions")


def check_history(members: list[Member], delivered: set[tuple[int, int]]) -> None:
    """Every record handled; none by two members of one generation."""
    handlers: dict[tuple[int, int, int], set[int]] = {}
    for number, member in enumerate(members):
        for event in member.of("record"):
            key = (event["partition"], event["offset"], event["generation"])
            handlers.setdefault(key, set()).add(number)
    shared = [key for key, numbers in handlers.items() if len(numbers) > 1]
    assert shared == [], f"(partition, offset, generation) handled by two members: {shared[:5]}"
    missing = delivered - {key[:2] for key in handlers}
    assert missing == set(), f"{len(missing)} records were handled by nobody: {sorted(missing)[:5]}"
