"""The table of roles, walked whole: every role x input leads somewhere or is a named error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.metadata.image import NO_LEADER, PartitionState
from penstock.core.partition.roles import (
    LEADING,
    TRANSITIONS,
    Act,
    IllegalTransition,
    Input,
    Role,
    heard,
    transition_of,
)

HERE, ELSEWHERE = 1, 2
METADATA = (Input.OUTDATED, Input.FOLLOW, Input.LEAD, Input.LEAD_ALONE, Input.GO_ON, Input.GO_ON_ALONE)
WITH_A_WORKER = (Role.HELD, Role.BEING_CUT)
KNOWN = PartitionState(0, replicas=(1, 2, 3), leader=ELSEWHERE, leader_epoch=4, isr=(1, 2), partition_epoch=9)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("given", Input)
def test_every_input_leads_somewhere_or_is_a_named_error(role: Role, given: Input) -> None:
    if (role, given) in TRANSITIONS:
        assert transition_of(role, given) is TRANSITIONS[role, given]
    else:
        with pytest.raises(IllegalTransition, match=f"a {role.value} cannot handle this event: {given.value}"):
            transition_of(role, given)


def test_what_is_illegal() -> None:
    illegal = {(role, given) for role in Role for given in Input} - {*TRANSITIONS}
    leaders_are_not_cut = {(role, given) for role in LEADING for given in (Input.CUT_BEGINS, Input.CUT_ENDS)}
    nothing_ends = {(Role.NEW, Input.CUT_ENDS), (Role.FOLLOWER, Input.CUT_ENDS)}
    a_worker_has_the_log = {(role, Input.LOG_REOPENED) for role in WITH_A_WORKER}
    gone = {(Role.DELETED, given) for given in (*METADATA, Input.LOG_REOPENED, Input.DELETE)}
    assert illegal == leaders_are_not_cut | nothing_ends | a_worker_has_the_log | gone


def test_the_table_names_only_what_there_is() -> None:
    assert {step.act for step in TRANSITIONS.values()} == {*Act}
    assert {step.role for step in TRANSITIONS.values()} == {*Role}


@pytest.mark.parametrize("given", METADATA)
@pytest.mark.parametrize("role", WITH_A_WORKER)
def test_while_a_worker_has_the_log_the_metadata_waits(role: Role, given: Input) -> None:
    assert TRANSITIONS[role, given] == (role, Act.PUT_OFF)


@pytest.mark.parametrize("given", METADATA)
@pytest.mark.parametrize("role", [role for role in Role if role not in WITH_A_WORKER])
def test_nothing_else_waits(role: Role, given: Input) -> None:
    assert (role, given) not in TRANSITIONS or TRANSITIONS[role, given].act is not Act.PUT_OFF


def test_who_begins_to_lead_takes_over_and_who_stops_resigns() -> None:
    """Waiters for the high watermark are told of it, and no replica leads without an epoch start of its own."""
    for (role, given), (target, act) in TRANSITIONS.items():
        if target in LEADING and (role not in LEADING or given in (Input.LEAD, Input.LEAD_ALONE)):
            assert act is Act.TAKE_OVER, (role, given)
        if role in LEADING and target not in LEADING:
            assert act in (Act.RESIGN, Act.FORGET), (role, given)
        assert act is not Act.RESIGN or role in LEADING


def test_only_metadata_makes_leaders() -> None:
    made_by = {given for (role, given), step in TRANSITIONS.items() if step.role in LEADING and step.role is not role}
    assert made_by == {Input.LEAD, Input.LEAD_ALONE, Input.GO_ON, Input.GO_ON_ALONE}


def test_nothing_leads_out_of_deletion() -> None:
    assert {step for (role, _), step in TRANSITIONS.items() if role is Role.DELETED} == {
        (Role.DELETED, Act.IGNORE),
        (Role.DELETED, Act.REFUSE),
    }


def test_a_cut_ends_where_it_began() -> None:
    for role in (Role.NEW, Role.FOLLOWER):
        begun = TRANSITIONS[role, Input.CUT_BEGINS]
        assert begun.act is Act.HAND_OVER
        assert TRANSITIONS[begun.role, Input.CUT_ENDS] == (role, Act.TAKE_BACK)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.DELETED])
def test_an_offline_log_is_not_a_role(role: Role) -> None:
    assert TRANSITIONS[role, Input.LOG_OFFLINE] == (role, Act.FAIL)


@pytest.mark.parametrize(
    ("told", "given"),
    [
        (replace(KNOWN, partition_epoch=8), Input.OUTDATED),
        (replace(KNOWN, leader=HERE, leader_epoch=3, partition_epoch=10), Input.OUTDATED),
        (replace(KNOWN, leader=HERE, leader_epoch=5, partition_epoch=8), Input.OUTDATED),
        (KNOWN, Input.FOLLOW),
        (replace(KNOWN, leader=NO_LEADER, leader_epoch=5, partition_epoch=10), Input.FOLLOW),
        (replace(KNOWN, leader=3, leader_epoch=5, partition_epoch=10), Input.FOLLOW),
        (replace(KNOWN, leader=HERE, leader_epoch=5, partition_epoch=10), Input.LEAD),
        (replace(KNOWN, leader=HERE, leader_epoch=5, partition_epoch=10, replicas=(1,)), Input.LEAD_ALONE),
        (replace(KNOWN, leader=HERE, partition_epoch=10, isr=(1, 2, 3)), Input.GO_ON),
        (replace(KNOWN, leader=HERE), Input.GO_ON),
        (replace(KNOWN, leader=HERE, partition_epoch=10, replicas=(1,)), Input.GO_ON_ALONE),
    ],
)
def test_what_the_metadata_says(told: PartitionState, given: Input) -> None:
    assert heard(KNOWN, told, HERE) is given
