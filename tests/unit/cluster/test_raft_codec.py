"""Raft's messages as bytes: every one comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.raft_codec import (
    MAX_INDEX,
    MAX_TERM,
    PING,
    Hello,
    decode,
    decode_hello,
    encode,
    encode_hello,
    is_hello,
    sender_of,
)
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
from penstock.model.errors import ProtocolError
from penstock.wire.peers import PeerAnswers, peer_answer

nodes = st.integers(0, 2**31 - 1)
terms = st.integers(0, MAX_TERM)
indexes = st.integers(0, MAX_INDEX)
configurations = st.lists(nodes, unique=True, max_size=6).map(
    lambda members: Configuration(tuple(members[::2]), tuple(members[1::2]))
)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    *steps, term = sorted(draw(st.lists(terms, min_size=2, max_size=6)))
    prev_index = draw(st.integers(0, MAX_INDEX - 10))
    entries = []
    for place, each in enumerate(steps[1:], prev_index + 1):
        kind = draw(st.sampled_from(EntryKind))
        data = draw(configurations).encode() if kind is EntryKind.CONFIGURATION else draw(st.binary(max_size=50))
        entries.append(Entry(place, each, kind, data))
    return AppendEntries(draw(nodes), draw(nodes), term, prev_index, steps[0], tuple(entries), draw(indexes))


@st.composite
def snapshots(draw: st.DrawFn) -> InstallSnapshot:
    term = draw(terms)
    of = draw(st.integers(0, term))
    return InstallSnapshot(
        draw(nodes),
        draw(nodes),
        term,
        draw(indexes),
        of,
        draw(configurations),
        draw(indexes),
        draw(st.binary()),
        draw(st.booleans()),
    )


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, nodes, nodes, terms, indexes, terms),
    st.builds(PreVoteResponse, nodes, nodes, terms, st.booleans()),
    st.builds(RequestVote, nodes, nodes, terms, indexes, terms, st.booleans()),
    st.builds(VoteResponse, nodes, nodes, terms, st.booleans()),
    appends(),
    st.builds(AppendResponse, nodes, nodes, terms, st.booleans(), indexes, indexes, indexes, terms),
    snapshots(),
    st.builds(SnapshotResponse, nodes, nodes, terms, indexes, indexes),
    st.builds(TimeoutNow, nodes, nodes, terms),
)


@given(messages)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    data = encode(message)
    assert decode(memoryview(data)) == message
    assert sender_of(memoryview(data)) == message.sender
    assert not is_hello(memoryview(data))
    assert data != PING


@given(messages, st.randoms(use_true_random=False))
def test_what_was_cut_or_changed_is_refused_or_another_message(message: Message, random: Random) -> None:
    data = bytearray(encode(message))
    with pytest.raises(ProtocolError):
        decode(memoryview(data)[: random.randrange(len(data))])
    with pytest.raises(ProtocolError):
        decode(memoryview(data + b"\0"))
    for _ in range(20):
        data[random.randrange(len(data))] = random.randrange(256)
        try:
            decode(memoryview(data))
        except ProtocolError:
            continue


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_a_message(data: bytes) -> None:
    for read in (decode, decode_hello):
        try:
            read(memoryview(data))
        except ProtocolError:
            continue


def test_a_count_that_cannot_be_is_refused_before_anything_is_made() -> None:
    data = bytearray(encode(AppendEntries(1, 2, 3, 0, 0, (), 0)))
    data[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError, match="4294967295 entries"):
        decode(memoryview(data))


def test_hello() -> None:
    hello = Hello(1, 2, "a-cluster", "broker-1.example:9092")
    data = encode_hello(hello)
    assert is_hello(memoryview(data))
    assert decode_hello(memoryview(data)) == hello
    with pytest.raises(ProtocolError, match="version 1"):
        decode_hello(memoryview(data[:1] + b"\7" + data[2:]))


def test_answers_come_in_pieces() -> None:
    answers, stream = PeerAnswers(), peer_answer(7) + peer_answer(8, "another cluster")
    found = [answer for at in range(len(stream)) for answer in answers.feed(stream[at : at + 1])]
    assert found == [(7, ""), (8, "another cluster")]
    with pytest.raises(ProtocolError):
        answers.feed(b"\xff" * 8)
