"""The KIP-848 protocol over one group: members as clients behave, time and topics as arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.group.assignors import Assignment
from penstock.core.group.consumer_exchange import ConsumerHeartbeatReply, ConsumerHeartbeatRequest, ConsumerSettings
from penstock.core.group.consumer_group import ConsumerGroup, ConsumerState, TopicInfo
from penstock.core.group.consumer_protocol import ConsumerProtocol, validate
from penstock.core.group.consumer_records import decode
from penstock.core.group.story import Stories, What
from penstock.core.group.topic_regex import matching_topics
from penstock.core.shard.exchange import Outcome
from penstock.core.shard.timers import Timers
from penstock.model.errors import ApiError, ErrorCode


class FakeTopics:
    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self._topics: dict[str, TopicInfo] = {}
        for name, count in partitions.items():
            self.set(name, count)

    def set(self, name: str, partitions: int) -> None:
        self.version += 1
        known = self._topics.get(name)
        topic_id = known.topic_id if known else self.version.to_bytes(16, "big")
        self._topics[name] = TopicInfo(topic_id, partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def find(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, info in self._topics.items() if info.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return list(self._topics)

    def id_of(self, name: str) -> bytes:
        return self._topics[name].topic_id


class World:
    """A group, its log and its clock. Every record goes through its bytes before it is replayed."""

    def __init__(self, *, settings: ConsumerSettings = ConsumerSettings(), **partitions: int) -> None:  # noqa: B008
        self.topics = FakeTopics(**partitions)
        self.timers, self.stories = Timers(), Stories()
        self.protocol = ConsumerProtocol(self.topics, self.timers, self.stories)
        self.settings = settings
        self.group = ConsumerGroup("g")
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1_000_000

    def apply(self, out: Outcome) -> None:
        for record in out.records:
            self.log.append((record.encode_key(), record.encode_value()))
            self.group.replay(decode(*self.log[-1]))

    def beat(self, member_id: str, epoch: int, **fields: object) -> ConsumerHeartbeatReply:
        request = ConsumerHeartbeatRequest("g", member_id, epoch, **fields)  # type: ignore[arg-type]
        validate(request, self.settings, brings_member_id=True)
        out = Outcome()
        if epoch >= 0:
            reply = self.protocol.heartbeat(self.group, request, self.settings, self.now_ms, out)
        else:
            self.protocol.check_leave(self.group, request)
            if epoch == -2:
                self.protocol.go_away(self.group, member_id, out)
            else:
                gone = {member_id: (What.LEFT, "")}
                self.protocol.remove(self.group, gone, self.settings, self.now_ms, out)
            reply = ConsumerHeartbeatReply(ErrorCode.NONE, None, member_id, epoch)
        self.apply(out)
        return reply

    def join(self, member_id: str, *topics: str, **fields: object) -> ConsumerHeartbeatReply:
        defaults: dict[str, object] = {"rebalance_timeout_ms": 60_000, "topic_names": topics, "owned": {}}
        return self.beat(member_id, 0, **{**defaults, **fields})

    def wait(self, ms: int) -> None:
        """Let time pass, with the timers that run out meanwhile."""
        end = self.now_ms + ms
        while (deadline := self.timers.next_deadline()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            for kind, _, member_id in self.timers.take_due(self.now_ms):
                if gone := self.protocol.overdue(self.group, kind, member_id, self.settings):
                    out = Outcome()
                    self.protocol.remove(self.group, gone, self.settings, self.now_ms, out)
                    self.apply(out)
        self.now_ms = end

    def reloaded(self) -> ConsumerGroup:
        """From the log as compaction leaves it."""
        last = {key: (position, value) for position, (key, value) in enumerate(self.log)}
        group = ConsumerGroup("g")
        for key, (_, value) in sorted(last.items(), key=lambda item: item[1][0]):
            group.replay(decode(key, value))
        return group

    def story(self) -> list[What]:
        return [event.what for event in self.stories.of("g")]


class Client:
    """A member as librdkafka and the Java client are: it acknowledges a revocation by saying what it owns."""

    def __init__(self, world: World, member_id: str, *topics: str, **fields: object) -> None:
        self.world, self.member_id, self.topics = world, member_id, topics
        self.epoch = 0
        self.owned: dict[bytes, frozenset[int]] = {}
        self.assignment: Assignment | None = None
        self.interval_ms = 0
        self.fields = fields
        self.accept(world.join(member_id, *topics, **fields))

    def accept(self, reply: ConsumerHeartbeatReply) -> None:
        self.epoch, self.interval_ms = reply.member_epoch, reply.heartbeat_interval_ms
        if reply.assignment is not None:
            self.assignment = reply.assignment

    def beat(self) -> None:
        """Take what was given, give up what was taken, say so."""
        if self.assignment is not None:
            self.owned = dict(self.assignment)
            self.assignment = None
            self.accept(self.world.beat(self.member_id, self.epoch, owned=self.owned))
        else:
            self.accept(self.world.beat(self.member_id, self.epoch))

    def partitions(self) -> set[tuple[bytes, int]]:
        return {(topic, partition) for topic, held in self.owned.items() for partition in held}


def settle(world: World, *clients: Client) -> None:
    for _ in range(20):
        world.wait(1_000)
        for client in clients:
            client.beat()
        if world.group.state is ConsumerState.STABLE and all(client.assignment is None for client in clients):
            return
    pytest.fail(f"not stable after 20 s: {world.group.state}, {world.group.current}")


def code_of(call: object, *args: object, **fields: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call(*args, **fields)  # type: ignore[operator]
    return caught.value.code


def test_the_first_member_gets_everything_at_once() -> None:
    world = World(t=3)
    reply = world.join("m1", "t")
    assert (reply.member_epoch, reply.assignment) == (2, {world.topics.id_of("t"): frozenset({0, 1, 2})})
    assert world.group.state is ConsumerState.STABLE
    assert world.story() == [What.JOINED, What.ASSIGNED]


def test_a_topic_that_is_not_there_yet_counts_as_a_subscription() -> None:
    world = World()
    reply = world.join("m1", "t")
    assert (reply.member_epoch, reply.assignment) == (2, {})
    world.topics.set("t", 3)
    world.wait(1_000)
    assert world.beat("m1", 2).member_epoch == 3


@pytest.mark.parametrize("fields", [{"topic_names": None, "topic_regex": "t.*"}, {"topic_names": ()}])
def test_who_subscribes_to_nothing_yet_leaves_the_group_epoch_at_its_first(fields: dict[str, object]) -> None:
    world = World(other=1)
    reply = world.join("m1", **fields)
    assert (reply.member_epoch, reply.assignment) == (1, {})
    assert world.group.state is ConsumerState.STABLE
    again = world.reloaded()
    for name in ("epoch", "metadata_hash", "assignment_epoch", "members", "current", "target", "regexes"):
        assert getattr(again, name) == getattr(world.group, name), name
    assert {event.generation for event in world.stories.of("g")} == {1}


def test_an_expression_brings_the_next_epoch_with_the_first_topic_that_matches() -> None:
    world = World()
    world.join("m1", topic_names=None, topic_regex="t.*")
    world.topics.set("t", 3)
    reply = world.beat("m1", 1)
    assert (reply.member_epoch, reply.assignment) == (2, {world.topics.id_of("t"): frozenset({0, 1, 2})})
    world.topics.delete("t")
    world.wait(1_000)
    reply = world.beat("m1", 2)
    assert (reply.member_epoch, reply.assignment) == (2, {}), "it may still own them"


def test_an_assignment_is_sent_only_when_it_changed_or_everything_was_said() -> None:
    world = World(t=1)
    world.join("m1", "t")
    held = {world.topics.id_of("t"): frozenset({0})}
    assert world.beat("m1", 2).assignment is None
    assert world.beat("m1", 2, owned=held).assignment is None
    full = world.beat("m1", 2, owned=held, topic_names=("t",), rebalance_timeout_ms=60_000)
    assert full.assignment == held
    assert full.member_epoch == 2


def test_a_partition_is_given_only_after_its_owner_gave_it_up() -> None:
    world = World(t=2)
    topic = world.topics.id_of("t")
    first = Client(world, "m1", "t")
    first.beat()
    world.wait(1_000)
    second = Client(world, "m2", "t")
    assert second.assignment == {}
    assert world.group.state is ConsumerState.RECONCILING

    first.beat()  # learns what to give up, still owns both
    assert len(first.partitions()) == 2
    second.beat()
    assert second.assignment is None, "nothing is free yet"
    assert first.epoch == 2, "the epoch stays until the partitions are given up"
    first.beat()  # says that it did
    assert first.epoch == 3
    second.beat()
    assert second.assignment is not None
    given = {topic: second.assignment[topic]}
    assert given[topic].isdisjoint(first.owned[topic])
    second.beat()
    assert world.group.state is ConsumerState.STABLE


def test_changes_within_the_assignment_interval_share_one_assignment() -> None:
    world = World(t=8)
    clients = [Client(world, f"m{index}", "t") for index in range(4)]
    assert world.group.assignment_epoch == 2
    assert [client.epoch for client in clients] == [2] * 4
    assert world.group.state is ConsumerState.ASSIGNING
    assert clients[3].interval_ms == 1_000, "come back when the next assignment may be made"
    settle(world, *clients)
    assert world.group.assignment_epoch == world.group.epoch == 5
    assert [len(client.partitions()) for client in clients] == [2] * 4
    assert world.story().count(What.ASSIGNED) == 2


def test_members_hurry_while_they_wait_and_never_beyond_what_is_configured() -> None:
    world = World(t=2, settings=ConsumerSettings(heartbeat_interval_ms=3_000))
    first = Client(world, "m1", "t")
    assert first.interval_ms == 1_000
    first.beat()
    world.wait(1_000)
    second = Client(world, "m2", "t")
    assert second.interval_ms == 500
    settle(world, first, second)
    assert second.interval_ms == 1_000
    world.settings = ConsumerSettings(heartbeat_interval_ms=300)
    second.beat()
    assert second.interval_ms == 300


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    world = World(t=4)
    clients = [Client(world, f"m{index}", "t") for index in range(2)]
    settle(world, *clients)
    reply = world.beat("m0", -1)
    assert (reply.member_epoch, reply.assignment) == (-1, None)
    settle(world, clients[1])
    assert len(clients[1].partitions()) == 4
    assert What.LEFT in world.story()
    world.beat("m1", -1)
    assert world.group.state is ConsumerState.EMPTY
    assert world.story()[-1] is What.EMPTY


def test_a_silent_member_times_out_and_a_beating_one_does_not() -> None:
    world = World(t=4)
    clients = [Client(world, f"m{index}", "t") for index in range(2)]
    settle(world, *clients)
    for _ in range(46):
        world.wait(1_000)
        clients[1].beat()
    assert list(world.group.members) == ["m1"]
    settle(world, clients[1])
    assert len(clients[1].partitions()) == 4
    event = next(event for event in world.stories.of("g") if event.what is What.TIMED_OUT)
    assert (event.member, event.why) == ("m0", "no heartbeat for 45000 ms")


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    world = World(t=4)
    first = Client(world, "m1", "t", rebalance_timeout_ms=5_000)
    first.beat()
    world.wait(1_000)
    second = Client(world, "m2", "t")
    first.beat()
    for _ in range(5):
        assert "m1" in world.group.members
        world.beat("m1", first.epoch)
        second.beat()
        world.wait(1_000)
    assert "m1" not in world.group.members
    assert code_of(world.beat, "m1", first.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, second)
    assert len(second.partitions()) == 4


@pytest.mark.parametrize(("epoch", "owned"), [(9, {}), (-7, {}), (2, None)])
def test_a_wrong_epoch_is_fenced(epoch: int, owned: Assignment | None) -> None:
    world = World(t=1)
    client = Client(world, "m1", "t")
    client.beat()
    world.topics.set("t", 2)
    world.wait(1_000)
    client.beat()
    assert client.epoch == 3
    if epoch == -7:
        assert code_of(world.beat, "m1", epoch) is ErrorCode.INVALID_REQUEST
    else:
        assert code_of(world.beat, "m1", epoch, owned=owned) is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_previous_epoch_is_taken_once_more_if_the_reply_was_lost() -> None:
    world = World(t=1)
    client = Client(world, "m1", "t")
    client.beat()
    world.topics.set("t", 2)
    world.wait(1_000)
    client.beat()  # epoch 3; suppose that the reply is lost
    held = {world.topics.id_of("t"): frozenset({0})}
    assert world.beat("m1", 2, owned=held).member_epoch == 3
    too_much = {world.topics.id_of("t"): frozenset({0, 7})}
    assert code_of(world.beat, "m1", 2, owned=too_much) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_rejoins_with_its_id() -> None:
    world = World(t=2)
    client = Client(world, "m1", "t")
    client.beat()
    assert code_of(world.beat, "m1", 5) is ErrorCode.FENCED_MEMBER_EPOCH
    reply = world.join("m1", "t")
    assert (reply.member_epoch, reply.assignment) == (2, {world.topics.id_of("t"): frozenset({0, 1})})
    assert world.group.epoch == 2, "nothing changed for anybody"


def test_added_partitions_new_and_deleted_topics_bump_the_epoch() -> None:
    world = World(t=1, other=5)
    client = Client(world, "m1", "t", "later")
    client.beat()
    world.topics.set("other", 6)
    client.beat()
    assert world.group.epoch == 2, "nobody subscribes to it"
    world.topics.set("t", 3)
    settle(world, client)
    assert (world.group.epoch, len(client.partitions())) == (3, 3)
    world.topics.set("later", 2)
    settle(world, client)
    assert (world.group.epoch, len(client.partitions())) == (4, 5)
    world.topics.delete("t")
    settle(world, client)
    assert (world.group.epoch, client.owned) == (5, {world.topics.id_of("later"): frozenset({0, 1})})
    assert world.story().count(What.TOPICS_CHANGED) == 3


def test_a_smaller_subscription_is_revoked_before_there_is_a_new_target() -> None:
    world = World(t=1, u=1)
    client = Client(world, "m1", "t", "u")
    other = Client(world, "m2", "t", "u")
    settle(world, client, other)
    world.wait(1_000)
    Client(world, "m3", "t", "u")  # uses up this interval's assignment
    mine = next(iter(client.owned))
    name = world.topics.name_of(mine)
    keep = "u" if name == "t" else "t"
    reply = world.beat("m1", client.epoch, topic_names=(keep,))
    assert reply.assignment == {}
    assert world.group.epoch > world.group.assignment_epoch


def test_static_member_comes_back_under_a_new_id_and_finds_what_it_had() -> None:
    world = World(t=4)
    first = Client(world, "m1", "t", instance_id="one")
    second = Client(world, "m2", "t", instance_id="two")
    settle(world, first, second)
    epoch, held = world.group.epoch, dict(first.owned)
    assert world.beat("m1", -2, instance_id="one").member_epoch == -2
    world.wait(2_000)
    second.beat()
    assert world.group.epoch == epoch, "nobody else hears of it"
    reply = world.join("m9", "t", instance_id="one")
    assert (reply.member_epoch, reply.assignment) == (epoch, held)
    assert world.group.epoch == epoch
    assert sorted(world.group.members) == ["m2", "m9"]
    assert code_of(world.beat, "m1", epoch, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID
    assert What.REPLACED in world.story()


def test_static_member_that_comes_back_under_the_same_id_keeps_its_session() -> None:
    world = World(t=2)
    client = Client(world, "m1", "t", instance_id="one")
    client.beat()
    world.beat("m1", -2, instance_id="one")
    assert world.join("m1", "t", instance_id="one").assignment == client.owned
    world.wait(45_001)
    assert not world.group.members, "the session is watched again"


def test_static_member_that_stays_away_is_removed_when_its_session_ends() -> None:
    world = World(t=2)
    client = Client(world, "m1", "t", instance_id="one")
    client.beat()
    world.beat("m1", -2, instance_id="one")
    world.wait(44_000)
    assert world.group.members
    world.wait(2_000)
    assert not world.group.members
    assert code_of(world.beat, "m1", 1, instance_id="one") is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_id_in_use_is_not_released() -> None:
    world = World(t=2)
    Client(world, "m1", "t", instance_id="one")
    assert code_of(world.join, "m2", "t", instance_id="one") is ErrorCode.UNRELEASED_INSTANCE_ID


def test_the_assignor_most_members_ask_for_is_used() -> None:
    world = World(t=4, settings=ConsumerSettings(assignment_interval_ms=0))
    clients = [Client(world, f"m{index}", "t", server_assignor="range") for index in range(2)]
    settle(world, *clients)
    topic = world.topics.id_of("t")
    assert clients[0].owned == {topic: frozenset({0, 1})}
    assert clients[1].owned == {topic: frozenset({2, 3})}
    assert code_of(world.join, "m3", "t", server_assignor="magic") is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_full_group_takes_nobody_else() -> None:
    world = World(t=4, settings=ConsumerSettings(max_size=1))
    Client(world, "m1", "t")
    assert code_of(world.join, "m2", "t") is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    "fields",
    [
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": {b"0" * 16: frozenset({1})}},
        {"topic_names": None},
        {"instance_id": ""},
        {"rack_id": " "},
        {"instance_id": "i" * 32_768},
        {"topic_regex": "é" * 16_384},
    ],
)
def test_a_join_that_does_not_say_enough_is_invalid(fields: dict[str, object]) -> None:
    assert code_of(World(t=1).join, "m1", "t", **fields) is ErrorCode.INVALID_REQUEST


def test_an_unknown_member_is_told_so() -> None:
    world = World(t=1)
    Client(world, "m1", "t")
    assert code_of(world.beat, "m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(world.beat, "m2", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_subscription_by_expression_follows_the_topics() -> None:
    world = World(**{"foo-1": 1, "bar": 1})
    client = Client(world, "m1", topic_regex="foo.*")
    settle(world, client)
    assert set(client.owned) == {world.topics.id_of("foo-1")}
    world.topics.set("foo-2", 2)
    settle(world, client)
    assert len(client.partitions()) == 3
    world.topics.delete("foo-1")
    settle(world, client)
    assert len(client.partitions()) == 2
    client.accept(world.beat("m1", client.epoch, topic_regex="", topic_names=("bar",)))
    settle(world, client)
    assert (set(client.owned), world.group.regexes) == ({world.topics.id_of("bar")}, {})


def test_an_expression_that_makes_no_sense_is_refused_and_a_costly_one_is_not_costly() -> None:
    world = World(**{"a" * 200 + "b": 1})
    assert code_of(world.join, "m1", topic_regex="(foo") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not world.group.members
    assert world.join("m1", topic_regex="(a+)+c").assignment == {}


def test_what_an_expression_said_is_kept_and_still_true() -> None:
    assert matching_topics("a.*", ["ab", "b", "a"]) == ("a", "ab")
    assert matching_topics("a.*", ["ac", "b", "a"]) == ("a", "ac")
    many = [f"a{number}" for number in range(3_000)]
    assert len(matching_topics("a.*", many)) == 3_000
    assert matching_topics("a.*", ["b"]) == ()
    with pytest.raises(ApiError, match="longer than 32767"):
        matching_topics("x" * 40_000, [])


def test_a_group_reloaded_from_a_compacted_log_is_the_same_group() -> None:
    world = World(t=6)
    clients = [Client(world, f"m{index}", "t", instance_id=f"i{index}") for index in range(3)]
    settle(world, *clients)
    world.beat("m0", -1, instance_id="i0")
    world.wait(1_000)
    clients[1].beat()
    again = world.reloaded()
    for name in ("epoch", "metadata_hash", "assignment_epoch", "members", "current", "target", "static_members"):
        assert getattr(again, name) == getattr(world.group, name), name
    assert again.owners == world.group.owners
    for record in world.group.tombstones():
        world.group.replay(record)
    assert (world.group.members, world.group.owners, world.group.target, world.group.epoch) == ({}, {}, {}, 1)


actions = st.lists(
    st.tuples(
        st.sampled_from(["join", "beat", "beat", "beat", "beat", "leave", "vanish", "grow", "wait", "change"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(actions)
@settings(max_examples=150, deadline=None)
def test_no_partition_has_two_owners_whatever_happens_and_the_group_settles(steps: list[tuple[str, int]]) -> None:
    world = World(t=5, u=3)
    clients: dict[str, Client] = {}
    serial = 0
    for action, choice in steps:
        names = sorted(clients)
        name = names[choice % len(names)] if names else None
        if action == "join" and len(clients) < 6:
            serial += 1
            clients[f"m{serial}"] = Client(world, f"m{serial}", *(("t", "u") if choice % 2 else ("t",)))
        elif action == "grow":
            world.topics.set("t", 5 + choice)
        elif action == "wait":
            world.wait(100 * (choice + 1))
        elif name is None:
            continue
        elif action == "beat":
            clients[name].beat()
        elif action == "change":
            topics = ("u",) if choice % 2 else ("t", "u")
            clients[name].accept(world.beat(name, clients[name].epoch, topic_names=topics))
        elif action == "leave":
            world.beat(name, -1)
            del clients[name]
        elif action == "vanish":
            world.wait(45_001)
            for survivor in [other for other in names if other not in world.group.members]:
                del clients[survivor]
        held = [key for client in clients.values() for key in client.partitions()]
        assert len(held) == len(set(held)), f"two owners after {action}"
        assert world.reloaded().owners == world.group.owners
    if clients:
        settle(world, *clients.values())
        topics = {topic for client in clients.values() for topic in world.group.subscribed_names() if client}
        wanted = sum(info.partitions for topic in topics if (info := world.topics.find(topic)))
        assert sum(len(client.partitions()) for client in clients.values()) == wanted
