"""Explains why a command failed although a broker answers: the cluster has no controller.

The check runs only after a command failed, and is short: the command has used up its time. A broker forwards some
requests to the controller, and says after a while that there is none. Clients see that as a request that timed out, as
brokers that are gone, or as coordinators and leaders that are elsewhere. A command that only reads metadata may show
old metadata then, and prints a warning (`warn_of_old_news`).
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import click

from penstock.cli.cluster.voters import (
    ANSWER_S,
    MOMENT_S,
    MOST_AT_ONCE,
    has_controller,
    named_voters,
    tried,
    verdict,
    what_to_do,
)
from penstock.cli.reach.connection import Starting, Target, connect_problem
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.wire_client.requests.errors import ConnectionLost, RequestTimedOut

UNANSWERED = frozenset(
    (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
)
# librdkafka has kept an old name.
_UNANSWERED_NAMES = {"NOT_LEADER_FOR_PARTITION"}.union(code.name for code in UNANSWERED)
TRY_VOTERS_S = 1.0
OTHERS_S = 0.3
"""How long to wait for the other brokers after one has found no controller."""


def no_controller(target: Target, failure: PenstockError) -> PenstockError | None:
    """The error to show instead of `failure`; None if `failure` is the better one."""
    if not _may_be_for_want_of_one(failure):
        return None
    if isinstance(failure, ApiError) and failure.code is ErrorCode.NOT_CONTROLLER:
        return next((_told(at, failure) for at in target.addresses() if not connect_problem(*at, ANSWER_S)), None)
    refused = _refusal(target)
    return None if refused is None else _told(*refused)


def warn_of_old_news(target: Target) -> None:
    """Without a controller nobody notices brokers that are gone: the metadata of a broker may be old."""
    refused = _refusal(target)
    if refused is not None:
        told = _told(*refused)
        click.echo(f"penstock: warning: this metadata may be out of date: {told}", err=True)


def _may_be_for_want_of_one(failure: PenstockError) -> bool:
    from penstock.sdk import DeliveryFailed, Refused, TimedOut, Unreachable

    if isinstance(failure, ApiError):
        return failure.code in UNANSWERED
    if isinstance(failure, Refused):
        return failure.name in _UNANSWERED_NAMES
    return isinstance(failure, (DeliveryFailed, TimedOut, Unreachable, RequestTimedOut, ConnectionLost, Starting))


def _refusal(target: Target) -> tuple[Address, ApiError] | None:
    """The first broker that answers and finds no controller; None if another broker finds one.

    All brokers are asked at once, since one that hangs takes its time.
    """
    addresses = target.addresses()
    pool = ThreadPoolExecutor(min(MOST_AT_ONCE, len(addresses)) or 1)
    asked = [pool.submit(has_controller, target, address) for address in addresses]
    deadline = time.monotonic() + MOMENT_S + ANSWER_S
    done, waiting = wait(asked, deadline - time.monotonic(), FIRST_COMPLETED)
    while waiting and time.monotonic() < deadline:
        if any(one.exception() is not None for one in done):
            deadline = min(deadline, time.monotonic() + OTHERS_S)
        more, waiting = wait(waiting, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        done |= more
    pool.shutdown(wait=False, cancel_futures=True)
    found: tuple[Address, ApiError] | None = None
    for address, one in zip(addresses, asked, strict=True):
        if one not in done:
            continue
        try:
            if one.result():
                return None
        except ApiError as error:
            found = found or (address, error)
    return found


def _told(address: Address, error: ApiError) -> PenstockError:
    place = f"{address[0]}:{address[1]}"
    voters = tried(named_voters(str(error)), TRY_VOTERS_S)
    if not voters:
        said = str(error)
        return PenstockError(f"{place} answers, but {said[:1].lower()}{said[1:]}")
    problems = "; ".join(f"node {one.node_id} at {one.address}: {one.problem}" for one in voters if one.problem)
    return PenstockError(
        f"{place} answers, but the cluster has no controller: {verdict(voters)}"
        f"{f' ({problems})' if problems else ''}. {what_to_do(voters)} `penstock doctor` shows more"
    )
