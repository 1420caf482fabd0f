"""Rows of aborted transactions, which only those read who want to; and rows that are taken from topic to topic once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from group_processes import create_topic
from transactional_clients import LIBRARIES, Transactions, committed_offset, producing, read

from support.processes.broker import BrokerProcess

pytestmark = pytest.mark.parametrize("library", sorted(LIBRARIES))
ROWS = 60
ROWS_PER_TRANSACTION = 7


def rows(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_rows_of_an_aborted_transaction_are_not_read(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as producer:
        for number in range(6):
            producer.begin()
            producer.send(topic, *rows(10 * number, 10 * number + 10))
            if number % 2:
                producer.abort()
            else:
                producer.commit()
        committed = rows(0, 10) + rows(20, 30) + rows(40, 50)
        assert read(library, bootstrap, topic, committed=True) == committed
        assert read(library, bootstrap, topic, committed=False) == rows(0, 60)
        assert read(library, bootstrap, topic, committed=True, offset=15) == committed[10:], "within the aborted rows"


def test_rows_of_two_producers_do_not_mix(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with (
        producing(library, bootstrap, f"one-{topic}") as one,
        producing(library, bootstrap, f"two-{topic}") as two,
    ):
        for number in range(3):
            one.begin()
            two.begin()
            one.send(topic, b"one %d" % number)
            two.send(topic, b"two %d" % number)
            one.send(topic, b"one more %d" % number)
            assert len(read(library, bootstrap, topic, committed=True)) == 2 * number
            one.commit()
            assert read(library, bootstrap, topic, committed=True)[2 * number :] == [b"one %d" % number]
            two.abort()
        expected = [b"one%s %d" % (more, number) for number in range(3) for more in (b"", b" more")]
        assert read(library, bootstrap, topic, committed=True) == expected


def test_what_a_fenced_or_slow_producer_left_open_is_not_read(bootstrap: str, topic: str, library: str) -> None:
    create_topic(bootstrap, topic, 1)
    with producing(library, bootstrap, f"id-{topic}") as first:
        first.begin()
        first.send(topic, b"of the first")
        with producing(library, bootstrap, f"id-{topic}") as second:
            second.begin()
            second.send(topic, b"of the second")
            second.commit()
    with producing(library, bootstrap, f"slow-{topic}", timeout_ms=1_000) as slow:
        slow.begin()
        slow.send(topic, b"slow")
        with producing(library, bootstrap, f"id-{topic}") as third:
            third.begin()
            third.send(topic, b"of the third")
            third.commit()
        expected = [b"of the second", b"of the third"]
        deadline = time.monotonic() + 15
        while read(library, bootstrap, topic, committed=True) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
    assert read(library, bootstrap, topic, committed=True) == expected
    assert read(library, bootstrap, topic, committed=False) == [
        b"of the first",
        b"of the second",
        b"slow",
        b"of the third",
    ]


@pytest.mark.parametrize("how", ["kill -9", "stop"])
def test_aborted_rows_stay_so_over_a_restart_of_the_broker(tmp_path: Path, library: str, how: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "t", 1)
        with producing(library, servers, "id") as producer:
            for value in (b"aborted", b"committed"):
                producer.begin()
                producer.send("t", value)
                if value == b"aborted":
                    producer.abort()
                else:
                    producer.commit()
            producer.begin()
            producer.send("t", b"in the middle")
            if how == "stop":
                assert broker.terminate() == 0
            else:
                broker.kill()
            broker.start()
            assert read(library, servers, "t", committed=True) == [b"committed"]
            producer.send("t", b"and after")
            producer.abort()
            producer.begin()
            producer.send("t", b"the next")
            producer.commit()
        assert read(library, servers, "t", committed=True) == [b"committed", b"the next"]
        assert len(read(library, servers, "t", committed=False)) == 5


# -- from topic to topic ----------------------------------------------------------------


def take(producer: Transactions, library: str, servers: str, topics: tuple[str, str], group: str) -> bool:
    """Some rows in one transaction, open as yet; whether there were any."""
    source, sink = topics
    offset = committed_offset(servers, group, source)
    found = read(library, servers, source, committed=True, offset=offset)[:ROWS_PER_TRANSACTION]
    if not found:
        return False
    producer.begin()
    producer.send(sink, *(b"row " + value for value in found))
    producer.send_offset(group, source, offset + len(found))
    return True


def test_each_row_is_taken_once_whatever_happens_in_between(tmp_path: Path, library: str) -> None:
    """Transactions are aborted, producers give up and start again, the broker is killed."""
    with BrokerProcess(tmp_path) as broker:
        servers = broker.bootstrap_servers
        for topic in ("in", "out"):
            create_topic(servers, topic, 1)
        with producing("confluent", servers, "source") as source:
            source.begin()
            source.send("in", *rows(0, ROWS))
            source.commit()
        mishaps = iter(["abort", "", "give up", "kill -9", "", "kill -9 and give up", "abort"])
        is_left = True
        while is_left:
            with producing(library, servers, "id") as producer:
                while is_left := take(producer, library, servers, ("in", "out"), "g"):
                    mishap = next(mishaps, "")
                    if mishap.startswith("kill -9"):
                        broker.kill()
                        broker.start()
                    if mishap == "abort":
                        producer.abort()
                    elif mishap.endswith("give up"):
                        break
                    else:
                        producer.commit()
                    if mishap == "kill -9" and library == "confluent":
                        # librdkafka 2.16.0 sends its next TxnOffsetCommit to the broker handle that it has terminated.
                        break
        assert next(mishaps, None) is None
        assert read(library, servers, "out", committed=True) == [b"row " + value for value in rows(0, ROWS)]
        assert len(read(library, servers, "out", committed=False)) > ROWS
        assert committed_offset(servers, "g", "in") == ROWS
