"""Raft's messages as bytes and back. Every byte from the network is checked: raises ProtocolError.

Payload:  kind uint8 | sender int32 | recipient int32 | term uint32 | body
Hello:    0 | protocol uint8 | sender int32 | recipient int32 | texts, with spaces between: cluster id, the sender's
          address, its directory id, and the directory id that the recipient must have. First on every connection;
          answered.
Ping:     1. Answered, so that a silent connection is noticed.

Entries of an append carry no index: they follow `prev_index`. Must not know: connections, roles.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from penstock.core.raft.configuration import Configuration
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
    TimeoutNow,
    VoteResponse,
)
from penstock.core.raft.states import Kind
from penstock.model.errors import ProtocolError

PROTOCOL: Final = 1
HELLO: Final = 0
PING: Final = bytes((1,))
MAX_TERM: Final = 2**31 - 1
"""A term is the leader epoch of its batches."""
MAX_INDEX: Final = 2**62
MAX_MEMBERS: Final = 1000
MAX_HELLO_TEXT_BYTES: Final = 512
HELLO_TEXTS: Final = 4
"""Cluster id, address, and two directory ids."""

_HELLO = Struct(">BBii")
_HEADER = Struct(">BiiI")
_TWO = Struct(">QQ")
_VOTE = Struct(">QQ?")
_FLAG = Struct(">?")
_APPEND = Struct(">QIQI")
_ENTRY = Struct(">IBI")
_APPENDED = Struct(">?QQQI")
_SNAPSHOT = Struct(">QIQ?I")
_MEMBERS = Struct(">HH")
_NODE = Struct(">i")

_CODES: Final = {
    Kind.PRE_VOTE: 2,
    Kind.PRE_VOTE_RESPONSE: 3,
    Kind.REQUEST_VOTE: 4,
    Kind.VOTE_RESPONSE: 5,
    Kind.APPEND_ENTRIES: 6,
    Kind.APPEND_RESPONSE: 7,
    Kind.INSTALL_SNAPSHOT: 8,
    Kind.SNAPSHOT_RESPONSE: 9,
    Kind.TIMEOUT_NOW: 10,
}
_ENTRY_KINDS: Final = (EntryKind.DATA, EntryKind.NO_OP, EntryKind.CONFIGURATION)
_ENTRY_CODES: Final = {kind: code for code, kind in enumerate(_ENTRY_KINDS)}


class Hello(NamedTuple):
    sender: int
    recipient: int
    cluster_id: str
    address: str = ""
    """The sender's address as host:port: the recipient must be able to answer a new node, too."""
    directory_id: str = ""
    """The directory id of the sender's disk; empty: none."""
    recipient_directory_id: str = ""
    """The directory id that the recipient's disk must have; empty: any."""


# ---- writing


def encode_hello(hello: Hello) -> bytes:
    text = " ".join((hello.cluster_id, hello.address, hello.directory_id, hello.recipient_directory_id)).rstrip(" ")
    return _HELLO.pack(HELLO, PROTOCOL, hello.sender, hello.recipient) + text.encode()


def encode(message: Message) -> bytes:
    parts = [_HEADER.pack(_CODES[message.kind], message.sender, message.recipient, message.term)]
    match message:
        case PreVote():
            parts.append(_TWO.pack(message.last_index, message.last_term))
        case RequestVote():
            parts.append(_VOTE.pack(message.last_index, message.last_term, message.is_transfer))
        case PreVoteResponse() | VoteResponse():
            parts.append(_FLAG.pack(message.granted))
        case AppendEntries():
            count = len(message.entries)
            parts.append(_APPEND.pack(message.prev_index, message.prev_term, message.commit_index, count))
            for entry in message.entries:
                parts += (_ENTRY.pack(entry.term, _ENTRY_CODES[entry.kind], len(entry.data)), entry.data)
        case AppendResponse():
            numbers = message.prev_index, message.match_index, message.conflict_index, message.conflict_term
            parts.append(_APPENDED.pack(message.accepted, *numbers))
        case InstallSnapshot():
            place = message.snapshot_index, message.snapshot_term, message.offset
            parts.append(_SNAPSHOT.pack(*place, message.is_last, len(message.chunk)))
            parts += (message.chunk, _members(message.configuration))
        case SnapshotResponse():
            parts.append(_TWO.pack(message.snapshot_index, message.next_offset))
    return b"".join(parts)


def _members(configuration: Configuration) -> bytes:
    head = _MEMBERS.pack(len(configuration.voters), len(configuration.observers))
    return head + b"".join(map(_NODE.pack, configuration.members))


# ---- reading


def is_hello(payload: memoryview) -> bool:
    return len(payload) > 0 and payload[0] == HELLO


def decode_hello(payload: memoryview) -> Hello:
    if not _HELLO.size <= len(payload) <= _HELLO.size + MAX_HELLO_TEXT_BYTES:
        raise ProtocolError(f"invalid hello of {len(payload)} bytes")
    _, protocol, sender, recipient = _HELLO.unpack_from(payload)
    if protocol != PROTOCOL:
        raise ProtocolError(
            f"this server speaks version {PROTOCOL} of the protocol between servers, the other one speaks {protocol}"
        )
    try:
        texts = str(payload[_HELLO.size :], "utf-8").split(" ")
        return Hello(sender, recipient, *texts[:HELLO_TEXTS])
    except UnicodeDecodeError as error:
        raise ProtocolError(f"invalid text in a hello: {error}") from error


def sender_of(payload: memoryview) -> int:
    if len(payload) < _HEADER.size:
        raise ProtocolError(f"invalid message between servers: {len(payload)} bytes")
    return int(_HEADER.unpack_from(payload)[1])


