"""Runs a scenario: a text with commands (`> ...`), remarks (`# ...`), and what came of each command.

    cluster 1 2 3 [spare 4]     servers with one configuration; a spare one belongs to nobody yet
    settings NAME=VALUE ...     for the cluster command that follows
    timeout N                   the clock moves to the next deadline of N, and only N is told
    pass MS                     the clock moves; whoever is due is told, and everything settles after it
    settle                      messages are delivered and writes end until nothing is left to do
    propose N TEXT ...          snapshot N          transfer N [M]       change N CHANGE M
    hold N, persist N           writes of N end only when told          drop           forgets messages under way
    cut N, cut N>M, heal        messages from and to N, or one way      lost N M, back N M   a connection of N
    crash N, restart N          show                what every server believes
    wipe N                      it is down, and its disk is another one, empty

`quietly` before a command leaves out messages and writes. Messages are delivered in the order they were sent in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import (
    Change,
    ChangeMembership,
    HardState,
    Input,
    Outcome,
    PeerBack,
    PeerLost,
    Proposal,
    Propose,
    Received,
    Tick,
    TransferLeadership,
)
from penstock.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteResponse,
    RequestVote,
    SnapshotResponse,
    VoteResponse,
)
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import Role
from support.raft.server import Disk, Server

COMMAND = "> "
_MOST_MESSAGES = 10_000  # until everything has settled


class Script:
    def __init__(self) -> None:
        self.now_ms = 0
        self._settings = RaftSettings()
        self._servers: dict[NodeId, Server] = {}
        self._network: deque[Message] = deque()
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._held: set[NodeId] = set()
        self._token = 0
        self._is_quiet = False
        self._lines: list[str] = []

    def play(self, text: str) -> str:
        """The same text with what really happened in the place of what was written there."""
        for line in text.splitlines():
            if line.startswith(COMMAND):
                self._lines.append(line)
                self._run(line.removeprefix(COMMAND).split())
            elif line.startswith("#") or not line:
                self._lines.append(line)
        return "\n".join(self._lines) + "\n"

    def _run(self, words: list[str]) -> None:
        self._is_quiet = words[0] == "quietly"
        name, *arguments = words[1:] if self._is_quiet else words
        command: Callable[..., None] = getattr(self, f"do_{name}")
        command(*arguments)

    # ---- commands

    def do_settings(self, *pairs: str) -> None:
        self._settings = RaftSettings(
            **{name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}
        )

    def do_cluster(self, *names: str) -> None:
        split = names.index("spare") if "spare" in names else len(names)
        voters = tuple(int(name) for name in names[:split])
        for node_id in (*voters, *(int(name) for name in names[split + 1 :])):
            configuration = Configuration(voters if node_id in voters else ())
            self._servers[node_id] = Server(node_id, configuration, self._settings, Random(node_id))
            self._step(node_id, Tick())

    def do_timeout(self, name: str) -> None:
        self.now_ms = max(self.now_ms, self._servers[int(name)].wake_ms or 0)
        self._step(int(name), Tick())

    def do_pass(self, span_ms: str) -> None:
        end_ms = self.now_ms + int(span_ms)
        while due := [
            server for server in self._servers.values() if server.is_up and (server.wake_ms or end_ms) < end_ms
        ]:
            server = min(due, key=lambda server: server.wake_ms or 0)
            self.now_ms = max(self.now_ms, server.wake_ms or 0)
            self._step(server.node_id, Tick())
            self.do_settle()
        self.now_ms = end_ms

    def do_settle(self) -> None:
        delivered = 0
        while self._end_writes() or self._network:
            delivered += 1
            assert delivered < _MOST_MESSAGES, "they go round in circles"
            if self._network:
                self._deliver(self._network.popleft())

    def do_propose(self, name: str, *texts: str) -> None:
        self._step(int(name), Propose(tuple(Proposal(self._next_token(), text.encode()) for text in texts)))

    def do_snapshot(self, name: str) -> None:
        self._step(int(name), self._servers[int(name)].take_snapshot())

    def do_change(self, name: str, change: str, target: str) -> None:
        self._step(int(name), ChangeMembership(self._next_token(), Change(change), int(target)))

    def do_transfer(self, name: str, to: str | None = None) -> None:
        self._step(int(name), TransferLeadership(self._next_token(), None if to is None else int(to)))

    def do_hold(self, name: str) -> None:
        self._held.add(int(name))

    def do_persist(self, name: str) -> None:
        self._held.discard(int(name))
        while self._servers[int(name)].writes:
            self._end_write(self._servers[int(name)])

    def do_drop(self) -> None:
        self._network.clear()

    def do_cut(self, link: str) -> None:
        one, arrow, other = link.partition(">")
        if arrow:
            self._cuts.add((int(one), int(other)))
        else:
            self._cuts.update((int(one), peer) for peer in self._servers)
            self._cuts.update((peer, int(one)) for peer in self._servers)

    def do_heal(self) -> None:
        self._cuts.clear()

    def do_lost(self, name: str, peer: str) -> None:
        self._step(int(name), PeerLost(int(peer)))

    def do_back(self, name: str, peer: str) -> None:
        self._step(int(name), PeerBack(int(peer)))

    def do_crash(self, name: str) -> None:
        self._servers[int(name)].crash(Random(0))
        self._held.discard(int(name))

    def do_wipe(self, name: str) -> None:
        server = self._servers[int(name)]
        assert not server.is_up
        server.disk = Disk()
        server.disk.hard_state = HardState(is_new=True)

    def do_restart(self, name: str) -> None:
        self._servers[int(name)].start()
        self._step(int(name), Tick())

    def do_show(self) -> None:
        for server in self._servers.values():
            if not server.is_up:
                self._say(f"{server.node_id}: down")
                continue
            node, log = server.core.node, server.core.node.log
            entries = " ".join(
                f"{entry.index}/{entry.term}" for entry in log.between(log.base_index + 1, log.last_index)
            )
            snapshot = f" snapshot {node.snapshot.index}/{node.snapshot.term}" if node.snapshot.index else ""
            place = (
                f"term {node.term} vote {node.voted_for or '-'} leader {node.leader or '-'} commit {log.commit_index}"
            )
            self._say(
                f"{server.node_id}: {node.role.value} {place} {node.configuration}{snapshot} log {entries or '-'}"
            )

    # ---- servers

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _say(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def _whisper(self, text: str) -> None:
        if not self._is_quiet:
            self._say(text)

    def _step(self, node_id: NodeId, fact: Input) -> None:
        server = self._servers[node_id]
        outcome = server.step(fact, self.now_ms)
        self._tell(node_id, outcome)
        self._network.extend(server.sent_at_once(outcome))

    def _end_writes(self) -> bool:
        ready = [server for server in self._servers.values() if server.writes and server.node_id not in self._held]
        for server in ready:
            self._end_write(server)
        return bool(ready)

    def _end_write(self, server: Server) -> None:
        messages, done = server.persist()
        self._network.extend(messages)
        self._step(server.node_id, done)

    def _deliver(self, message: Message) -> None:
        is_lost = (message.sender, message.recipient) in self._cuts or not self._servers[message.recipient].is_up
        self._whisper(f"{message.sender} -> {message.recipient} {in_words(message)}{' (lost)' if is_lost else ''}")
        if not is_lost:
            self._step(message.recipient, Received(message))

    def _tell(self, name: NodeId, outcome: Outcome) -> None:
        if outcome.hard_state is not None:
            self._whisper(
                f"{name} stores term {outcome.hard_state.term}, vote for {outcome.hard_state.voted_for or '-'}"
            )
        if outcome.snapshot_to_store is not None:
            snapshot = outcome.snapshot_to_store
            self._say(f"{name} stores snapshot {snapshot.index}/{snapshot.term} with {snapshot.configuration}")
        if outcome.truncate_from is not None:
            self._say(f"{name} truncates from {outcome.truncate_from}")
        if outcome.append:
            self._whisper(f"{name} appends {_entries(outcome.append)}")
        if outcome.compact_to is not None:
            self._say(f"{name} compacts to {outcome.compact_to}")
        if (now := outcome.leadership) is not None:
            leader = "" if now.role is Role.LEADER else f", leader {now.leader or '-'}"
            self._say(f"{name} is {now.role.value} in term {now.term}{leader}")
        if outcome.restore is not None:
            self._say(f"{name} restores its state machine as of {outcome.restore.index}")
        if outcome.committed:
            self._say(f"{name} commits {_entries(outcome.committed)}")
        for refused in outcome.refused:
            self._say(f"{name} refuses: {refused.refusal.value}; leader {refused.leader or '-'}")


def _entries(entries: list[Entry] | tuple[Entry, ...]) -> str:
    def one(entry: Entry) -> str:
        text = entry.data.decode() if entry.kind is EntryKind.DATA else entry.kind.value
        if entry.kind is EntryKind.CONFIGURATION:
            text = str(Configuration.decode(entry.data))
        return f"{entry.index}/{entry.term}:{text}"

    return " ".join(map(one, entries)) or "nothing"


def in_words(message: Message) -> str:
    name = f"{message.kind.value} term {message.term}"
    match message:
        case PreVote() | RequestVote():
            transfer = " transfer" if isinstance(message, RequestVote) and message.is_transfer else ""
            return f"{name} log ends at {message.last_index}/{message.last_term}{transfer}"
        case PreVoteResponse() | VoteResponse():
            return f"{name} {'yes' if message.granted else 'no'}"
        case AppendEntries():
            after = f"after {message.prev_index}/{message.prev_term}"
            return f"{name} {after} {_entries(message.entries)}, commit {message.commit_index}"
        case AppendResponse(accepted=True):
            return f"{name} match {message.match_index}"
        case AppendResponse():
            found = f"{message.conflict_index}/{message.conflict_term or '-'}"
            return f"{name} no match at {message.prev_index}, try {found}"
        case InstallSnapshot():
            last = " last" if message.is_last else ""
            place = f"{message.snapshot_index}/{message.snapshot_term}"
            return f"{name} {place} bytes {message.offset}+{len(message.chunk)}{last}"
        case SnapshotResponse():
            return f"{name} {message.snapshot_index} next byte {message.next_offset}"
    return name
