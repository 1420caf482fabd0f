"""A process with some members of a consumer group: confluent-kafka with only address and group set.

The members report each change of their partitions with the time of the machine's monotonic clock, which all processes
share. They join and leave on command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from bench.load.client import HOST

PAUSE_S = 0.005
READY = "ready"


@dataclass(frozen=True, slots=True)
class Membership:
    port: int
    group: str
    topic: str
    protocol: str

    @property
    def settings(self) -> dict[str, str]:
        named = {"bootstrap.servers": f"{HOST}:{self.port}", "group.id": self.group}
        # The client's default is the classic protocol; naming it would be a setting.
        return named if self.protocol == "classic" else named | {"group.protocol": self.protocol}


class Held(NamedTuple):
    """A member's partitions from this moment on."""

    at: float
    member: int
    partitions: frozenset[int]


class Join(NamedTuple):
    pass


class Leave(NamedTuple):
    members: frozenset[int]


class End(NamedTuple):
    pass


class _Member:
    def __init__(self, number: int, membership: Membership) -> None:
        self.number = number
        self._consumer = Consumer(membership.settings)
        self._has_news = False
        notice = self._noticing()
        self._consumer.subscribe([membership.topic], on_assign=notice, on_revoke=notice, on_lost=notice)

    def _noticing(self) -> Callable[[Consumer, list[TopicPartition]], None]:
        def notice(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._has_news = True  # the assignment is in force when `poll` returns

        return notice

    def poll(self) -> Held | None:
        message = self._consumer.poll(0)
        error = message.error() if message is not None else None
        if error is not None and error.fatal():
            raise RuntimeError(f"member {self.number}: {error}")
        if not self._has_news:
            return None
        self._has_news = False
        return Held(time.monotonic(), self.number, frozenset(one.partition for one in self._consumer.assignment()))

    def close(self) -> None:
        self._consumer.close()


def _close(members: Sequence[_Member]) -> list[Thread]:
    """All at once: closing waits for answers."""
    threads = [Thread(target=member.close) for member in members]
    for thread in threads:
        thread.start()
    return threads


def serve(pipe: Connection, membership: Membership, numbers: Sequence[int]) -> None:
    """Runs the process until the command to end."""
    members: list[_Member] = []
    closing: list[Thread] = []
    pipe.send(READY)
    while True:
        while pipe.poll():
            match pipe.recv():
                case Join():
                    members = [_Member(number, membership) for number in numbers]
                case Leave(leaving):
                    closing += _close([member for member in members if member.number in leaving])
                    members = [member for member in members if member.number not in leaving]
                case End():
                    for thread in closing + _close(members):
                        thread.join()
                    return
        for member in members:
            held = member.poll()
            if held is not None:
                pipe.send(held)
        time.sleep(PAUSE_S)
