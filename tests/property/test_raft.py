"""Raft on a seed: histories full of trouble, judged after every step; then planted bugs that the judges must find.

PENSTOCK_PROPERTY_EXAMPLES sets the number of histories. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

import pytest

from penstock.core.raft import membership, replication
from penstock.core.raft.configuration import ConfigurationHistory
from penstock.core.raft.exchange import HardState, Outcome
from penstock.core.raft.log import CommittedEntryLost, RaftLog
from penstock.core.raft.messages import Entry, Message
from penstock.core.raft.node import RaftNode
from penstock.core.raft.states import ImpossibleMessage
from support.raft.checker import Violation
from support.raft.server import Disk, Server
from support.raft.world import World

EXAMPLES = int(os.environ.get("PENSTOCK_PROPERTY_EXAMPLES", "150"))
REPLAY = os.environ.get("PENSTOCK_RAFT_SEED")
SEEDS_PER_BUG = 500

FOUND = (Violation, ImpossibleMessage, CommittedEntryLost, AssertionError)


def run(seed: int, server_type: type[Server] = Server) -> None:
    try:
        World(seed, server_type=server_type).run()
    except Exception as error:
        test = shlex.quote(os.path.relpath(__file__))
        command = f"PENSTOCK_RAFT_SEED={seed} python -m pytest -s {test} -k replay"
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}\nreplay with: {command}") from error


@pytest.mark.parametrize("part", range(4))
def test_nothing_committed_is_lost_and_the_cluster_recovers(part: int) -> None:
    for seed in range(part, EXAMPLES * 2, 4):
        run(seed)


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[str]:
        lines: list[str] = []
        World(seed, trace=lines.append).run()
        return lines

    assert history(7) == history(7)
    assert history(7) != history(8)


if REPLAY is not None:

    def test_replay() -> None:
        World(int(REPLAY or 0), trace=print).run()


# ---- planted bugs


class ForgetfulDisk(Disk):
    def write(self, outcome: Outcome, *, parts: int | None = None) -> None:
        super().write(outcome, parts=parts)
        self.hard_state = HardState(self.hard_state.term, None)


class ForgetsItsVote(Server):
    """The term is stored, the vote is not."""

    def start(self) -> None:
        if not isinstance(self.disk, ForgetfulDisk):
            self.disk = ForgetfulDisk()
        super().start()


class AcknowledgesBeforePersist(Server):
    def sent_at_once(self, outcome: Outcome) -> list[Message]:
        return outcome.send_now + outcome.send_after_persist


def commits_old_terms_by_counting(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    monkeypatch.setattr(replication, "may_commit_by_counting", lambda node, index: True)
    return Server


def skips_truncation(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    def append_at_the_end(node: RaftNode, entries: tuple[Entry, ...]) -> None:
        node.append([entry for entry in entries if entry.index > node.log.last_index])

    monkeypatch.setattr(replication, "append_missing", append_at_the_end)
    return Server


def counts_its_log_too_early(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    def advance_commit(node: RaftNode, original: Callable[[RaftNode], None] = replication.advance_commit) -> None:
        node.log.stable_index = node.log.last_index
        original(node)

    monkeypatch.setattr(replication, "advance_commit", advance_commit)
    return Server


def votes_for_any_log(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    monkeypatch.setattr(RaftLog, "is_at_most", lambda log, last_index, last_term: True)
    return Server


def keeps_a_truncated_configuration(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    monkeypatch.setattr(ConfigurationHistory, "truncate_from", lambda history, index: False)
    return Server


def gives_up_with_its_vote(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    """Although nobody else may have the entry that takes it away."""
    monkeypatch.setattr(RaftNode, "may_campaign", property(lambda node: node.is_voter))
    return Server


def does_not_wait_for_its_own_vote(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    def restart_retry_timer(
        node: RaftNode, original: Callable[[RaftNode], None] = RaftNode.restart_retry_timer
    ) -> None:
        original(node)
        if node.election_deadline_ms is None:
            node.election_deadline_ms = node.now_ms

    monkeypatch.setattr(RaftNode, "restart_retry_timer", restart_retry_timer)
    return Server


def changes_voters_while_they_change(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    monkeypatch.setattr(membership, "_why_not_now", lambda node: None)
    return Server


BUGS: dict[str, Callable[[pytest.MonkeyPatch], type[Server]]] = {
    "forgets its vote": lambda _: ForgetsItsVote,
    "acknowledges before persist": lambda _: AcknowledgesBeforePersist,
    "commits entries of old terms by counting": commits_old_terms_by_counting,
    "skips truncation": skips_truncation,
    "counts its own log before it is stable": counts_its_log_too_early,
    "votes for any log": votes_for_any_log,
    "keeps a truncated configuration": keeps_a_truncated_configuration,
    "gives up with its vote": gives_up_with_its_vote,
    "does not wait for its own vote": does_not_wait_for_its_own_vote,
    "changes voters while they change": changes_voters_while_they_change,
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_checkers_find(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server_type = BUGS[bug](monkeypatch)
    for seed in range(SEEDS_PER_BUG):
        try:
            World(seed, server_type=server_type).run()
        except FOUND as found:
            print(f"{bug}: found by seed {seed}: {type(found).__name__}: {found}")
            return
    raise AssertionError(f"{bug}: not found by {SEEDS_PER_BUG} seeds")
