"""docs/cli.md is replayed: each `$` line is run and what it prints is compared; `...` stands for anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.sdk import BlockingConsumer, BlockingProducer
from penstock.testing import Broker
from support.processes.command_line import CommandLine

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def sessions() -> dict[str, list[list[tuple[str, str]]]]:
    """By section: blocks of (command line, what it prints)."""
    found: dict[str, list[list[tuple[str, str]]]] = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
            steps = [step.partition("\n") for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
            found.setdefault(section.partition("\n")[0], []).append([(line, printed) for line, _, printed in steps])
    return found


def replay(cli: CommandLine, steps: list[tuple[str, str]]) -> None:
    for line, printed in steps:
        words = shlex.split(line)
        stdin = b""
        if words[0] == "printf":
            stdin = words[1].encode().decode("unicode_escape").encode()
            words = words[3:]
        ran = cli(*words[1:], stdin=stdin, name=words[0])
        pattern = re.escape(printed).replace(re.escape("..."), r"[^\n]*")
        assert re.fullmatch(pattern, ran.out + ran.err), f"{line}\n{ran.out}{ran.err}"


@contextmanager
def two_members(servers: str) -> Iterator[None]:
    """Consumer-1 has partitions 0 and 1 and is 100 records behind, Consumer-2 has partition 2 and is at its end."""
    with BlockingProducer(servers) as producer:
        for number in range(300):
            producer.submit("events", str(number), partition=number % 3)
    consumers = [
        BlockingConsumer(servers, group="my-group", client_id=name, strategy="range", auto_commit=False)
        for name in ("Consumer-1", "Consumer-2")
    ]
    for consumer in consumers:
        consumer.subscribe("events")
    while [len(consumer.assignment()) for consumer in consumers] != [2, 1]:
        for consumer in consumers:
            consumer.poll(timeout_s=0.05)
    for consumer, offset in zip(consumers, (50, 100), strict=True):
        consumer.commit(dict.fromkeys(consumer.assignment(), offset))
    yield
    for consumer in consumers:
        consumer.close()


def test_the_page_is_what_happens(
    cli: CommandLine, penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = penstock_broker_factory({"group.initial.rebalance.delay.ms": "0"}, durable=True)
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    page = sessions()
    assert list(page) == ["Topics", "Records", "Consumer groups", "The cluster"]
    (topics, replicas, settings), (records,), (with_members, without), (cluster,) = page.values()
    replay(cli, topics)
    replay(cli, replicas)
    replay(cli, settings)
    replay(cli, records)
    with two_members(broker.bootstrap_servers):
        replay(cli, with_members)
    replay(cli, without)
    replay(cli, cluster)


def test_the_page_has_every_command_of_the_seed() -> None:
    lines = {line for blocks in sessions().values() for block in blocks for line, _ in block}
    assert {
        "streaming-system topics describe --name events",
        "streaming-system groups list",
        "streaming-system groups describe --group my-group",
        "streaming-system groups reset-offsets --group my-group --topic events --to-earliest",
        "streaming-system cluster status",
        "streaming-system cluster under-replicated",
        "streaming-system lag --group my-group",
    } <= lines
