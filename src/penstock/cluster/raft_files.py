"""The small files of a Raft server, and its entries as record batches. Formats only: `raft_store` decides when to
write.

quorum-state                                    term and vote as JSON, with the names Kafka uses, and whether this disk
                                                began empty and has not caught up (penstockIsNew)
00000000000000001234-0000000007.checkpoint      a snapshot: index 1234 of term 7; a line of JSON, then the data
0000....log                                     one batch per entry: offset = index - 1, leader epoch = term

Raft's own entries (no-op, configuration) have a record key with their kind; decisions have none, as before Raft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from crc32c import crc32c

from penstock.cluster.log_damage import STABLE_HEADER
from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import HardState
from penstock.core.raft.messages import Entry, EntryKind, Snapshot
from penstock.model.errors import StorageError
from penstock.ports.disk import Buffer, Disk
from penstock.records.batch import HEADER_SIZE, iterate_headers
from penstock.records.builder import Record, build_batch, iterate_records
from penstock.storage.files import read_whole

QUORUM_STATE = "quorum-state"
IS_NEW = "penstockIsNew"
CHECKPOINT = ".checkpoint"
_CHECKPOINT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_KEYS = {EntryKind.NO_OP: b"no-op", EntryKind.CONFIGURATION: b"configuration"}
_WITHOUT_QUORUM_STATE = (
    "without it this server could vote twice: restore it from a copy, or, where other voters have the metadata, remove "
    "the server from the cluster and add it again with an empty data directory"
)
_KINDS = {key: kind for kind, key in _KEYS.items()}


# ---- entries


def encode_entries(entries: Sequence[Entry], stable_offset: int, now_ms: int) -> bytes:
    stable = ((STABLE_HEADER, b"%d" % stable_offset),)
    return b"".join(
        build_batch(
            [Record(_KEYS.get(entry.kind), entry.data, stable, now_ms)],
            base_offset=entry.index - 1,
            leader_epoch=entry.term,
        )
        for entry in entries
    )


def decode_entries(data: Buffer, path: str, position: int) -> Iterator[Entry]:
    """Raises CorruptBatch. A batch of several records is from before Raft: one entry for each record."""
    view = memoryview(data)
    for at, header in iterate_headers(view, path, position):
        for record in iterate_records(header, view[at + HEADER_SIZE : at + header.size_bytes]):
            kind = _KINDS.get(record.key, EntryKind.DATA) if record.key is not None else EntryKind.DATA
            yield Entry(record.offset + 1, header.leader_epoch, kind, record.value or b"")


# ---- term and vote


def encode_quorum_state(state: HardState, voters: Sequence[NodeId]) -> bytes:
    fields: dict[str, Any] = {
        "leaderId": -1,
        "leaderEpoch": state.term,
        "votedId": -1 if state.voted_for is None else state.voted_for,
        "currentVoters": [{"voterId": voter} for voter in voters],
        "data_version": 0,
    }
    if state.is_new:
        fields[IS_NEW] = True
    return json.dumps(fields).encode() + b"\n"


def read_quorum_state(disk: Disk, directory: str) -> tuple[HardState, tuple[NodeId, ...]] | None:
    """Term and vote, and the first voters. None: never written."""
    path = f"{directory}/{QUORUM_STATE}"
    data = read_whole(disk, path)
    if data is None:
        return None
    try:
        fields = json.loads(data)
        term, voted, voters = fields["leaderEpoch"], fields["votedId"], fields["currentVoters"]
        known = tuple(int(voter["voterId"]) for voter in voters)
        return HardState(int(term), None if voted < 0 else int(voted), fields.get(IS_NEW) is True), known
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}); {_WITHOUT_QUORUM_STATE}") from error


def missing_quorum_state(directory: str) -> str:
    """The file is written before the first entry of any term."""
    return f"{directory}/{QUORUM_STATE} is missing, but the log beside it belongs to a quorum; {_WITHOUT_QUORUM_STATE}"


def impossible_term(directory: str, term: int) -> str:
    return (
        f"{directory}: the log has entries of term {term}, which no quorum can reach, so it cannot be trusted: restore "
        "the data directory from a copy, or, where other voters have the metadata, remove the server from the cluster "
        "and add it again with an empty data directory"
    )


# ---- snapshots


def checkpoint_path(directory: str, snapshot: Snapshot) -> str:
    return f"{directory}/{snapshot.index:020d}-{snapshot.term:010d}{CHECKPOINT}"


def encode_checkpoint(snapshot: Snapshot) -> bytes:
    fields = {
        "voters": snapshot.configuration.voters,
        "observers": snapshot.configuration.observers,
        "size": len(snapshot.data),
        "crc32c": crc32c(snapshot.data),
    }
    return json.dumps(fields).encode() + b"\n" + snapshot.data


def checkpoint_names(disk: Disk, directory: str) -> list[str]:
    """Oldest first."""
    return [name for name in disk.list_directory(directory) if _CHECKPOINT_NAME.fullmatch(name)]


def read_newest_checkpoint(disk: Disk, directory: str) -> Snapshot | None:
    names = checkpoint_names(disk, directory)
    if not names:
        return None
    path = f"{directory}/{names[-1]}"
    head, _, data = (read_whole(disk, path) or b"").partition(b"\n")
    matched = _CHECKPOINT_NAME.fullmatch(names[-1])
    assert matched is not None
    index, term = map(int, matched.groups())
    try:
        fields = json.loads(head)
        if len(data) != fields["size"] or crc32c(data) != fields["crc32c"]:
            raise ValueError("its checksum does not match")
        configuration = Configuration(tuple(fields["voters"]), tuple(fields["observers"]))
        return Snapshot(index, term, configuration, data)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged ({error}): restore it from a copy of the data directory, or remove the server from "
            "the cluster and add it again with an empty one"
        ) from error
