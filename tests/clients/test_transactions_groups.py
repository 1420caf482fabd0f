"""Consume, transform, produce in consumer groups: members are killed, and late ones are refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import pytest
from group_processes import Trickle, create_topic, wait_until
from transactional_clients import LIBRARIES, PATIENCE_S, QUIET, committed_offset, producing, read

from kafka import KafkaConsumer
from support.clients.committed_reader import CommittedReader

MEMBER = Path(__file__).with_name("copying_member.py")
PARTITIONS = 4
ENOUGH = 3
"""Transactions of a process before it is killed."""


class CopyingMember:
    """One transactional id, over all the processes that had it."""

    def __init__(self, library: str, bootstrap: str, topics: tuple[str, str], index: int, errors: Path) -> None:
        source, sink = topics
        # aiokafka names only the group in a transaction: each of its members needs partitions of its own.
        own = [str(number) for number in range(PARTITIONS) if number % 2 == index] if library == "aiokafka" else []
        group, name = f"group-{source}", f"{source}-{index}"
        self._command = [sys.executable, str(MEMBER), library, bootstrap, group, source, sink, name, *own]
        self._errors = errors
        self.start()

    def start(self) -> None:
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def work(self) -> None:
        """Until it has committed a few more transactions."""
        assert self._process.stdout is not None
        committed = 0
        while committed < ENOUGH:
            line = self._process.stdout.readline()
            assert line, f"it ended:\n{self._errors.read_text()[-3000:]}"
            committed += line == "committed\n"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def leave(self) -> None:
        assert self._end(signal.SIGTERM) == 0, self._errors.read_text()[-3000:]

    def _end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode

    def end_if_running(self) -> None:
        if self._process.poll() is None:
            self.kill()


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_rows_are_copied_once_while_members_are_killed(
    bootstrap: str, topic: str, library: str, tmp_path: Path
) -> None:
    """kill -9 of each member while rows keep coming. Another one has its transactional id right afterwards."""
    source, sink = f"{topic}-in", f"{topic}-out"
    for name in (source, sink):
        create_topic(bootstrap, name, PARTITIONS)
    trickle = Trickle(bootstrap, source, PARTITIONS)
    members = [
        CopyingMember(library, bootstrap, (source, sink), index, tmp_path / f"errors-{index}") for index in range(2)
    ]
    try:
        with CommittedReader(bootstrap, sink, PARTITIONS) as reader:
            for victim in members:
                victim.work()
                victim.kill()
                victim.start()
            members[0].work()
            count = len(trickle.stop())
            wait_until(lambda: reader.count >= count, "all rows are copied")
            for member in members:
                member.leave()
            reader.wait_for(count + 1, 1.0)
            assert reader.rows == [list(range(index, count, PARTITIONS)) for index in range(PARTITIONS)]
    finally:
        trickle.stop()
        for member in members:
            member.end_if_running()


# -- members that are no longer of the group --------------------------------------------


class GroupMember(Protocol):
    """A consumer that subscribes; it is a member when it has read the first row."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None: ...

    def read_first(self) -> None: ...

    @property
    def metadata(self) -> Any: ...

    def close(self) -> None: ...


class ConfluentMember:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic])

    def read_first(self) -> None:
        def is_read() -> bool:
            message = self._consumer.poll(0.1)
            return message is not None and message.error() is None

        wait_until(is_read, "the first row")

    @property
    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonMember:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )

    def read_first(self) -> None:
        wait_until(lambda: bool(self._consumer.poll(100)), "the first row")

    @property
    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


# aiokafka has no metadata of members to send.
MEMBERS: dict[str, type[GroupMember]] = {"confluent": ConfluentMember, "kafka-python": KafkaPythonMember}


@contextmanager
def joined(library: str, bootstrap: str, group: str, topic: str) -> Iterator[GroupMember]:
    member = MEMBERS[library](bootstrap, group, topic)
    try:
        member.read_first()
        yield member
    finally:
        member.close()


@pytest.mark.parametrize("library", sorted(MEMBERS))
def test_offsets_of_a_member_that_has_left_are_refused(bootstrap: str, topic: str, library: str) -> None:
    source, sink, group = f"{topic}-in", f"{topic}-out", f"group-{topic}"
    for name in (source, sink):
        create_topic(bootstrap, name, 1)
    with producing(library, bootstrap, f"first-{topic}") as late, producing(library, bootstrap, topic) as current:
        current.begin()
        current.send(source, b"row")
        current.commit()
        with joined(library, bootstrap, group, source) as member:
            metadata = member.metadata
        late.begin()
        late.send(sink, b"of the member before")
        with joined(library, bootstrap, group, source) as successor:
            with pytest.raises(late.refused):
                late.send_offset(group, source, 1, metadata)
            late.abort()
            current.begin()
            current.send(sink, b"of the successor")
            current.send_offset(group, source, 1, successor.metadata)
            current.commit()
    assert read(library, bootstrap, sink, committed=True) == [b"of the successor"]
    assert committed_offset(bootstrap, group, source) == 1
