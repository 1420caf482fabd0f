"""Group and lag commands against a real broker and real members; the seed's are word for word."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.sdk import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    PartitionLag,
    Refused,
    TopicPartition,
)
from penstock.testing import Broker
from support.processes.command_line import CommandLine

MEMBER = re.compile(r"(\S+): Partitions \[\d+(?:, \d+)*\], Lag: \d+")
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def penstock_broker() -> Iterator[Broker]:
    """One that does not wait for more members before a group's first assignment."""
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


@pytest.fixture
def filled(cli: CommandLine, penstock_broker: Broker, topic: str) -> str:
    """Three partitions with 100 records each, a second apart."""
    cli("topics", "create", "--name", topic, "--partitions", "3")
    with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
        for number in range(300):
            producer.submit(topic, str(number), partition=number % 3, timestamp_ms=START_MS + number // 3 * 1000)
    return topic


@contextmanager
def members(broker: Broker, group: str, topic: str, names: list[str]) -> Iterator[list[BlockingConsumer]]:
    """A settled group whose members have committed nothing."""
    consumers = [
        BlockingConsumer(
            broker.bootstrap_servers, group=group, client_id=name, auto_commit=False, auto_offset_reset="earliest",
            strategy="range",
        )
        for name in names
    ]  # fmt: skip
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
        while sum(len(consumer.assignment()) for consumer in consumers) < 3 or not all(
            consumer.assignment() for consumer in consumers
        ):
            for consumer in consumers:
                consumer.poll(timeout_s=0.05)
        yield consumers
    finally:
        for consumer in consumers:
            consumer.close()


def commit(broker: Broker, group: str, topic: str, offsets: dict[int, int]) -> None:
    with BlockingAdmin(broker.bootstrap_servers) as admin:
        admin.set_group_offsets(group, {TopicPartition(topic, number): offset for number, offset in offsets.items()})


def test_groups_list_as_in_the_seed(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    commit(penstock_broker, group, filled, {0: 1})
    lines = cli("groups", "list").lines
    assert lines[0].split() == ["GROUP", "STATE", "PROTOCOL"]
    assert [group, "Empty", "classic"] in [line.split() for line in lines[1:]]
    listed = json.loads(cli("groups", "list", "--json").out)
    assert {"group": group, "state": "Empty", "protocol": "classic"} in listed


def test_groups_describe_as_in_the_seed(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    with members(penstock_broker, group, filled, ["Consumer-1", "Consumer-2"]) as consumers:
        first = next(consumer for consumer in consumers if len(consumer.assignment()) == 2)
        second = next(consumer for consumer in consumers if len(consumer.assignment()) == 1)
        first.commit(dict.fromkeys(first.assignment(), 50))
        second.commit(dict.fromkeys(second.assignment(), 100))
        described = cli("groups", "describe", "--group", group).lines
        names = {0: "Consumer-1", 1: "Consumer-2"}
        assert all(map(MEMBER.fullmatch, described))
        assert described == [
            f"{names[consumers.index(first)]}: Partitions [0, 1], Lag: 100",
            f"{names[consumers.index(second)]}: Partitions [2], Lag: 0",
        ]
        found = json.loads(cli("groups", "describe", "--group", group, "--json").out)
        assert (found["state"], found["protocol"], found["assignor"]) == ("Stable", "classic", "range")
        assert [(one["client_id"], one["lag"]) for one in found["members"]] == [
            (names[consumers.index(first)], 100),
            (names[consumers.index(second)], 0),
        ]
    assert cli("groups", "describe", "--group", group).lines == ["(no member): Partitions [0, 1, 2], Lag: 100"]


def test_lag_as_in_the_seed(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    commit(penstock_broker, group, filled, {0: 100, 1: 60, 2: 0})
    words = [line.split() for line in cli("lag", "--group", group).lines]
    assert words[0] == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CONSUMER"]
    assert words[1:4] == [
        [filled, "0", "100", "100", "0", "-"],
        [filled, "1", "60", "100", "40", "-"],
        [filled, "2", "0", "100", "100", "-"],
    ]
    assert words[4] == f"Total lag of {group}: 140".split()
    found = json.loads(cli("lag", "--group", group, "--json").out)
    assert found["total_lag"] == 140
    assert found["partitions"][1] == {
        "topic": filled,
        "partition": 1,
        "committed": 60,
        "end_offset": 100,
        "lag": 40,
        "member_id": None,
    }
    assert [group, "Empty", "140"] in [line.split() for line in cli("lag").lines]


def new_offsets(cli: CommandLine, group: str, *arguments: str) -> list[tuple[int | None, int]]:
    ran = cli("groups", "reset-offsets", "--group", group, *arguments, "--json")
    assert ran.code == 0, ran.err
    return [(one["old"], one["new"]) for one in json.loads(ran.out)["offsets"]]


def test_reset_offsets_as_in_the_seed(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    commit(penstock_broker, group, filled, {0: 10, 1: 20, 2: 30})
    lines = cli("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest").lines
    assert [line.split() for line in lines] == [
        ["GROUP", "TOPIC", "PARTITION", "OLD", "NEW"],
        [group, filled, "0", "10", "0"],
        [group, filled, "1", "20", "0"],
        [group, filled, "2", "30", "0"],
    ]


def test_every_place_to_reset_to(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    one = ("--topic", f"{filled}:1")
    assert new_offsets(cli, group, *one, "--to-latest") == [(None, 100)]
    assert new_offsets(cli, group, *one, "--to-offset", "42") == [(100, 42)]
    assert new_offsets(cli, group, *one, "--shift-by", "-10") == [(42, 32)]
    assert new_offsets(cli, group, *one, "--shift-by", "5") == [(32, 37)]
    moment = datetime.fromtimestamp(START_MS / 1000 + 69.5, UTC).isoformat()
    assert new_offsets(cli, group, *one, "--to-datetime", moment) == [(37, 70)]
    assert new_offsets(cli, group, *one, "--to-datetime", "2100-01-01T00:00:00") == [(70, 100)]
    assert new_offsets(cli, group, *one, "--to-offset", "1000") == [(100, 100)]
    assert new_offsets(cli, group, *one, "--shift-by", "-1000") == [(100, 0)]
    assert new_offsets(cli, group, "--all-topics", "--to-offset", "7") == [(0, 7)]


def test_a_dry_run_changes_nothing(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    commit(penstock_broker, group, filled, {0: 10})
    ran = cli("groups", "reset-offsets", "--group", group, "--topic", f"{filled}:0", "--to-latest", "--dry-run")
    assert ran.lines[1].split()[-2:] == ["10", "100"]
    assert "Nothing was changed" in ran.err
    assert new_offsets(cli, group, "--topic", f"{filled}:0", "--shift-by", "0") == [(10, 10)]


def test_reset_is_refused_while_the_group_has_members(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str
) -> None:
    with members(penstock_broker, group, filled, ["only"]) as (consumer,):
        consumer.commit(dict.fromkeys(consumer.assignment(), 5))
        for more in ((), ("--dry-run",)):
            ran = cli("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest", *more)
            assert (ran.code, ran.out) == (1, "")
            assert f"group {group} has 1 active member: stop them first" in ran.err
        refused = cli("groups", "delete", "--group", group)
        assert refused.code == 1
        assert "NON_EMPTY_GROUP" in refused.err
        assert set(consumer.committed().values()) == {5}


def test_reset_then_the_group_reads_again(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    consume = ("consume", "--topic", filled, "--group", group, "--template", "{partition}:{offset}")
    everything = {f"{partition}:{offset}" for partition in range(3) for offset in range(100)}
    assert set(cli(*consume).lines) == everything
    assert cli(*consume).lines == []  # committed
    cli("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-offset", "98")
    assert set(cli(*consume).lines) == {f"{number}:{offset}" for number in range(3) for offset in (98, 99)}
    moment = datetime.fromtimestamp(START_MS / 1000 + 97, UTC).isoformat()
    cli("groups", "reset-offsets", "--group", group, "--topic", f"{filled}:2", "--to-datetime", moment)
    assert cli(*consume).lines == ["2:97", "2:98", "2:99"]
    cli("groups", "reset-offsets", "--group", group, "--topic", filled, "--to-earliest")
    assert set(cli(*consume).lines) == everything
    cli("groups", "reset-offsets", "--group", group, "--topic", f"{filled}:0", "--to-earliest")
    assert cli(*consume, "--max", "10").lines == [f"0:{offset}" for offset in range(10)]
    assert cli(*consume, "--max", "1").lines == ["0:10"]  # only what was printed is committed


def test_delete(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    commit(penstock_broker, group, filled, {0: 1})
    assert cli("groups", "delete", "--group", group).lines == [f"Deleted group {group}."]
    for command in (("groups", "describe"), ("lag",), ("groups", "delete")):
        ran = cli(*command, "--group", group)
        assert ran.code == 1
        assert group in ran.err
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", [("groups", "describe"), ("groups", "explain"), ("lag",)])
def test_a_group_by_its_name_alone(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str, command: tuple[str, ...]
) -> None:
    commit(penstock_broker, group, filled, {0: 1})
    by_option = cli(*command, "--group", group, "--json").out
    assert json.loads(by_option)["group"] == group
    assert cli(*command, group, "--json").out == by_option
    twice = cli(*command, group, "--group", group)
    assert (twice.code, "name the group once" in twice.err) == (2, True)


def test_usage(cli: CommandLine, topic: str, group: str) -> None:
    reset = ("groups", "reset-offsets", "--group", group)
    nameless = cli("groups", "describe")
    assert (nameless.code, "name the group: GROUP or --group GROUP" in nameless.err) == (2, True)
    assert cli(*reset, "--topic", topic).code == 2
    assert cli(*reset, "--topic", topic, "--to-earliest", "--to-latest").code == 2
    assert cli(*reset, "--to-earliest").code == 2
    assert cli(*reset, "--topic", topic, "--all-topics", "--to-earliest").code == 2
    assert cli(*reset, "--topic", topic, "--to-datetime", "soon").code == 2
    missing = cli(*reset, "--topic", topic, "--to-earliest")
    assert missing.code == 1
    assert f"topic {topic}" in missing.err


def test_a_topic_partition_that_is_not_there(cli: CommandLine, filled: str, group: str) -> None:
    ran = cli("groups", "reset-offsets", "--group", group, "--topic", f"{filled}:7", "--to-earliest")
    assert ran.code == 2
    assert "has no partition 7: it has 0 to 2" in ran.err


def test_a_deleted_topic_hides_nothing_else(cli: CommandLine, penstock_broker: Broker, filled: str, group: str) -> None:
    other, gone = f"other-{group}", f"gone-{filled}"
    commit(penstock_broker, other, filled, {0: 40})
    cli("topics", "create", "--name", gone, "--partitions", "3")
    with members(penstock_broker, group, gone, ["only"]) as (consumer,):
        consumer.commit(dict.fromkeys(consumer.assignment(), 0))
        cli("topics", "delete", "--name", gone)
        sums = [line.split() for line in cli("lag").lines]
        assert [other, "Empty", "60"] in sums
        assert group in [words[0] for words in sums]
        rows = [line.split() for line in cli("lag", "--group", group).lines]
        assert [row[:2] + row[3:] for row in rows[1:-1]] == [[gone, str(n), "-", "-", "only"] for n in range(3)]
        assert cli("groups", "describe", "--group", group).lines == ["only: Partitions [0, 1, 2], Lag: -"]
        found = json.loads(cli("lag", "--group", group, "--json").out)
        assert [(one["end_offset"], one["lag"]) for one in found["partitions"]] == [(None, None)] * 3


def test_a_group_that_cannot_be_read_hides_no_other(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"other-{group}"
    commit(penstock_broker, group, filled, {0: 40})
    commit(penstock_broker, other, filled, {0: 40})
    lag = BlockingAdmin.lag

    def refused(self: BlockingAdmin, group_id: str) -> list[PartitionLag]:
        if group_id == group:
            raise Refused("not this one")
        return lag(self, group_id)

    monkeypatch.setattr(BlockingAdmin, "lag", refused)
    ran = cli("lag")
    rows = [line.split() for line in ran.out.splitlines()]
    assert [group, "Empty", "-"] in rows
    assert [other, "Empty", "60"] in rows
    assert (ran.code, ran.err) == (1, "penstock: not this one\n")


def test_shift_by_needs_something_to_count_from(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str
) -> None:
    commit(penstock_broker, group, filled, {0: 10, 2: 30})
    ran = cli("groups", "reset-offsets", "--group", group, "--topic", filled, "--shift-by", "5")
    assert (ran.code, ran.out) == (1, "")
    assert f"group {group} has committed nothing in {filled}-1, so there is no offset to shift" in ran.err
    assert new_offsets(cli, group, "--topic", f"{filled}:0,2", "--shift-by", "5") == [(10, 15), (30, 35)]


def group_reader(broker: Broker, topic: str, group: str, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "consume", "--topic", topic, "--group", group, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_reader_that_is_told_to_stop_commits_and_leaves(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str, number: signal.Signals
) -> None:
    with group_reader(penstock_broker, filled, group, "--follow", "--from-beginning") as process:
        assert process.stdout is not None
        for _ in range(300):
            process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert cli("groups", "describe", "--group", group).lines == ["(no member): Partitions [0, 1, 2], Lag: 0"]


def test_a_member_that_does_not_answer_is_waited_for(
    cli: CommandLine, penstock_broker: Broker, filled: str, group: str, tmp_path: Path
) -> None:
    short_session = tmp_path / "client.properties"
    short_session.write_text("session.timeout.ms=6000\n")
    more = ("--from-beginning", "--follow", "--command-config", str(short_session))
    with group_reader(penstock_broker, filled, group, *more) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    with group_reader(penstock_broker, filled, group, "--max", "1", "--timeout", "3") as process:
        out, err = process.communicate(timeout=60)
    assert err.decode().startswith(f"penstock: group {group} is waiting for a member that does not answer; the")
    assert (process.returncode, len(out.splitlines())) == (0, 1)


def test_a_member_that_is_given_nothing_says_so(
    cli: CommandLine, penstock_broker: Broker, topic: str, group: str
) -> None:
    cli("topics", "create", "--name", topic, "--partitions", "1")
    with group_reader(penstock_broker, topic, group, "--follow") as process:
        while not cli("groups", "list").out.count(f"{group} "):
            time.sleep(0.1)
        while "Partitions [0]" not in cli("groups", "describe", "--group", group).out:
            time.sleep(0.1)
        ran = cli("consume", "--topic", topic, "--group", group, "--timeout", "2")
        process.terminate()
        process.communicate(timeout=30)
    assert (ran.code, ran.out) == (1, "")
    assert f"group {group} assigned no partition of {topic} to this member: its 2 members have them all" in ran.err
