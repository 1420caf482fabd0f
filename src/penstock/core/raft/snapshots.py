"""Snapshots: shorten the log, and send a snapshot to followers that the log cannot serve (paper, 7).

The core keeps the bytes of its own last snapshot, and for each receiving follower the snapshot it started
with. Chunks go one at a time. The answer says how much the follower has, so lost, duplicate and reordered chunks do no
harm.
"""

from __future__ import annotations

from penstock.core.raft.exchange import SnapshotReady
from penstock.core.raft.messages import AppendResponse, InstallSnapshot, Snapshot, SnapshotResponse
from penstock.core.raft.node import RaftNode
from penstock.core.raft.progress import Progress


def compact(node: RaftNode, ready: SnapshotReady) -> None:
    """Ignore a snapshot that is older than the current one or not committed here."""
    if not node.snapshot.index < ready.index <= node.log.commit_index:
        return
    term = node.log.term_at(ready.index)
    assert term is not None
    node.keep_snapshot(Snapshot(ready.index, term, node.configurations.at(ready.index), ready.data))
    compact_to = ready.index - node.settings.entries_kept_behind_snapshot
    if compact_to > node.log.base_index:
        node.log.compact_to(compact_to)
        node.outcome.compact_to = compact_to


# ---- the leader


def send_chunk(node: RaftNode, progress: Progress) -> None:
    snapshot, offset = progress.snapshot, progress.snapshot_offset
    assert snapshot is not None
    end = offset + node.settings.snapshot_chunk_bytes
    chunk = InstallSnapshot(
        node.node_id,
        progress.peer,
        node.term,
        snapshot.index,
        snapshot.term,
        snapshot.configuration,
        offset,
        snapshot.data[offset:end],
        is_last=end >= len(snapshot.data),
    )
    node.outcome.send_now.append(chunk)
    progress.is_waiting = True


def continue_snapshot(node: RaftNode, answer: SnapshotResponse) -> None:
    progress = node.followers.get(answer.sender)
    if progress is None:
        return
    progress.heard_ms = node.now_ms
    if progress.snapshot is not None and progress.snapshot.index == answer.snapshot_index:
        progress.snapshot_offset = min(answer.next_offset, len(progress.snapshot.data))
        progress.is_waiting = False


# ---- the follower


def install_snapshot(node: RaftNode, chunk: InstallSnapshot) -> None:
    node.follow(chunk.sender)
    if chunk.snapshot_index <= node.log.commit_index:
        _acknowledge(node, chunk)
        return
    coming, data = _incoming(node, chunk)
    if chunk.offset == len(data):
        data += chunk.chunk
        if chunk.is_last:
            node.incoming = None
            _install(node, Snapshot(coming.index, coming.term, coming.configuration, bytes(data)))
            _acknowledge(node, chunk)
            return
    answer = SnapshotResponse(node.node_id, chunk.sender, node.term, chunk.snapshot_index, len(data))
    node.outcome.send_now.append(answer)


def _incoming(node: RaftNode, chunk: InstallSnapshot) -> tuple[Snapshot, bytearray]:
    """A chunk of another snapshot starts a new buffer."""
    head = Snapshot(chunk.snapshot_index, chunk.snapshot_term, chunk.configuration)
    if node.incoming is None or node.incoming[0] != head:
        node.incoming = head, bytearray()
    return node.incoming


def _install(node: RaftNode, snapshot: Snapshot) -> None:
    """A log that contains the snapshot's last entry is correct up to there and only needs a commit."""
    if node.log.term_at(snapshot.index) == snapshot.term:
        node.commit_to(snapshot.index)
    else:
        node.restore(snapshot)


def _acknowledge(node: RaftNode, chunk: InstallSnapshot) -> None:
    commit_index = node.log.commit_index
    answer = AppendResponse(node.node_id, chunk.sender, node.term, True, commit_index, match_index=commit_index)
    node.outcome.send_after_persist.append(answer)


def refuse_stale_chunk(node: RaftNode, chunk: InstallSnapshot) -> None:
    """Tell a former leader, through the term of the answer, that its term is over."""
    node.outcome.send_now.append(SnapshotResponse(node.node_id, chunk.sender, node.term, chunk.snapshot_index, 0))
