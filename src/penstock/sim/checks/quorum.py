"""Raft's promises for the whole cluster: one vote per node and one leader per term, the same entry at an index on all
nodes, and a leader that has everything committed in earlier terms.

tests/support/raft/checker.py checks the core step by step. Here it runs on real storage and connections, so a vote or
an entry lost by a disk or a shell shows. Must not know: what entries mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

from penstock.sim.judges.history import Violation

HASTY_TERMS = 8
"""A node that begins this many terms within HASTY_S does not wait for the outcome of its elections."""
HASTY_S = 0.1


class QuorumChecker:
    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._entries: dict[int, tuple[bytes, int]] = {}  # index -> digest, and the first node to apply it
        self._terms: dict[int, int] = {}
        self._applied: dict[int, int] = {}
        self._promised: dict[int, int] = {}  # the latest term in which a node led or voted
        self._votes: dict[tuple[int, int], int] = {}  # node and term -> candidate
        self._committed: dict[int, int] = {}  # term -> the highest committed index among its entries
        self._emptied: dict[int, int] = {}  # nodes that lost their disk -> committed index then
        self._voters: dict[int, tuple[int, ...]] = {}  # committed configurations by index
        self._begun: dict[int, list[float]] = {}  # start times of a node's latest terms

    @property
    def last_index(self) -> int:
        return max(self._entries, default=0)

    @property
    def terms(self) -> int:
        """Number of terms that had a leader."""
        return len(self._leaders)

    def look(self, node: int, term: int, is_leader: bool) -> None:
        before = self._terms.get(node, -1)
        if term < before:
            raise Violation("terms only grow", f"node {node} goes from term {before} back to {term}")
        self._terms[node] = term
        if is_leader:
            self._leads(node, term)

    def elected(self, node: int, term: int, last_index: int) -> None:
        """The node begins to lead a term, with a log that ends there."""
        self._leads(node, term)
        committed = max((index for other, index in self._committed.items() if other < term), default=0)
        if last_index < committed:
            raise Violation(
                "a controller has everything committed",
                f"node {node} leads term {term} with a log up to {last_index}, but entry {committed} was committed in "
                "an earlier term",
            )

    def _leads(self, node: int, term: int) -> None:
        self._promise(node, term)
        if self._leaders.setdefault(term, node) != node:
            raise Violation("a term has one leader", f"term {term}: {self._leaders[term]} and {node}")

    def voted(self, node: int, term: int, candidate: int) -> None:
        """The node has reported the vote: it must survive every restart."""
        if node in self._emptied:
            raise Violation(
                "an emptied voter does not vote before it has caught up",
                f"node {node} votes for {candidate} in term {term} with entries up to {self.applied_to(node)}; "
                f"{self._emptied[node]} were committed when it lost its disk",
            )
        self._promise(node, term)
        first = self._votes.setdefault((node, term), candidate)
        if first != candidate:
            raise Violation(
                "a voter votes once per term", f"node {node}, term {term}: for {first}, and for {candidate}"
            )

    def emptied(self, node: int) -> None:
        """The node lost its disk and its promises: others must not count on it before it has caught up."""
        self._emptied[node] = max(self._committed.values(), default=0)
        self._promised.pop(node, None)

    def _promise(self, node: int, term: int) -> None:
        self._promised[node] = max(term, self._promised.get(node, 0))

    def campaigns(self, node: int, term: int, now_s: float) -> None:
        """The node begins a term of its own."""
        begun = self._begun.setdefault(node, [])
        begun.append(now_s)
        del begun[:-HASTY_TERMS]
        if len(begun) == HASTY_TERMS and now_s - begun[0] < HASTY_S:
            raise Violation(
                "a candidate waits for its votes",
                f"node {node} begins {HASTY_TERMS} terms within {now_s - begun[0]:.3f} s, the last of them {term}",
            )

    def committed(self, index: int, term: int) -> None:
        """A node applies this entry, which was written in that term."""
        self._committed[term] = max(index, self._committed.get(term, 0))

    def configured(self, index: int, voters: Sequence[int]) -> None:
        """A node applies this entry with a configuration of voters."""
        self._voters.setdefault(index, tuple(voters))

    def given(self) -> Counter[int]:
        """Number of times each node was given a vote."""
        sets = [self._voters[index] for index in sorted(self._voters)]
        return Counter(voter for before, after in pairwise(sets) for voter in after if voter not in before)

    def started(self, node: int, term: int) -> None:
        """A node starts from its disk."""
        promised = self._promised.get(node, 0)
        if term < promised:
            raise Violation("a vote outlives a restart", f"node {node} voted in term {promised} and starts in {term}")

    def applied(self, node: int, index: int, data: bytes) -> None:
        digest = blake2b(data, digest_size=16).digest()
        known, first = self._entries.setdefault(index, (digest, node))
        if known != digest:
            raise Violation(
                "an index has one entry", f"node {node} applies {data[:200]!r} at {index}, node {first} something else"
            )
        if index <= self._applied.get(node, 0):
            raise Violation("entries are applied once", f"node {node} applies {index} again")
        self._comes_to(node, index)

    def restored(self, node: int, index: int) -> None:
        self._comes_to(node, index)

    def _comes_to(self, node: int, index: int) -> None:
        self._applied[node] = index
        if index >= self._emptied.get(node, index + 1):  # permanently: its disk has everything
            del self._emptied[node]

    def applied_to(self, node: int) -> int:
        """The last index of the metadata log that this node has applied."""
        return self._applied.get(node, 0)

    def forget(self, node: int) -> None:
        """The process is gone, and with it a term without a promise."""
        self._applied.pop(node, None)
        self._terms.pop(node, None)
