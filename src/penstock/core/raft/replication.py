"""Replication: appending, matching logs, committing (paper, 5.3 and 5.4.2).

A leader sends whenever it may (`replicate`, at the end of each step), in parallel with its own write. It
counts its own log once that is stable, and followers by their acknowledgements, which leave after their
writes. It commits only entries of its own term by counting; entries of older terms commit with them. The
no-op at the start of a term ensures that.
"""

from __future__ import annotations

from penstock.core.raft import snapshots, transfer
from penstock.core.raft.exchange import Accepted, PeerBack, PeerLost, PersistDone, Propose, Refusal, Tick
from penstock.core.raft.messages import AppendEntries, AppendResponse, Entry, EntryKind
from penstock.core.raft.node import RaftNode
from penstock.core.raft.progress import Progress, SendingPace
from penstock.core.raft.states import Move

# ---- the leader


def begin_term(node: RaftNode) -> None:
    node.heartbeat_deadline_ms = node.now_ms + node.settings.heartbeat_interval_ms
    node.uncommitted_bytes = 0
    node.attempts = 0
    follow_configuration(node)
    append_own(node, EntryKind.NO_OP, b"")


def follow_configuration(node: RaftNode) -> None:
    """One progress for each other member; new members are probed from the end of the log."""
    next_index = node.log.last_index + 1
    node.followers = {
        peer: node.followers.get(peer) or Progress(peer, node.settings, next_index, node.now_ms)
        for peer in node.configuration.members
        if peer != node.node_id
    }


def append_own(node: RaftNode, kind: EntryKind, data: bytes) -> Entry:
    entry = Entry(node.log.last_index + 1, node.term, kind, data)
    node.append([entry])
    node.uncommitted_bytes += entry.size_bytes
    return entry


def propose(node: RaftNode, fact: Propose) -> None:
    for proposal in fact.proposals:
        if node.transfer_to is not None:
            node.refuse(proposal.token, Refusal.TRANSFERRING)
        elif node.uncommitted_bytes >= node.settings.max_uncommitted_bytes:
            node.refuse(proposal.token, Refusal.TOO_MUCH_UNCOMMITTED)
        else:
            entry = append_own(node, EntryKind.DATA, proposal.data)
            node.outcome.accepted.append(Accepted(proposal.token, entry.index, entry.term))


def lead(node: RaftNode, _: Tick) -> None:
    if node.now_ms >= quorum_deadline_ms(node):
        step_down(node)
        return
    transfer.give_up_late(node)
    if node.now_ms >= node.heartbeat_deadline_ms:
        node.heartbeat_deadline_ms = node.now_ms + node.settings.heartbeat_interval_ms
        for progress in node.followers.values():
            _heartbeat(node, progress)


def quorum_deadline_ms(node: RaftNode) -> int:
    """The moment when a majority has been silent for an election timeout."""
    heard_ms = {peer: progress.heard_ms for peer, progress in node.followers.items()}
    heard_ms[node.node_id] = node.now_ms
    return node.configuration.quorum_value(heard_ms) + node.settings.election_timeout_ms


def step_down(node: RaftNode) -> None:
    node.move(Move.FOLLOW, leader=None)
    node.restart_election_timer()


def _heartbeat(node: RaftNode, progress: Progress) -> None:
    """Treat a probe or chunk in flight as lost and send it again. Otherwise send an empty append."""
    progress.is_waiting = False
    if progress.pace is SendingPace.REPLICATE:
        _send_append(node, progress, ())
    elif progress.pace is SendingPace.PROBE:
        _send_more(node, progress)
    else:
        snapshots.send_chunk(node, progress)


def replicate(node: RaftNode) -> None:
    """Send every follower what it lacks and may get: entries, commit indexes, chunks of a snapshot."""
    for progress in node.followers.values():
        while progress.may_send and _is_behind(node, progress):
            _send_more(node, progress)


def _is_behind(node: RaftNode, progress: Progress) -> bool:
    if progress.pace is SendingPace.SNAPSHOT or progress.next_index <= node.log.last_index:
        return True
    return progress.commit_sent < node.log.commit_index


def _send_more(node: RaftNode, progress: Progress) -> None:
    if progress.pace is SendingPace.SNAPSHOT:
        snapshots.send_chunk(node, progress)
    elif node.log.term_at(progress.next_index - 1) is None:
        progress.begin_snapshot(node.snapshot)
        snapshots.send_chunk(node, progress)
    else:
        _send_append(node, progress, node.log.batch_from(progress.next_index, node.settings.max_append_bytes))


