"""The time for a consumer group to form, and to settle after members leave, by protocol.

The members are stock clients in a few processes (`group_members`). The clock starts with the command to join, before
they have a connection, and with the command for some to leave. It stops with the last change of a member's partitions:
every partition has one holder, no member holds two more than another, and this stays so for a while.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from bench.brokers import Broker, BrokerMaker
from bench.load.client import Client
from bench.load.driver import LoadFailed
from bench.load.group_members import READY, End, Held, Join, Leave, Membership, serve
from bench.results import Metrics, Outcome
from bench.runner import FAILURES, Side
from bench.scenarios import GroupOfMembers, Scenario

PROCESSES = 4
QUIET_S = 2.0
# From the group's forming to the leaving, round by round. Stock members send a heartbeat every 3 s, all at the same
# time since they got their partitions at the same time, and a broker may be able to tell them of a change only then:
# so the rounds spread over such an interval, and the first of them lies before any heartbeat, where holding one cannot
# help.
RESTS_S = (3.5, 2.0, 4.5, 5.5)
TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0

# As in Apache Kafka's own properties file; otherwise the wait of 3 s is most of the result.
BROKER_SETTINGS = "group.initial.rebalance.delay.ms=0\n"


class _Group:
    """The partitions of all members, as reported."""

    def __init__(self, partition_count: int, pipes: Sequence[Connection]) -> None:
        self._partition_count = partition_count
        self._pipes = pipes
        self._held: dict[int, frozenset[int]] = {}

    def tell(self, command: Join | Leave) -> float:
        now = time.monotonic()
        for pipe in self._pipes:
            pipe.send(command)
        return now

    def settled_at(self, members: Sequence[int]) -> float:
        """The time of the last change before the group was settled. Raises LoadFailed."""
        deadline = time.monotonic() + TIMEOUT_S
        changed_at = time.monotonic()
        while True:
            for pipe in wait(self._pipes, timeout=0.1):
                assert isinstance(pipe, Connection)
                held = _receive(pipe)
                assert isinstance(held, Held)
                self._held[held.member] = held.partitions
                if held.member in members:
                    changed_at = held.at
            now = time.monotonic()
            if self._is_settled(members):
                if now - changed_at >= QUIET_S:
                    return changed_at
            elif now > deadline:
                counts = sorted(len(self._held.get(member, ())) for member in members)
                raise LoadFailed(f"not settled within {TIMEOUT_S:.0f} s: {sum(counts)} partitions held, {counts} each")

    def _is_settled(self, members: Sequence[int]) -> bool:
        held = [self._held.get(member, frozenset()) for member in members]
        counts = [len(one) for one in held]
        return (
            sum(counts) == self._partition_count == len(frozenset[int]().union(*held))
            and max(counts) - min(counts) <= 1
        )


def _receive(pipe: Connection) -> object:
    try:
        return pipe.recv()
    except EOFError:
        raise LoadFailed("a process of members ended by itself") from None


@contextmanager
def _processes(membership: Membership, members: Sequence[int]) -> Iterator[list[Connection]]:
    """Members dealt out to processes that are ready; they leave and the processes end, whatever happens."""
    context = multiprocessing.get_context("spawn")
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        for number in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, membership, members[number::PROCESSES]))
            process.start()
            theirs.close()
            running.append((process, ours))
        pipes = [pipe for _, pipe in running]
        for pipe in pipes:
            assert _receive(pipe) == READY
        yield pipes
    finally:
        for process, pipe in running:
            if process.is_alive():
                pipe.send(End())
        for process, pipe in running:
            while process.is_alive() and pipe.poll(END_TIMEOUT_S):
                try:
                    pipe.recv()  # what it still had to say: a full pipe would keep it from ending
                except EOFError:
                    break
            process.join(END_TIMEOUT_S)
            process.kill()
            pipe.close()


def measure(broker: Broker, load: GroupOfMembers, topic: str, group: str, rest_s: float) -> Metrics:
    members = range(load.members)
    leaving = frozenset(range(0, load.members, load.members // load.leaving)[: load.leaving])
    staying = [member for member in members if member not in leaving]
    cpu_s = broker.cpu_s()
    with _processes(Membership(broker.port, group, topic, load.protocol), members) as pipes:
        watched = _Group(load.partitions, pipes)
        begin = watched.tell(Join())
        formed_at = watched.settled_at(members)
        form_s = formed_at - begin
        time.sleep(max(0.0, formed_at + rest_s - time.monotonic()))
        begin = watched.tell(Leave(leaving))
        settle_s = watched.settled_at(staying) - begin
        cpu_s = broker.cpu_s() - cpu_s
    return {"form_s": form_s, "settle_s": settle_s, "group_cpu_s": cpu_s}


def configured(make: BrokerMaker) -> BrokerMaker:
    """The same brokers with `BROKER_SETTINGS`."""

    def made(name: str) -> Broker:
        broker = make(name)
        with broker.properties.open("a") as properties:
            properties.write(BROKER_SETTINGS)
        return broker

    return made


def _warm_up(broker: Broker, loads: Sequence[GroupOfMembers]) -> None:
    partitions = {_topic(load): load.partitions for load in loads}
    with Client(broker.port) as client:
        for topic, count in partitions.items():
            client.create_topic(topic, count)
        client.wait_for_leaders(partitions)
    for load in loads:
        measure(broker, replace(load, members=8, leaving=2), _topic(load), f"warm-{load.protocol}", QUIET_S)


def run_rounds(
    sides: Sequence[Side],
    scenarios: Sequence[tuple[Scenario, GroupOfMembers]],
    rounds: int,
    outcomes: dict[str, Outcome],
    progress: Callable[[str], None],
) -> None:
    """Interleaved: each round has every protocol on every broker. A small group before it all is not measured."""
    for side in sides:
        progress(f"{side.broker.label:<12} warming up with 8 members")
        _warm_up(side.broker, [load for _, load in scenarios])
    for number in range(1, rounds + 1):
        rest_s = RESTS_S[number % len(RESTS_S)]
        for scenario, load in scenarios:
            for side in sides:
                label = f"{side.broker.label:<12} {load.protocol:<8} round {number}"
                try:
                    metrics = measure(side.broker, load, _topic(load), f"{scenario.name}-{number}", rest_s)
                except FAILURES as error:
                    side.broker.check_alive()
                    outcomes[scenario.name].failures.append(f"{side.broker.label}, round {number}: {error}")
                    progress(f"{label}: FAILED: {error}")
                    metrics = {}
                else:
                    shown = ", ".join(f"{name} {metrics[name]:.3g}" for name in scenario.shown)
                    progress(f"{label}: {shown}")
                outcomes[scenario.name].rounds.setdefault(side.key, []).append(metrics)


def _topic(load: GroupOfMembers) -> str:
    return f"group-{load.partitions}"
