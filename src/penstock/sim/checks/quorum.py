"""What Raft promises, as the whole cluster sees it: one leader a term, and one entry at an index for everybody.

The core itself is judged step by step elsewhere (tests/raft_checker.py); here it runs on real storage and connections,
so a vote or an entry that a disk or a shell forgot shows. Must not know: what entries mean.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.sim.history import Violation


class QuorumChecker:
    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._entries: dict[int, tuple[bytes, int]] = {}  # index -> digest, and who applied it first
        self._terms: dict[int, int] = {}
        self._applied: dict[int, int] = {}
        self._promised: dict[int, int] = {}  # the latest term in which a node led or said that it votes for somebody

    @property
    def last_index(self) -> int:
        return max(self._entries, default=0)

    @property
    def terms(self) -> int:
        """How many had a leader."""
        return len(self._leaders)

    def look(self, node: int, term: int, is_leader: bool) -> None:
        before = self._terms.get(node, -1)
        if term < before:
            raise Violation("terms only grow", f"node {node} goes from term {before} back to {term}")
        self._terms[node] = term
        if is_leader:
            self.promised(node, term)
        if is_leader and self._leaders.setdefault(term, node) != node:
            raise Violation("a term has one leader", f"term {term}: {self._leaders[term]} and {node}")

    def promised(self, node: int, term: int) -> None:
        """It has given a vote in this term, and said so, or leads it: no restart may forget that."""
        self._promised[node] = max(term, self._promised.get(node, 0))

    def started(self, node: int, term: int) -> None:
        """From what is on its disk."""
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
        self._applied[node] = index

    def restored(self, node: int, index: int) -> None:
        self._applied[node] = index

    def applied_to(self, node: int) -> int:
        """The last index of the metadata log that this node goes by."""
        return self._applied.get(node, 0)

    def forget(self, node: int) -> None:
        """Its process is gone, and with it a term in which it had promised nothing."""
        self._applied.pop(node, None)
        self._terms.pop(node, None)
