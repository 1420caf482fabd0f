"""A Raft server without a world around it: the core, a disk that remembers what was written, a state machine.

Its driver says when a write is done and where messages go. The order that `Outcome` promises is kept by the letter:
writes in order, messages after them, and a crash in the middle of a write leaves a prefix of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.core import RaftCore
from penstock.core.raft.exchange import HardState, Input, Outcome, PersistDone, SnapshotReady, Stored
from penstock.core.raft.messages import Entry, Message, Snapshot
from penstock.core.raft.settings import RaftSettings


class Disk:
    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []

    def stored(self) -> Stored:
        return Stored(self.hard_state, self.snapshot, tuple(self.entries))

    def write(self, outcome: Outcome, *, parts: int | None = None) -> None:
        """All of it, or the first so many parts; an appended entry is a part of its own."""
        left = 1 << 30 if parts is None else parts
        if outcome.hard_state is not None and (left := left - 1) >= 0:
            self.hard_state = outcome.hard_state
        if outcome.snapshot_to_store is not None and (left := left - 1) >= 0:
            self.snapshot = outcome.snapshot_to_store
        if outcome.truncate_from is not None and (left := left - 1) >= 0:
            self.truncate_from(outcome.truncate_from)
        for entry in outcome.append:
            if (left := left - 1) >= 0:
                assert not self.entries or entry.index == self.entries[-1].index + 1, (entry, self.entries[-1])
                self.entries.append(entry)
        if outcome.compact_to is not None and (left := left - 1) >= 0:
            self.entries = [entry for entry in self.entries if entry.index > outcome.compact_to]

    def truncate_from(self, index: int) -> None:
        self.entries = [entry for entry in self.entries if entry.index < index]

    def holds(self, index: int, term: int) -> bool:
        if self.snapshot is not None and index <= self.snapshot.index:
            return True
        return any(entry.index == index and entry.term == term for entry in reversed(self.entries))


@dataclass(slots=True)
class StateMachine:
    """A digest of everything applied, in order: two of them agree at an index if and only if their histories do."""

    index: int = 0
    digest: int = 0

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.index + 1, f"{entry.index} applied after {self.index}"
        text = b"%d %d %s %s" % (self.digest, entry.term, entry.kind.value.encode(), entry.data)
        self.index, self.digest = entry.index, crc32(text)

    def dump(self) -> bytes:
        return b"%d %d " % (self.index, self.digest) + b"." * 20

    @staticmethod
    def load(data: bytes) -> StateMachine:
        index, digest, _ = data.split(b" ")
        return StateMachine(int(index), int(digest))


@dataclass(slots=True)
class Write:
    outcome: Outcome
    generation: int
    messages: list[Message] = field(default_factory=list)


class Server:
    def __init__(self, node_id: NodeId, configuration: Configuration, settings: RaftSettings, random: Random) -> None:
        self.node_id = node_id
        self.disk = Disk()
        self._beginning = configuration
        self._settings = settings
        self._random = random
        self.is_up = False
        self.start()

    def start(self) -> None:
        self.is_up = True
        stored = self.disk.stored()
        self.core = RaftCore(self.node_id, self._beginning, self._settings, self._random, stored)
        self.machine = StateMachine.load(stored.snapshot.data) if stored.snapshot else StateMachine()
        self.writes: deque[Write] = deque()
        self.wake_ms: int | None = None

    def crash(self, random: Random) -> None:
        """Unstable writes are gone, except perhaps the beginning of the one under way."""
        self.is_up = False
        if self.writes and random.random() < 0.5:
            self.disk.write(self.writes[0].outcome, parts=random.randrange(4))
        self.writes.clear()
        self.wake_ms = None

    def step(self, fact: Input, now_ms: int) -> Outcome:
        """The caller sends `sent_at_once(outcome)`; later writes are ended by `persist`."""
        outcome = self.core.step(fact, now_ms)
        self.wake_ms = outcome.next_deadline_ms
        if outcome.has_writes:
            self.writes.append(Write(outcome, outcome.generation))
        if outcome.restore is not None:
            self.machine = StateMachine.load(outcome.restore.data)
        for entry in outcome.committed:
            self.machine.apply(entry)
        return outcome

    def sent_at_once(self, outcome: Outcome) -> list[Message]:
        if not self.writes:
            return outcome.send_now + outcome.send_after_persist
        self.writes[-1].messages.extend(outcome.send_after_persist)
        return outcome.send_now

    def persist(self) -> tuple[list[Message], PersistDone]:
        """The oldest write is stable: what waited for it leaves, then the core is told."""
        write = self.writes.popleft()
        self.disk.write(write.outcome)
        return write.messages, PersistDone(write.generation)

    def take_snapshot(self) -> SnapshotReady:
        return SnapshotReady(self.machine.index, self.machine.dump())
