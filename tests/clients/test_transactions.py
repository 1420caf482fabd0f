"""Transactions with real clients: all of a transaction counts or nothing, and one producer at a time."""

from __future__ import annotations

import time

import pytest
from group_processes import create_topic
from transactional_clients import LIBRARIES, committed_offset, producing, read

pytestmark = pytest.mark.parametrize("library", sorted(LIBRARIES))


def rows(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_rows_are_read_when_their_transaction_commits(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as producer:
        for number in range(3):
            producer.begin()
            producer.send(topic, *rows(10 * number, 10 * number + 10))
            assert read(library, bootstrap, topic, committed=True) == rows(0, 10 * number)
            assert read(library, bootstrap, topic, committed=False) == rows(0, 10 * number + 10)
            producer.commit()
        assert read(library, bootstrap, topic, committed=True) == rows(0, 30)


def test_offsets_count_when_their_transaction_commits(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    group = f"g-{topic}"
    with producing(library, bootstrap, f"id-{topic}") as producer:
        for offset, commits in ((5, True), (6, False), (7, True)):
            producer.begin()
            producer.send(topic, b"row")
            producer.send_offset(group, topic, offset)
            if commits:
                producer.commit()
            else:
                producer.abort()
            assert committed_offset(bootstrap, group, topic) == (offset if commits else offset - 1)


def test_rows_and_offsets_of_several_topics_count_together(bootstrap: str, topic: str, library: str) -> None:
    """Of one group: aiokafka 0.14.0 adds only one to a transaction."""
    topics, group = [f"{topic}-{number}" for number in range(3)], f"g-{topic}"
    for name in topics:
        create_topic(bootstrap, name, 1)
    with producing(library, bootstrap, f"id-{topic}") as producer:
        for number, commits in enumerate((True, False, True), 1):
            producer.begin()
            for name in topics:
                producer.send(name, b"%d" % number)
                producer.send_offset(group, name, number)
            if commits:
                producer.commit()
            else:
                producer.abort()
            expected = [b"1"] if number < 3 else [b"1", b"3"]
            assert [read(library, bootstrap, name, committed=True) for name in topics] == [expected] * 3
            assert [committed_offset(bootstrap, group, name) for name in topics] == [int(expected[-1])] * 3


def test_a_transaction_of_offsets_alone(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as producer:
        producer.begin()
        producer.send_offset(f"g-{topic}", topic, 3)
        producer.commit()
    assert committed_offset(bootstrap, f"g-{topic}", topic) == 3


def test_a_transaction_without_anything_in_it(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
        producer.begin()
        producer.send(topic, b"row")
        producer.commit()
    assert read(library, bootstrap, topic, committed=True) == [b"row"]


def test_a_second_producer_fences_the_first(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as first:
        first.begin()
        first.send(topic, b"committed")
        first.commit()
        first.begin()
        first.send(topic, b"of the first")
        with producing(library, bootstrap, f"id-{topic}") as second:
            second.begin()
            second.send(topic, b"of the second")
            with pytest.raises(first.refused):
                first.commit()
            second.commit()
            second.begin()
            second.send(topic, b"and more")
            second.commit()
    assert read(library, bootstrap, topic, committed=False) == [
        b"committed",
        b"of the first",
        b"of the second",
        b"and more",
    ]


def test_a_producer_that_was_fenced_writes_nothing(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as first:
        first.begin()
        with producing(library, bootstrap, f"id-{topic}") as second:
            with pytest.raises(first.refused):
                first.send(topic, b"late")
            second.begin()
            second.send(topic, b"of the second")
            second.commit()
    assert read(library, bootstrap, topic, committed=False) == [b"of the second"]


def test_a_transaction_that_is_open_for_too_long_cannot_be_committed(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}", timeout_ms=1_000) as producer:
        producer.begin()
        producer.send(topic, b"slow")
        deadline = time.monotonic() + 10
        with producing(library, bootstrap, f"other-{topic}") as other:
            other.begin()
            other.send(topic, b"other")
            other.commit()
        while not read(library, bootstrap, topic, committed=True, offset=1) and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(producer.refused):
            producer.commit()
    assert read(library, bootstrap, topic, committed=True, offset=1) == [b"other"]
    with producing(library, bootstrap, f"id-{topic}") as again:
        again.begin()
        again.send(topic, b"again")
        again.commit()
    assert read(library, bootstrap, topic, committed=True, offset=1) == [b"other", b"again"]
