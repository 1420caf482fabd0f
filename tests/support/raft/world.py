"""A cluster of Raft servers on a seed: a scheduler with virtual time, a bad network, slow disks, crashes, and
checkers.

A run has two halves. First everything goes wrong that may go wrong, while the checkers watch every step
(`Checker`). Then everything is healed, and the cluster must agree on something new soon. The same seed gives
the same run, to the byte.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import (
    Change,
    ChangeMembership,
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
from penstock.core.raft.messages import Message, VoteResponse
from penstock.core.raft.settings import RaftSettings
from penstock.core.raft.states import Role
from support.raft.checker import Checker, Violation
from support.raft.server import Server

TROUBLE_MS = 9_000
HEALING_MS = 12_000
MAX_EVENTS = 60_000
"""Several times what the busiest run takes: more is a storm of messages that feeds itself."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of a run, and the room that the servers have."""

    voter_count: int
    loss: float
    doubling: float
    max_delay_ms: int
    max_write_ms: int
    ambush: float
    """How often a server dies just after it voted, won or committed: the moments that promises are about."""
    corner: float
    """How often a new leader reaches a few followers only, to begin with: Figure 8 is made of such leaders."""
    every_ms: tuple[int, int, int, int, int, int, int]
    """On average: proposals, crash, cut, snapshot, change of membership, transfer, false alarm."""
    settings: RaftSettings

    @staticmethod
    def of(random: Random) -> Weather:
        if random.random() < 0.3:
            return FIGURE_8
        choice = random.choice
        return Weather(
            voter_count=choice([3, 3, 5]),
            loss=choice([0.0, 0.02, 0.1, 0.25]),
            doubling=choice([0.0, 0.05]),
            max_delay_ms=choice([5, 30, 150]),
            max_write_ms=choice([1, 15, 120]),
            ambush=choice([0.0, 0.1, 0.5]),
            corner=choice([0.0, 0.0, 0.6]),
            every_ms=(
                choice([30, 120]),
                choice([400, 1500, 6000]),
                choice([500, 2000, 8000]),
                choice([150, 600, 3000]),
                choice([200, 1000, 9000]),
                choice([1500, 9000]),
                choice([700, 9000]),
            ),
            settings=RaftSettings(
                election_timeout_ms=300,
                heartbeat_interval_ms=60,
                lost_leader_grace_ms=choice([0, 10, 90]),
                max_append_bytes=choice([1, 100, 5000]),
                max_inflight_messages=choice([1, 3, 20]),
                max_inflight_bytes=choice([50, 5000]),
                snapshot_chunk_bytes=choice([7, 1000]),
                max_uncommitted_bytes=choice([300, 50_000]),
                catch_up_entries=3,
                entries_kept_behind_snapshot=choice([0, 4]),
            ),
        )


FIGURE_8 = Weather(
    voter_count=5,
    loss=0.1,
    doubling=0.0,
    max_delay_ms=20,
    max_write_ms=5,
    ambush=0.5,
    corner=0.8,
    every_ms=(40, 3000, 9000, 9000, 9000, 9000, 500),
    settings=RaftSettings(
        election_timeout_ms=300,
        heartbeat_interval_ms=60,
        lost_leader_grace_ms=10,
        max_append_bytes=1,
        max_inflight_messages=1,
    ),
)
"""Many short reigns over five servers, entries one by one."""


