"""Every role of a real partition meets every input: it ends where the table says, and its flags say the same."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.core.metadata.image import PartitionState
from penstock.core.partition.roles import LEADING, TRANSITIONS, Act, IllegalTransition, Input, Role
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica.partition import Partition
from penstock.storage.cut import Cut
from support.worlds.hosted import HostedWorld
from support.worlds.hosts import Listening

HERE, ELSEWHERE = 1, 2
SEVERAL, ALONE = (HERE, ELSEWHERE), (HERE,)


class Replica:
    def __init__(self) -> None:
        hosted = HostedWorld({"t": {}}).hosted.get("t", 0)
        self.log = hosted.log
        self.partition = Partition("t", hosted.topic_id, 0, self.log, hosted.config, hosted._commit, hosted.host)
        self.cut: Cut | None = None
        self.offline: list[Partition] = []
        self.partition.host.events = Listening(log_unusable=self.offline.append)

    def hear(self, leader: int, replicas: tuple[int, ...], *, is_new_epoch: bool) -> None:
        known = self.partition.metadata
        leader_epoch, partition_epoch = known.leader_epoch + is_new_epoch, known.partition_epoch + 1
        self.partition.apply_state(PartitionState(0, replicas, leader, leader_epoch, replicas, partition_epoch))

    def hear_outdated(self) -> None:
        known = self.partition.metadata
        self.partition.apply_state(replace(known, leader=HERE, partition_epoch=known.partition_epoch - 1))

    def begin_cut(self) -> None:
        self.cut = self.partition.begin_anew(0)

    def end_cut(self) -> None:
        cut = self.cut or Cut(0, lambda is_again: pytest.fail("there is nothing to do"))
        if self.cut is not None:
            cut.run()
        self.partition.end_cut(cut)

    def delete(self) -> None:
        self.partition.delete()
        self.log.close(clean=False)


def made(role: Role) -> Replica:
    replica = Replica()
    if role in (Role.FOLLOWER, Role.BEING_CUT):
        replica.hear(ELSEWHERE, SEVERAL, is_new_epoch=True)
    elif role in LEADING:
        replica.hear(HERE, SEVERAL if role is Role.LEADER else ALONE, is_new_epoch=True)
    if role in (Role.BEING_CUT, Role.HELD, Role.DELETED):
        replica.begin_cut()
    if role is Role.DELETED:
        replica.delete()
    return replica


GIVE: dict[Input, Callable[[Replica], None]] = {
    Input.OUTDATED: Replica.hear_outdated,
    Input.FOLLOW: lambda replica: replica.hear(ELSEWHERE, SEVERAL, is_new_epoch=True),
    Input.LEAD: lambda replica: replica.hear(HERE, SEVERAL, is_new_epoch=True),
    Input.LEAD_ALONE: lambda replica: replica.hear(HERE, ALONE, is_new_epoch=True),
    Input.GO_ON: lambda replica: replica.hear(HERE, SEVERAL, is_new_epoch=False),
    Input.GO_ON_ALONE: lambda replica: replica.hear(HERE, ALONE, is_new_epoch=False),
    Input.CUT_BEGINS: Replica.begin_cut,
    Input.CUT_ENDS: Replica.end_cut,
    Input.LOG_OFFLINE: lambda replica: replica.partition._went_offline(OSError(errno.EIO, "gone")),
    Input.LOG_REOPENED: lambda replica: replica.partition.reopened(replica.log),
    Input.LEASE_OVER: lambda replica: replica.partition.lease_over(),
    Input.DELETE: Replica.delete,
}


def append(partition: Partition) -> None:
    data = build_batch([Record(b"k", b"v", (), 1)])
    partition.append(read_header(data), data, 1)


@pytest.mark.parametrize("role", Role)
def test_the_makers_make_their_roles(role: Role) -> None:
    assert made(role).partition.role is role


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("given", Input)
def test_every_role_meets_everything(role: Role, given: Input) -> None:
    replica = made(role)
    partition, known = replica.partition, replica.partition.metadata
    expected = TRANSITIONS.get((role, given))
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"a {role.value} cannot handle this event: {given.value}"):
            GIVE[given](replica)
        assert not (role in LEADING and partition.log.is_being_cut)
    elif expected.act is Act.REFUSE:
        with pytest.raises((ApiError, StorageError)):
            GIVE[given](replica)
    else:
        GIVE[given](replica)
    after = role if expected is None else expected.role
    assert partition.role is after
    assert partition.is_leader is (after in LEADING)
    assert partition.is_deleted is (after is Role.DELETED)
    assert (partition.followers is not None) is (after is Role.LEADER)
    assert partition.is_told_later is (expected is not None and expected.act is Act.PUT_OFF)
    if expected is None or expected.act in (Act.IGNORE, Act.PUT_OFF, Act.REFUSE):
        assert partition.metadata is known
    assert bool(replica.offline) is (expected is not None and expected.act is Act.FAIL)
    if after in LEADING:
        append(partition)
    else:
        with pytest.raises(ApiError) as refused:
            append(partition)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("role", [Role.HELD, Role.BEING_CUT])
def test_what_was_put_off_is_done_when_the_cut_has_ended(role: Role) -> None:
    replica = made(role)
    replica.hear(HERE, SEVERAL, is_new_epoch=True)
    assert not replica.partition.is_leader
    replica.end_cut()
    assert replica.partition.role is Role.LEADER
    assert not replica.partition.is_told_later


def test_a_deletion_does_not_wait_for_a_cut_and_nothing_comes_after_it() -> None:
    replica = made(Role.BEING_CUT)
    replica.hear(HERE, SEVERAL, is_new_epoch=True)
    replica.delete()
    replica.end_cut()
    assert replica.partition.role is Role.DELETED