def _send_append(node: RaftNode, progress: Progress, entries: tuple[Entry, ...]) -> None:
    prev_index = progress.next_index - 1
    prev_term = node.log.term_at(prev_index)
    if prev_term is None:  # compacted while appends were in flight
        progress.probe_from(progress.match_index + 1)
        _send_more(node, progress)
        return
    commit_index = node.log.commit_index
    append = AppendEntries(node.node_id, progress.peer, node.term, prev_index, prev_term, entries, commit_index)
    node.outcome.send_now.append(append)
    progress.commit_sent = max(progress.commit_sent, min(commit_index, prev_index + len(entries)))
    progress.sent(entries)


def append_response(node: RaftNode, answer: AppendResponse) -> None:
    progress = node.followers.get(answer.sender)
    if progress is None:
        return
    progress.heard_ms = node.now_ms
    if answer.accepted:
        progress.accepted(answer.match_index, node.log.base_index)
        if progress.match_index >= node.log.last_index:
            progress.caught_up_ms = node.now_ms
        advance_commit(node)
        transfer.hand_over_if_ready(node)
    elif not progress.is_stale_refusal(answer.prev_index):
        conflict = answer.conflict_index, answer.conflict_term
        progress.refused(answer.prev_index, node.log.next_after_conflict(*conflict, answer.prev_index))


def count_own_log(node: RaftNode, done: PersistDone) -> None:
    node.log.end_write(done.generation)
    advance_commit(node)


def advance_commit(node: RaftNode) -> None:
    match = {peer: progress.match_index for peer, progress in node.followers.items()}
    match[node.node_id] = node.log.stable_index
    index = node.configuration.quorum_value(match)
    if index <= node.log.commit_index or not may_commit_by_counting(node, index):
        return
    before = len(node.outcome.committed)
    node.commit_to(index)
    committed = node.outcome.committed[before:]
    node.uncommitted_bytes -= sum(entry.size_bytes for entry in committed if entry.term == node.term)
    if not node.is_voter and node.configurations.latest_index <= index:
        replicate(node)  # tells the followers about the commit before this leader steps down
        transfer.hand_over_at_once(node)
        step_down(node)


def may_commit_by_counting(node: RaftNode, index: int) -> bool:
    """Figure 8: an entry of an older term on a majority can still be replaced."""
    return node.log.term_at(index) == node.term


def probe_later(node: RaftNode, lost: PeerLost) -> None:
    if (progress := node.followers.get(lost.peer)) is not None:
        progress.probe_from(progress.match_index + 1)
        progress.is_waiting = True


def probe_now(node: RaftNode, back: PeerBack) -> None:
    if (progress := node.followers.get(back.peer)) is not None:
        progress.probe_from(progress.match_index + 1)
        _send_more(node, progress)


# ---- the follower


def append_entries(node: RaftNode, append: AppendEntries) -> None:
    node.follow(append.sender)
    log = node.log
    prev_index = append.prev_index
    if prev_index >= log.base_index and log.term_at(prev_index) != append.prev_term:
        conflict_index, conflict_term = log.conflict_at(prev_index)
        answer = AppendResponse(
            *_back_to(node, append), False, prev_index, conflict_index=conflict_index, conflict_term=conflict_term
        )
        node.outcome.send_now.append(answer)
        return
    append_missing(node, append.entries)
    end = prev_index + len(append.entries)
    node.commit_to(min(append.commit_index, end))
    if _shows_all_committed(node, append):
        node.is_up_to_date()
    answer = AppendResponse(*_back_to(node, append), True, prev_index, match_index=max(end, log.commit_index))
    node.outcome.send_after_persist.append(answer)


def _shows_all_committed(node: RaftNode, append: AppendEntries) -> bool:
    """Whether this disk has everything ever committed. A leader knows that once it has committed an entry of
    its own term."""
    commit_index = append.commit_index
    return commit_index <= node.log.stable_index and node.log.term_at(commit_index) == append.term


def append_missing(node: RaftNode, entries: tuple[Entry, ...]) -> None:
    """Keep existing entries, because the message may be old; truncate at the first difference."""
    position = node.log.first_difference(entries)
    if position is None:
        return
    if entries[position].index <= node.log.last_index:
        node.truncate_from(entries[position].index)
    node.append(list(entries[position:]))


def note_stable(node: RaftNode, done: PersistDone) -> None:
    node.log.end_write(done.generation)


def refuse_stale_append(node: RaftNode, append: AppendEntries) -> None:
    """Tell a former leader, through the term of the answer, that its term is over."""
    node.outcome.send_now.append(AppendResponse(*_back_to(node, append), False, append.prev_index))


def _back_to(node: RaftNode, append: AppendEntries) -> tuple[int, int, int]:
    return node.node_id, append.sender, node.term