class World:
    def __init__(
        self,
        seed: int,
        *,
        weather: Weather | None = None,
        server_type: type[Server] = Server,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.random = random = Random(seed)
        self._trace = trace
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self.weather = weather = weather or Weather.of(random)
        voters = tuple(range(1, weather.voter_count + 1))
        spare = weather.voter_count + 1
        self.servers: dict[NodeId, Server] = {}
        for node_id in (*voters, spare):
            beginning = Configuration(voters if node_id != spare else ())
            self.servers[node_id] = server_type(node_id, beginning, weather.settings, Random(random.random()))
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.checker = Checker(self.servers)
        self._token = 0
        self.healed = False

    # ---- time

    def _at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._event_count += 1
        if self._event_count > MAX_EVENTS:
            raise Violation(f"more than {MAX_EVENTS} events: the servers never come to rest")
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_count, action))

    def _run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = end_ms

    def run(self) -> None:
        for server in self.servers.values():
            self._step(server, Tick())
        troubles = (
            self._propose,
            self._crash_some,
            self._cut,
            self._snapshot,
            self._change_membership,
            self._transfer,
            self._false_alarm,
        )
        for mean_ms, trouble in zip(self.weather.every_ms, troubles, strict=True):
            self._every(mean_ms, trouble)
        self._run_until(TROUBLE_MS)
        self._heal()
        self._demand_progress()

    def _every(self, mean_ms: int, trouble: Callable[[], None]) -> None:
        def again() -> None:
            if not self.healed:
                trouble()
                self._at(self.random.randrange(1, 2 * mean_ms), again)

        self._at(self.random.randrange(1, 2 * mean_ms), again)

    # ---- servers

    def _say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms:6} {text}")

    def _step(self, server: Server, fact: Input) -> None:
        waiting = len(server.writes)
        outcome = server.step(fact, self.now_ms)
        if self._trace is not None:
            self._tell(server, fact, outcome)
        self.checker.after_step(server, outcome)
        for message in server.sent_at_once(outcome):
            self._send(message)
        if outcome.committed and server.core.node.role is Role.LEADER:
            self._lie_in_wait(server)
        if outcome.leadership is not None and outcome.leadership.role is Role.LEADER:
            self._lie_in_wait(server)
            self._drive_into_a_corner(server)
        if server.writes and not waiting:
            self._write(server)
        self._wake(server)

    def _tell(self, server: Server, fact: Input, outcome: Outcome) -> None:
        if not isinstance(fact, Tick):
            self._say(f"{server.node_id} <- {fact}")
        if outcome.leadership is not None:
            self._say(f"{server.node_id} == {outcome.leadership}")
        if outcome.committed:
            self._say(f"{server.node_id} == commits {outcome.committed[0].index}..{outcome.committed[-1].index}")

    def _wake(self, server: Server) -> None:
        core, wake_ms = server.core, server.wake_ms
        if wake_ms is None:
            return

        def tick() -> None:
            if server.is_up and server.core is core and server.wake_ms == wake_ms:
                self._step(server, Tick())

        self._at(max(wake_ms - self.now_ms, 1), tick)

    def _write(self, server: Server) -> None:
        core = server.core

        def done() -> None:
            if server.is_up and server.core is core:
                messages, persist_done = server.persist()
                for message in messages:
                    self._send(message)
                if server.writes:
                    self._write(server)
                self._step(server, persist_done)

        self._at(self.random.randrange(self.weather.max_write_ms), done)

    def _send(self, message: Message) -> None:
        if (message.sender, message.recipient) in self.cuts or self.random.random() < self.weather.loss:
            return
        if isinstance(message, VoteResponse) and message.granted:
            self._lie_in_wait(self.servers[message.sender])
        copies = 2 if self.random.random() < self.weather.doubling else 1
        for _ in range(copies):
            self._at(self.random.randrange(1, self.weather.max_delay_ms + 1), lambda: self._deliver(message))

    def _deliver(self, message: Message) -> None:
        server = self.servers[message.recipient]
        if server.is_up and (message.sender, message.recipient) not in self.cuts:
            self._step(server, Received(message))

    # ---- troubles

    def _up(self) -> list[Server]:
        return [server for server in self.servers.values() if server.is_up]

    def _leaders(self) -> list[Server]:
        return [server for server in self._up() if server.core.node.role is Role.LEADER]

    def _some(self) -> Server | None:
        """A leader as often as not."""
        leaders = self._leaders()
        choice = leaders if leaders and self.random.random() < 0.6 else self._up()
        return self.random.choice(choice) if choice else None

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _propose(self) -> None:
        if (server := self._some()) is not None:
            count = self.random.choice([1, 1, 3])
            proposals = [Proposal(token := self._next_token(), b"p%d" % token) for _ in range(count)]
            self._step(server, Propose(tuple(proposals)))

    def _lie_in_wait(self, server: Server) -> None:
        if not self.healed and self.random.random() < self.weather.ambush:
            self._at(self.random.choice([1, 5, 30]), lambda: self._crash(server, self.random.choice([1, 5, 200])))

    def _drive_into_a_corner(self, server: Server) -> None:
        if not self.healed and self.random.random() < self.weather.corner:
            others = [node_id for node_id in self.servers if node_id != server.node_id]
            for _ in range(self.random.randrange(1, len(others) - 1)):
                others.remove(self.random.choice(others))
            self.cuts.update((server.node_id, other) for other in others)
            self._say(f"{server.node_id} reaches nobody of {others}")
            self._at(self.random.choice([30, 150, 400]), self.cuts.clear)

    def _crash_some(self) -> None:
        if (server := self._some()) is not None:
            self._crash(server, self.random.choice([5, 200, 1500]))

    def _crash(self, server: Server, down_ms: int) -> None:
        if not server.is_up or self.healed:
            return
        server.crash(self.random)
        self._say(f"{server.node_id} crashes")
        self._tell_peers(server, PeerLost(server.node_id))
        self._at(down_ms, lambda: self._restart(server))

    def _restart(self, server: Server) -> None:
        if not server.is_up:
            server.start()
            self._say(f"{server.node_id} restarts")
            self._step(server, Tick())
            self._tell_peers(server, PeerBack(server.node_id))

    def _tell_peers(self, server: Server, fact: PeerLost | PeerBack) -> None:
        for other in self._up():
            if other is not server and self.random.random() < 0.7:
                self._step(other, fact)

    def _cut(self) -> None:
        """Two halves, one server alone, or one direction of a single link."""
        nodes = list(self.servers)
        self.random.shuffle(nodes)
        shape = self.random.random()
        if shape < 0.3:
            self.cuts.add((nodes[0], nodes[1]))
        else:
            size = 1 if shape < 0.6 else len(nodes) // 2
            for one in nodes[:size]:
                for other in nodes[size:]:
                    self.cuts.add((one, other))
                    if shape > 0.4:
                        self.cuts.add((other, one))
        self._say(f"cut: {sorted(self.cuts)}")
        self._at(self.random.choice([100, 700, 2500]), self.cuts.clear)

    def _snapshot(self) -> None:
        if (server := self._some()) is not None and server.machine.index > server.core.node.snapshot.index:
            self._step(server, server.take_snapshot())

    def _change_membership(self) -> None:
        for server in self._leaders():
            for _ in range(self.random.choice((1, 1, 6))):  # an operator in a hurry: all but one are to be refused
                change = self.random.choice(list(Change))
                target = self.random.choice(list(self.servers))
                self._step(server, ChangeMembership(self._next_token(), change, target))

    def _transfer(self) -> None:
        for server in self._leaders():
            to = self.random.choice([None, *self.servers])
            self._step(server, TransferLeadership(self._next_token(), to))

    def _false_alarm(self) -> None:
        if (server := self._some()) is not None:
            peer = self.random.choice([node_id for node_id in self.servers if node_id != server.node_id])
            self._step(server, PeerLost(peer))

    # ---- healing

    def _heal(self) -> None:
        self.healed = True
        self.cuts.clear()
        self.weather = replace(self.weather, loss=0.0, doubling=0.0, max_delay_ms=5, max_write_ms=5)
        self._say("healed")
        for server in self.servers.values():
            self._restart(server)

    def _demand_progress(self) -> None:
        """Something proposed after the healing reaches every member."""
        end_ms = self.now_ms + HEALING_MS
        committed_before = len(self.checker.committed)
        while self.now_ms < end_ms:
            self._run_until(self.now_ms + 100)
            leaders = self._leaders()
            for server in leaders:
                self._step(server, Propose((Proposal(self._next_token(), b"healed"),)))
            if len(leaders) == 1:
                members = [self.servers[member] for member in leaders[0].core.node.configuration.members]
                if all(self._has_news(server, committed_before) for server in members):
                    self.checker.at_the_end([server for server in members if server.machine.index])
                    return
        raise Violation(f"no progress within {HEALING_MS} ms of healing")

    def _has_news(self, server: Server, committed_before: int) -> bool:
        news = self.checker.committed[committed_before : server.machine.index]
        return any(fixed.entry.data == b"healed" for fixed in news)
