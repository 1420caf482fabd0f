"""Random histories of a group: every request is answered once, nobody shares, and the log tells it all."""

from __future__ import annotations

from group_driver import GROUP, NO_DELAY, Driver, assignment
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.exchange import JoinReply, LeavingMember, SyncReply
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import State
from penstock.core.shard.exchange import Token
from penstock.model.errors import ErrorCode

PARTITIONS = 6
actions = st.tuples(
    st.sampled_from(
        [
            "new",
            "static",
            "join",
            "sync",
            "heartbeat",
            "held heartbeat",
            "commit",
            "leave",
            "leave static",
            "wait",
            "long wait",
            "restart",
        ]
    ),
    st.integers(0, 5),
)


class Histories:
    """Clients that do as the protocol says, except that any of them may stop, come back or be lost."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.members: list[tuple[str, str | None]] = []
        self.parked: dict[Token, str] = {}
        self.last_committed = -1

    def act(self, action: str, which: int) -> None:
        driver = self.driver
        member, instance = self.members[which % len(self.members)] if self.members else ("nobody", None)
        group = driver.shard.groups.get(GROUP)
        generation = group.generation if group is not None else 0
        match action:
            case "new":
                reply = driver.joined(driver.join())
                self.members.append((reply.member_id, None))
            case "static":
                name = f"i{which % 3}"
                driver.join(instance_id=name)
                group = driver.shard.groups[GROUP]
                self.members.append((group.instances[name], name))
            case "join":
                driver.join(member, instance_id=instance)
            case "sync":
                driver.sync(member, generation, self.share(group), instance_id=instance)
            case "heartbeat":
                driver.heartbeat(member, generation, instance)
            case "held heartbeat":
                driver.hold_heartbeat(member, generation)
            case "commit":
                if driver.commit(self.last_committed + 1, member, generation) is ErrorCode.NONE:
                    self.last_committed += 1
            case "leave":
                driver.leave(LeavingMember(member, instance))
            case "leave static":
                driver.leave(LeavingMember("", f"i{which % 3}"))
            case "wait":
                driver.wait(which * 1_000)
            case "long wait":
                driver.wait(which * 30_000)
            case "restart":
                driver.restart()

    def share(self, group: ClassicGroup | None) -> dict[str, bytes]:
        members = list(group.members) if group is not None else []
        shares: dict[str, list[int]] = {member: [] for member in members}
        for partition in range(PARTITIONS):
            if members:
                shares[members[partition % len(members)]].append(partition)
        return {member: assignment(t=partitions) for member, partitions in shares.items()}


def check(driver: Driver) -> None:
    group = driver.shard.groups.get(GROUP)
    if group is None:
        return
    waiting = [member for member in group.members.values() if member.join_token is not None]
    assert group.awaiting_join == len(waiting)
    assert set(group.instances.values()) == {m.member_id for m in group.members.values() if m.instance_id is not None}
    supporters: dict[str, int] = {}
    for member in group.members.values():
        for name, _ in member.protocols:
            supporters[name] = supporters.get(name, 0) + 1
    assert group.supporters == supporters
    assert (group.leader in group.members) == bool(group.members)
    if group.state in (State.STABLE, State.EMPTY):
        assert not waiting
        assert not any(member.sync_token is not None for member in group.members.values())
    assert (group.state is State.EMPTY) <= (not group.members)


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=60), st.sampled_from([0, 3_000]), st.sampled_from([0, 250]))
def test_histories(history: list[tuple[str, int]], delay_ms: int, settle_ms: int) -> None:
    driver = Driver(NO_DELAY._replace(initial_rebalance_delay_ms=delay_ms, settle_ms=settle_ms))
    clients = Histories(driver)
    asked_before_restart = 0
    for action, which in history:
        clients.act(action, which)
        check(driver)
        if action == "restart":
            asked_before_restart = driver.tokens
    assert driver.committed() == (clients.last_committed if clients.last_committed >= 0 else None)
    # Everybody falls silent: every request is answered in the end, and the group is empty.
    driver.wait(3_600_000)
    unanswered = [token for token in range(asked_before_restart + 1, driver.tokens + 1) if token not in driver.replies]
    assert unanswered == []
    group = driver.shard.groups.get(GROUP)
    assert group is None or (group.state is State.EMPTY and not group.pending)


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=60))
def test_the_log_tells_the_stable_state(history: list[tuple[str, int]]) -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0))
    clients = Histories(driver)
    for action, which in history:
        clients.act(action, which)
    group = driver.shard.groups.get(GROUP)
    if group is None or group.state is not State.STABLE:
        return
    before = (group.generation, group.leader, {m.member_id: m.assignment for m in group.members.values()})
    driver.restart()
    group = driver.shard.groups[GROUP]
    assert group.state is State.STABLE
    assert (group.generation, group.leader, {m.member_id: m.assignment for m in group.members.values()}) == before


def test_a_hundred_members_cost_little() -> None:
    """Each join is one step; only the end of a phase looks at everybody."""
    driver = Driver(GroupSettings())
    tokens = dict(driver.new_member() for _ in range(100))
    driver.wait(10_000)
    replies = [driver.replies[token] for token in tokens.values()]
    assert all(isinstance(reply, JoinReply) and reply.generation == 1 for reply in replies)
    assert sum(len(reply.members) for reply in replies if isinstance(reply, JoinReply)) == 100
    leader = driver.shard.groups[GROUP].leader
    syncs = [driver.sync(member, 1) for member in tokens if member != leader]
    assert not any(token in driver.replies for token in syncs)
    assert leader is not None
    driver.sync(leader, 1, dict.fromkeys(tokens, b"x"))
    assert [driver.replies[token] for token in syncs] == [SyncReply(ErrorCode.NONE, "consumer", "range", b"x")] * 99
    assert len(driver.log) == 1
