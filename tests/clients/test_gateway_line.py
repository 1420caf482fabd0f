"""The line protocol from the outside: the page's transcript byte for byte, and what people may do to it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.processes.broker import BrokerProcess
from support.processes.gateway import PAGE, ROOT, Netcat, gateway_port, transcript

GATEWAY = {"penstock.line.listener": "127.0.0.1:0", "penstock.http.listener": ""}
_numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("lines"), GATEWAY) as process:
        yield process
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


@pytest.fixture(scope="module")
def port(broker: BrokerProcess) -> int:
    return gateway_port(broker, "lines")


@pytest.fixture
def nc(port: int) -> Iterator[Netcat]:
    with Netcat(port) as caller:
        yield caller


@pytest.fixture
def topic() -> str:
    return f"lines-{next(_numbers)}"


PAGES = [page for page in (PAGE, ROOT / "README.md") if "\n$ nc " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_transcript_byte_for_byte(page: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as fresh, Netcat(gateway_port(fresh, "lines")) as caller:
        turns = transcript(page)
        assert len(turns) >= 10
        for typed, received in turns:
            caller.send(typed)
            assert caller.answer() == received, typed
        assert caller.line() == b""  # QUIT closes
        # The same once more without waiting for answers, as a script would send it.
    (tmp_path / "again").mkdir()
    with BrokerProcess(tmp_path / "again", GATEWAY) as fresh, Netcat(gateway_port(fresh, "lines")) as caller:
        caller.send(b"".join(typed for typed, _ in turns))
        assert caller.rest() == b"".join(received for _, received in turns)


def test_what_a_kafka_client_writes_and_back(broker: BrokerProcess, nc: Netcat, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"\x00binary\xff\nline", key=b"a key")
    producer.produce(topic, None, key=b"-")
    assert producer.flush(10) == 0
    assert nc.ask(f"CONSUME {topic}").split("\n") == [
        r"MSG 0 0 a\skey \x00binary\xff\nline",
        r"MSG 0 1 \- \N",
        "OK 2 0:2",
    ]
    assert nc.ask(f"PUBLISHKEY {topic} k \\x41 stays") == "OK 0 2"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 2)])
    (message,) = consumer.consume(1, timeout=10)
    assert (message.key(), message.value()) == (b"k", b"\\x41 stays")
    consumer.close()


def test_partitions_keys_and_ranges(nc: Netcat, topic: str) -> None:
    assert nc.ask(f"CREATE {topic} 3") == f"OK {topic} 3"
    assert [nc.ask(f"PUBLISH {topic} {n}") for n in range(4)] == ["OK 0 0", "OK 1 0", "OK 2 0", "OK 0 1"]
    assert nc.ask(f"PUBLISH {topic}/2 direct") == "OK 2 1"
    assert len({nc.ask(f"PUBLISHKEY {topic} key x").split()[1] for _ in range(3)}) == 1
    assert nc.ask(f"PUBLISH {topic}/9 x") == f"ERR topic '{topic}' has no partition 9"
    assert nc.ask(f"CONSUME {topic} 2 1 1") == "MSG 2 1 - direct\nOK 1 2:2"
    assert nc.ask(f"CONSUME {topic} * earliest 2") == "MSG 0 0 - 0\nMSG 0 1 - 3\nOK 2 0:2 1:0 2:0"
    assert nc.ask(f"CONSUME {topic} 2 latest").startswith("OK 0 2:")
    assert nc.ask(f"CONSUME {topic} 2 77").startswith(
        f"ERR offset 77 is outside {topic}-2: it begins at 0 and ends before "
    )
    assert nc.ask(f"CONSUME {topic} 5") == f"ERR topic '{topic}' has no partition 5"
    assert nc.ask(f"CREATE {topic} 3").startswith("ERR ")
    assert nc.ask(f"CREATE {topic}-none 0").startswith("ERR ")


def test_by_time(nc: Netcat, topic: str) -> None:
    nc.ask(f"PUBLISH {topic} early")
    time.sleep(0.01)
    between = round(time.time() * 1000)
    time.sleep(0.01)
    nc.ask(f"PUBLISH {topic} late")
    assert nc.ask(f"CONSUME {topic} 0 @{between}") == "MSG 0 1 - late\nOK 1 0:2"
    assert nc.ask(f"CONSUME {topic} 0 @{between + 10**9}") == "OK 0 0:2"


def test_more_than_one_fetch(nc: Netcat, topic: str) -> None:
    value = "x" * 10_000
    nc.send(f"PUBLISH {topic} {value}\n".encode() * 300)
    assert [nc.answer() for _ in range(300)] == [b"OK 0 %d\n" % n for n in range(300)]
    answer = nc.ask(f"CONSUME {topic} 0 0 10000").split("\n")
    assert answer[-1] == "OK 300 0:300"
    assert answer[299] == f"MSG 0 299 - {value}"
    assert nc.ask(f"CONSUME {topic}").split("\n")[-1] == "OK 100 0:100"


def test_a_line_that_is_too_long_costs_an_error_not_the_connection(nc: Netcat, topic: str) -> None:
    nc.send(b"PUBLISH t " + b"x" * (3 << 20) + b"\n")
    assert nc.answer() == b"ERR a line must have at most 1048576 bytes\n"
    assert nc.ask(f"PUBLISH {topic} ok") == "OK 0 0"
    longest = (1 << 20) - len(f"PUBLISH {topic} ")
    nc.send(f"PUBLISH {topic} ".encode() + b"y" * longest + b"\n")
    assert nc.answer().startswith((b"OK 0 1", b"ERR "))
    nc.send(b"z" * (2 << 20))
    assert nc.answer() == b"ERR a line must have at most 1048576 bytes\n", "before the line ends"
    nc.send(b"z\n")
    assert nc.ask(f"CONSUME {topic} 0 0 1") == "MSG 0 0 - ok\nOK 1 0:1"
    nc.send(b"z" * (2 << 20))
    assert nc.rest() == b"ERR a line must have at most 1048576 bytes\n"


def test_the_last_line_needs_no_line_feed(nc: Netcat, topic: str) -> None:
    nc.send(f"PUBLISH {topic} one\r\n\nPUBLISH {topic} two".encode())
    assert nc.rest() == b"OK 0 0\nOK 0 1\n"


def test_follow(port: int, nc: Netcat, topic: str) -> None:
    nc.ask(f"PUBLISH {topic} before")
    nc.send(f"FOLLOW {topic} 0 0\n".encode())
    assert nc.line() == b"MSG 0 0 - before\n"
    with Netcat(port) as other:
        assert other.ask(f"PUBLISH {topic} after") == "OK 0 1"
    assert nc.line() == b"MSG 0 1 - after\n"
    nc.send(b"\n")
    assert nc.line() == b"OK 2 0:2\n"
    nc.send(f"FOLLOW {topic}\n".encode())
    time.sleep(0.2)
    assert nc.ask("TOPICS").startswith("OK 0 0:2")
    assert nc.answer().decode().endswith("\n")
    assert nc.ask("FOLLOW nothing-here") == "ERR topic 'nothing-here' does not exist"


def test_commit_and_resume(port: int, topic: str) -> None:
    with Netcat(port) as nc:
        for n in range(3):
            nc.ask(f"PUBLISH {topic} {n}")
        assert nc.ask(f"OFFSET {topic}-group {topic} 0") == "OK none"
        assert nc.ask(f"COMMIT {topic}-group {topic} 0 1") == "OK 1"
        assert nc.ask(f"COMMIT {topic}-group {topic} 4 1") == f"ERR topic '{topic}' has no partition 4"
    with Netcat(port) as nc:
        resumed = nc.ask(f"OFFSET {topic}-group {topic} 0").removeprefix("OK ")
        assert nc.ask(f"CONSUME {topic} 0 {resumed}") == "MSG 0 1 - 1\nMSG 0 2 - 2\nOK 2 0:3"
        assert nc.ask(f"COMMIT {topic}-group {topic} 0 0") == "OK 0"  # replay
        assert nc.ask(f"OFFSET {topic}-group {topic} 0") == "OK 0"


def test_help_and_nonsense(nc: Netcat) -> None:
    assert nc.ask("HELP").endswith("milliseconds since 1970.\nOK")
    assert nc.ask("GET orders") == "ERR unknown command GET; HELP lists all commands"
    nc.send(b"\xff\xfe\x00\n")
    assert nc.answer().startswith(b"ERR unknown command")


@pytest.mark.parametrize("first", [b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"Host: x\r\n"])
def test_what_a_web_page_posts_is_not_carried_out(port: int, nc: Netcat, topic: str, first: bytes) -> None:
    with Netcat(port) as page:
        page.send(first + f"PUBLISH {topic} pwned\nCREATE {topic}-too\n".encode())
        assert page.rest() == b"ERR this is the line protocol, not HTTP; goodbye\n"
    assert topic not in nc.ask("TOPICS")


def test_followers_that_leave_are_not_worth_a_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        port = gateway_port(broker, "lines")
        with Netcat(port) as nc:
            nc.ask("PUBLISH t 0")
            for reset in (False, True):
                follower = Netcat(port)
                follower.send(b"FOLLOW t\n")
                time.sleep(0.3)
                if reset:  # no goodbye: the connection is torn down
                    follower.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                follower.close()
                nc.ask("PUBLISH t 1")
            time.sleep(0.3)
            nc.send(b"FOLLOW t\n")  # one that is there when the broker ends
            time.sleep(0.3)
            assert broker.terminate() == 0
        assert "Traceback" not in broker.log()
        assert "exception" not in broker.log().lower()


# -- the process of the gateway --------------------------------------------------------------


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_process_starts_with_the_first_caller_and_ends_with_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        port = gateway_port(broker, "lines")
        assert children(broker.pid) == []
        with Netcat(port) as nc:
            assert nc.ask("PUBLISH t 1") == "OK 0 0"
        (gateway,) = children(broker.pid)
        assert broker.terminate() == 0
        assert not is_alive(gateway)
        assert "Traceback" not in broker.log()


def test_after_kill_9_of_the_broker_the_gateway_is_gone_and_the_next_one_has_the_ports(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, GATEWAY)
    with broker:
        port = gateway_port(broker, "lines")
        with Netcat(port) as nc:
            assert nc.ask("PUBLISH t 1") == "OK 0 0"
        (gateway,) = children(broker.pid)
        broker.kill()
        broker.settings["penstock.line.listener"] = f"127.0.0.1:{port}"
        broker.start()
        wait_until(lambda: not is_alive(gateway), 2)
        with Netcat(port) as nc:
            assert nc.ask("CONSUME t") == "MSG 0 0 - 1\nOK 1 0:1"


def test_a_gateway_that_dies_starts_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        port = gateway_port(broker, "lines")
        with Netcat(port) as nc:
            assert nc.ask("PUBLISH t 1") == "OK 0 0"
        (gateway,) = children(broker.pid)
        os.kill(gateway, signal.SIGKILL)
        with Netcat(port) as nc:  # waits in the backlog
            assert nc.ask("CONSUME t") == "MSG 0 0 - 1\nOK 1 0:1"
        assert children(broker.pid) != [gateway]
        assert "gateway: process ended" in broker.log()


@pytest.mark.parametrize("name", ["line", "http"])
def test_a_taken_port_is_one_sentence(name: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "penstock.cli", "start", "--port", "0", "--data", str(tmp_path / "data")]
        command += ["--set", f"penstock.{name}.listener={address}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith(f"penstock: penstock.{name}.listener: cannot listen on {address}: the port is taken")
