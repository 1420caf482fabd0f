"""Groups of the KIP-848 protocol: confluent-kafka with `group.protocol=consumer` against a real process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from group_processes import (
    PATIENCE_S,
    CommitWatch,
    Member,
    Trickle,
    check_history,
    create_topic,
    wait_until,
    wait_until_shared,
)

from support.processes.broker import BrokerProcess

PARTITIONS = 6
CONSUMER = "group.protocol=consumer"
# A member that is killed is missed after a session; stock settings do not go below 45 s.
SETTINGS = {"group.consumer.session.timeout.ms": "6000", "group.consumer.min.session.timeout.ms": "6000"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kip848"), SETTINGS) as process:
        yield process
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


@pytest.fixture(scope="module")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def group(topic: str) -> str:
    return f"group-{topic}"


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def start(bootstrap: str, topic: str, group: str) -> Iterator[Callable[..., Member]]:
    """Starts members of one group on one topic; what still runs at the end is killed."""
    members: list[Member] = []

    def start_member(*options: str) -> Member:
        member = Member("confluent", bootstrap, group, topic, *options)
        members.append(member)
        return member

    yield start_member
    for member in members:
        member.end_if_running()


@pytest.fixture
def consume(bootstrap: str, group: str) -> Iterator[Callable[..., Consumer]]:
    """Consumers within this process; closed at the end."""
    consumers: list[Consumer] = []

    def subscribe(*topics: str, **settings: str) -> Consumer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "log_level": 0, **named}
        )
        consumers.append(consumer)
        consumer.subscribe(list(topics))
        return consumer

    yield subscribe
    for consumer in consumers:
        consumer.close()


def wait_until_assigned(consumers: list[Consumer], *counts: int) -> None:
    def is_assigned() -> bool:
        for consumer in consumers:
            consumer.poll(0.02)
        return [len(consumer.assignment()) for consumer in consumers] == list(counts)

    wait_until(is_assigned, f"assignments of {counts}")


def describe(admin: AdminClient, group: str) -> ConsumerGroupDescription:
    return admin.describe_consumer_groups([group])[group].result(PATIENCE_S)


def test_members_come_leave_and_are_killed(
    bootstrap: str, topic: str, group: str, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    watch = CommitWatch(bootstrap, group)
    try:
        first, second, third = (start(CONSUMER) for _ in range(3))
        wait_until_shared([first, second, third], PARTITIONS)
        second.kill()
        wait_until_shared([first, third], PARTITIONS)
        assert third.leave() < 5
        wait_until_shared([first], PARTITIONS)
        fourth = start(CONSUMER)
        wait_until_shared([first, fourth], PARTITIONS)
    finally:
        delivered = trickle.stop()
        time.sleep(0.5)
        latest = watch.stop()
    wait_until(lambda: delivered <= first.handled | second.handled | third.handled | fourth.handled, "the last records")
    first.leave()
    fourth.leave()
    check_history([first, second, third, fourth], delivered)
    assert len(latest) == PARTITIONS


def test_members_never_stop_reading_what_they_keep(bootstrap: str, topic: str, start: Callable[..., Member]) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first, second = (start(CONSUMER, "commit=async") for _ in range(2))
        wait_until_shared([first, second], PARTITIONS)
        settled = time.time()
        third = start(CONSUMER, "commit=async")
        wait_until_shared([first, second, third], PARTITIONS)
        end = time.time()
    finally:
        delivered = trickle.stop()
    wait_until(lambda: delivered <= first.handled | second.handled | third.handled, "the last records")
    for member in (first, second, third):
        member.leave()
    check_history([first, second, third], delivered)
    for member in (first, second):
        revoked = [
            partition
            for event in member.of("revoked")
            if settled < event["at"] < end
            for partition in event["partitions"]
        ]
        assert len(revoked) == 1, "each of two gives up one of its three partitions, and nothing else"
        handled = [event for event in member.of("record") if settled < event["at"] < end]
        kept = {event["partition"] for event in handled} - set(revoked)
        assert len(kept) == 2
        for partition in kept:
            offsets = [event["offset"] for event in handled if event["partition"] == partition]
            assert offsets == list(range(offsets[0], offsets[-1] + 1)), "kept is read on, without a second start"


def test_a_static_member_that_is_back_in_time_is_not_missed(
    bootstrap: str, topic: str, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first, second = (start(CONSUMER, f"group.instance.id={name}") for name in "ab")
        wait_until_shared([first, second], PARTITIONS)
        generation, had = first.generation, second.handled_since(time.time() - 0.5)
        second.leave()  # a static member says that it will be back
        successor = start(CONSUMER, "group.instance.id=b")
        wait_until_shared([first, successor], PARTITIONS)
        assert successor.handled_since(time.time() - 0.5) == had
    finally:
        trickle.stop()
    assert first.generation == successor.generation == generation
    assert [event for event in first.of("revoked") if event["at"] > successor.events[0]["at"]] == []


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_group_moves_to_the_new_protocol_and_back_while_it_reads(
    strategy: str, bootstrap: str, topic: str, group: str, admin: AdminClient, start: Callable[..., Member]
) -> None:
    """One consumer after the other is replaced, as in a rolling restart, and then back."""
    create_topic(bootstrap, topic, PARTITIONS)
    classic = (f"partition.assignment.strategy={strategy}",)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    watch = CommitWatch(bootstrap, group)
    everybody: list[Member] = []
    try:
        old = [start(*classic) for _ in range(2)]
        everybody += old
        wait_until_shared(old, PARTITIONS)
        assert describe(admin, group).type is ConsumerGroupType.CLASSIC
        new = start(CONSUMER)
        everybody.append(new)
        wait_until_shared([*old, new], PARTITIONS)
        assert describe(admin, group).type is ConsumerGroupType.CONSUMER
        old[0].leave()
        wait_until_shared([old[1], new], PARTITIONS)
        other = start(*classic)  # a classic member of a consumer group
        everybody.append(other)
        wait_until_shared([old[1], new, other], PARTITIONS)
        new.leave()
        wait_until_shared([old[1], other], PARTITIONS)
        assert describe(admin, group).type is ConsumerGroupType.CLASSIC
    finally:
        delivered = trickle.stop()
        time.sleep(0.5)
        watch.stop()
    wait_until(lambda: delivered <= set().union(*(member.handled for member in everybody)), "the last records")
    old[1].leave()
    other.leave()
    check_history(everybody, delivered)


def test_members_live_through_a_crash_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        create_topic(broker.bootstrap_servers, "t", PARTITIONS)
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "group.protocol": "consumer"}
        consumers = [Consumer({**settings, "log_level": 0}) for _ in range(2)]
        moves: list[str] = []
        for consumer in consumers:
            consumer.subscribe(
                ["t"],
                on_assign=lambda _, partitions: moves.append(f"+{len(partitions)}"),
                on_revoke=lambda _, partitions: moves.append(f"-{len(partitions)}"),
            )
        wait_until_assigned(consumers, 3, 3)
        before = [consumer.assignment() for consumer in consumers]
        moves.clear()
        broker.kill()
        broker.start()
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            for consumer in consumers:
                consumer.poll(0.05)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert describe(admin, "g").state is ConsumerGroupState.STABLE
        assert ([consumer.assignment() for consumer in consumers], moves) == (before, [])
        for consumer in consumers:
            consumer.close()


def test_subscription_by_expression_follows_the_topics(
    bootstrap: str, topic: str, admin: AdminClient, consume: Callable[..., Consumer]
) -> None:
    create_topic(bootstrap, f"{topic}-a", 2)
    consumer = consume(f"^{topic}-.*", **{"topic.metadata.refresh.interval.ms": "500"})
    wait_until_assigned([consumer], 2)
    create_topic(bootstrap, f"{topic}-b", 3)
    wait_until_assigned([consumer], 5)
    admin.delete_topics([f"{topic}-a"])[f"{topic}-a"].result(PATIENCE_S)
    wait_until_assigned([consumer], 3)


def test_added_partitions_are_assigned(
    bootstrap: str, topic: str, admin: AdminClient, consume: Callable[..., Consumer]
) -> None:
    create_topic(bootstrap, topic, 2)
    consumers = [consume(topic) for _ in range(2)]
    wait_until_assigned(consumers, 1, 1)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
    wait_until_assigned(consumers, 2, 2)


def test_a_topic_that_comes_later_is_assigned_then(
    bootstrap: str, topic: str, admin: AdminClient, consume: Callable[..., Consumer]
) -> None:
    consumer = consume(topic)
    consumer.poll(0.5)
    admin.create_topics([NewTopic(topic, 3)])[topic].result(PATIENCE_S)
    wait_until_assigned([consumer], 3)


def test_the_assignor_of_the_group_and_how_it_is_described(
    bootstrap: str, topic: str, group: str, admin: AdminClient, consume: Callable[..., Consumer]
) -> None:
    create_topic(bootstrap, topic, 4)
    consumers = [consume(topic, group_remote_assignor="range", client_id=f"c{index}") for index in range(2)]
    wait_until_assigned(consumers, 2, 2)
    parts = sorted(sorted(held.partition for held in consumer.assignment()) for consumer in consumers)
    assert parts == [[0, 1], [2, 3]]
    said = describe(admin, group)
    assert (said.state, said.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert said.partition_assignor == "range"
    assert sorted(member.client_id for member in said.members) == ["c0", "c1"]
    assert sorted(len(member.assignment.topic_partitions) for member in said.members) == [2, 2]
    for member in said.members:
        assert member.target_assignment.topic_partitions == member.assignment.topic_partitions
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_S)
    assert group in [entry.group_id for entry in listed.valid]
    with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)


def test_an_assignor_that_nobody_knows_is_refused(bootstrap: str, topic: str, consume: Callable[..., Consumer]) -> None:
    create_topic(bootstrap, topic, 1)
    consumer = consume(topic, group_remote_assignor="magic")
    said: list[str] = []

    def is_refused() -> bool:
        message = consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            said.append(error.str())
        return any("assignor" in text.lower() for text in said)

    wait_until(is_refused, "UNSUPPORTED_ASSIGNOR")


def test_a_group_may_have_a_session_of_its_own(
    bootstrap: str, topic: str, group: str, admin: AdminClient, start: Callable[..., Member]
) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    resource = ConfigResource(
        ResourceType.GROUP,
        group,
        incremental_configs=[
            ConfigEntry("consumer.session.timeout.ms", "12000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    trickle = Trickle(bootstrap, topic, PARTITIONS)
    try:
        first, second = (start(CONSUMER) for _ in range(2))
        wait_until_shared([first, second], PARTITIONS)
        second.kill()
        killed = time.monotonic()
        wait_until_shared([first], PARTITIONS)
        # At most a heartbeat of its interval had passed when it was killed.
        assert 9 < time.monotonic() - killed < 20
    finally:
        trickle.stop()