def decode(payload: memoryview) -> Message:
    """The result has no references to `payload`."""
    try:
        code, sender, recipient, term = _HEADER.unpack_from(payload)
        read = _READERS.get(code)
        if read is None:
            raise ProtocolError(f"{code} is not a kind of message between servers")
        _check(min(sender, recipient) >= 0 and term <= MAX_TERM, "a server or term is out of range")
        message, end = read(payload, _HEADER.size, (sender, recipient, term))
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"invalid message between servers: {error}") from error
    _check(end == len(payload), f"{len(payload) - end} bytes follow it")
    return message


_Head = tuple[int, int, int]
_Read = tuple[Message, int]


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise ProtocolError(f"invalid message between servers: {complaint}")


def _pre_vote(payload: memoryview, at: int, head: _Head) -> _Read:
    index, term = _TWO.unpack_from(payload, at)
    _check(index <= MAX_INDEX and term <= MAX_TERM, "a position in the log is out of range")
    return PreVote(*head, index, term), at + _TWO.size


def _pre_vote_response(payload: memoryview, at: int, head: _Head) -> _Read:
    return PreVoteResponse(*head, *_FLAG.unpack_from(payload, at)), at + _FLAG.size


def _request_vote(payload: memoryview, at: int, head: _Head) -> _Read:
    index, term, is_transfer = _VOTE.unpack_from(payload, at)
    _check(index <= MAX_INDEX and term <= MAX_TERM, "a position in the log is out of range")
    return RequestVote(*head, index, term, is_transfer), at + _VOTE.size


def _vote_response(payload: memoryview, at: int, head: _Head) -> _Read:
    return VoteResponse(*head, *_FLAG.unpack_from(payload, at)), at + _FLAG.size


def _append_entries(payload: memoryview, at: int, head: _Head) -> _Read:
    prev_index, prev_term, commit_index, count = _APPEND.unpack_from(payload, at)
    at += _APPEND.size
    _check(max(prev_index, commit_index) <= MAX_INDEX and prev_term <= head[2], "a position in the log is out of range")
    _check(count * _ENTRY.size <= len(payload) - at, f"{count} entries cannot be in it")
    entries: list[Entry] = []
    before = prev_term
    for index in range(prev_index + 1, prev_index + 1 + count):
        term, code, size = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        _check(before <= term <= head[2], f"entry {index} of term {term} after {before}")
        _check(code < len(_ENTRY_KINDS) and size <= len(payload) - at, f"entry {index} of {size} bytes, kind {code}")
        entry = Entry(index, term, _ENTRY_KINDS[code], bytes(payload[at : at + size]))
        if entry.kind is EntryKind.CONFIGURATION:
            Configuration.decode(entry.data)
        entries.append(entry)
        at += size
        before = term
    return AppendEntries(*head, prev_index, prev_term, tuple(entries), commit_index), at


def _append_response(payload: memoryview, at: int, head: _Head) -> _Read:
    accepted, prev, match, conflict, conflict_term = _APPENDED.unpack_from(payload, at)
    in_range = max(prev, match, conflict) <= MAX_INDEX and conflict_term <= MAX_TERM
    _check(in_range, "a position in the log is out of range")
    return AppendResponse(*head, accepted, prev, match, conflict, conflict_term), at + _APPENDED.size


def _install_snapshot(payload: memoryview, at: int, head: _Head) -> _Read:
    index, term, offset, is_last, size = _SNAPSHOT.unpack_from(payload, at)
    at += _SNAPSHOT.size
    _check(max(index, offset) <= MAX_INDEX and term <= head[2], "a position in the log is out of range")
    _check(size <= len(payload) - at, f"{size} bytes of a snapshot cannot be in it")
    chunk = bytes(payload[at : at + size])
    configuration, at = _configuration(payload, at + size)
    return InstallSnapshot(*head, index, term, configuration, offset, chunk, is_last), at


def _configuration(payload: memoryview, at: int) -> tuple[Configuration, int]:
    voters, observers = _MEMBERS.unpack_from(payload, at)
    at += _MEMBERS.size
    _check(voters + observers <= MAX_MEMBERS, f"{voters + observers} servers")
    end = at + (voters + observers) * _NODE.size
    _check(end <= len(payload), f"{voters + observers} servers cannot be in it")
    nodes = [node for (node,) in _NODE.iter_unpack(payload[at:end])]
    return Configuration(tuple(nodes[:voters]), tuple(nodes[voters:])), end


def _snapshot_response(payload: memoryview, at: int, head: _Head) -> _Read:
    index, offset = _TWO.unpack_from(payload, at)
    _check(max(index, offset) <= MAX_INDEX, "a position in the log is out of range")
    return SnapshotResponse(*head, index, offset), at + _TWO.size


def _timeout_now(_: memoryview, at: int, head: _Head) -> _Read:
    return TimeoutNow(*head), at


_READERS: Final[dict[int, Callable[[memoryview, int, _Head], _Read]]] = {
    _CODES[Kind.PRE_VOTE]: _pre_vote,
    _CODES[Kind.PRE_VOTE_RESPONSE]: _pre_vote_response,
    _CODES[Kind.REQUEST_VOTE]: _request_vote,
    _CODES[Kind.VOTE_RESPONSE]: _vote_response,
    _CODES[Kind.APPEND_ENTRIES]: _append_entries,
    _CODES[Kind.APPEND_RESPONSE]: _append_response,
    _CODES[Kind.INSTALL_SNAPSHOT]: _install_snapshot,
    _CODES[Kind.SNAPSHOT_RESPONSE]: _snapshot_response,
    _CODES[Kind.TIMEOUT_NOW]: _timeout_now,
}
