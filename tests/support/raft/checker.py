"""The judges of a simulated Raft cluster: they see every step of every server and know what Raft rules out."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import Outcome
from penstock.core.raft.messages import Entry, EntryKind
from penstock.core.raft.states import Role
from support.raft.server import Server, StateMachine


class Violation(Exception):
    """A checker saw something that Raft rules out."""


class Fixed(NamedTuple):
    """A committed entry, as the first server that applied it saw it."""

    entry: Entry
    digest: int
    known_in_term: int


class Checker:
    """Figure 3 of the paper, and durability: asked after every step of every server."""

    def __init__(self, servers: dict[NodeId, Server]) -> None:
        self._servers = servers
        self._leaders: dict[int, NodeId] = {}
        self._entries: dict[tuple[int, int], tuple[int | None, EntryKind, bytes]] = {}
        self.committed: list[Fixed] = []

    def after_step(self, server: Server, outcome: Outcome) -> None:
        node = server.core.node
        if outcome.leadership is not None and outcome.leadership.role is Role.LEADER:
            self._one_leader_per_term(server)
            self._leader_completeness(server)
        if outcome.append:
            self._log_matching(server, outcome.append)
        if outcome.truncate_from is not None:
            self._configuration_of_the_log(server)
        if outcome.restore is not None:
            self._same_state(
                server, server.machine if not outcome.committed else StateMachine.load(outcome.restore.data)
            )
        if outcome.committed:
            self._state_machine_safety(server, outcome.committed)
            if self._leaders.get(node.term) == server.node_id:  # also one that this commit has taken the vote from
                self._durability(server, outcome.committed[-1])
        self._is_awake(server)

    def _is_awake(self, server: Server) -> None:
        """A voter that does not lead looks after itself, sooner or later: by its clock, or when its vote is stable."""
        node = server.core.node
        if node.role is Role.LEADER or not node.is_voter or node.election_deadline_ms is not None:
            return
        if node.role is not Role.CANDIDATE or not server.writes:
            raise Violation(f"{server.node_id} is {node.role.value} in term {node.term} and waits for nothing")

    def _one_leader_per_term(self, server: Server) -> None:
        term = server.core.node.term
        if self._leaders.setdefault(term, server.node_id) != server.node_id:
            raise Violation(f"two leaders in term {term}: {self._leaders[term]} and {server.node_id}")

    def _leader_completeness(self, server: Server) -> None:
        node = server.core.node
        for fixed in self.committed:
            entry = fixed.entry
            if fixed.known_in_term < node.term and entry.index > node.log.base_index:
                found = node.log.term_at(entry.index)
                if found != entry.term:
                    raise Violation(
                        f"{server.node_id} leads term {node.term} with {found} at {entry.index}, "
                        f"where {entry.term} was committed by term {fixed.known_in_term}"
                    )

    def _log_matching(self, server: Server, entries: list[Entry]) -> None:
        """By induction: equal index and term means equal content and an equal term before it."""
        for entry in entries:
            content = server.core.node.log.term_at(entry.index - 1), entry.kind, entry.data
            known = self._entries.setdefault((entry.index, entry.term), content)
            if known != content:
                raise Violation(
                    f"log of {server.node_id}: entry {entry.index} of term {entry.term}: {content} not {known}"
                )

    def _configuration_of_the_log(self, server: Server) -> None:
        """The last one in the log counts, committed or not, and none that was truncated."""
        node = server.core.node
        counts = node.snapshot.configuration
        for entry in node.log.between(node.snapshot.index + 1, node.log.last_index):
            if entry.kind is EntryKind.CONFIGURATION:
                counts = Configuration.decode(entry.data)
        if node.configuration != counts:
            raise Violation(f"{server.node_id} goes by {node.configuration}, its log by {counts}")

    def _state_machine_safety(self, server: Server, entries: list[Entry]) -> None:
        term = server.core.node.term
        for entry in entries:
            if entry.index == len(self.committed) + 1:
                before = StateMachine(len(self.committed), self.committed[-1].digest if self.committed else 0)
                before.apply(entry)
                self.committed.append(Fixed(entry, before.digest, term))
            elif entry.index > len(self.committed) or self.committed[entry.index - 1].entry != entry:
                raise Violation(f"{server.node_id} applied {entry}, others {self.committed[entry.index - 1 :][:1]}")
        self._same_state(server, server.machine)

    def _same_state(self, server: Server, machine: StateMachine) -> None:
        if machine.index and self.committed[machine.index - 1].digest != machine.digest:
            raise Violation(f"{server.node_id} has another state after {machine.index}")

    def _durability(self, server: Server, entry: Entry) -> None:
        """On the disks of a majority, so that no minority can take it away."""
        configuration = server.core.node.configuration
        holders = [voter for voter in configuration.voters if self._servers[voter].disk.holds(entry.index, entry.term)]
        if not configuration.is_majority(holders):
            raise Violation(f"{server.node_id} committed {entry.index} of term {entry.term}, stable only at {holders}")

    def at_the_end(self, members: list[Server]) -> None:
        for server in members:
            self._same_state(server, server.machine)
            log = server.core.node.log
            for fixed in self.committed[log.base_index : server.machine.index]:
                if log.term_at(fixed.entry.index) != fixed.entry.term:
                    raise Violation(f"{server.node_id} lost the committed entry {fixed.entry.index}")
