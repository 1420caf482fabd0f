"""Why a command went without an answer although a broker answers: nobody decides for the cluster.

Asked only after a command failed. A broker that answers sends on what only the controller can answer, and says after a
while that there is none; clients hear of that as a request that timed out, or as brokers that are gone.
"""

from __future__ import annotations

from penstock.cli.connection import Starting, Target, ask_api_versions, connect_problem, is_starting
from penstock.cli.voters import named_voters, quorum_at, tried, verdict, what_to_do
from penstock.client.errors import ConnectionLost, RequestTimedOut
from penstock.model.errors import ApiError, ErrorCode, PenstockError

UNANSWERED = frozenset((ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT))


def no_controller(target: Target, failure: PenstockError) -> PenstockError | None:
    """What to say instead of `failure`; None if that says it best."""
    if not _may_be_for_want_of_one(failure):
        return None
    # A broker that is cut off from the others hangs up on most questions, and knows who they are.
    address = failure.address if isinstance(failure, Starting) else _who_answers(target)
    if address is None:
        return None
    if isinstance(failure, ApiError) and failure.code is ErrorCode.NOT_CONTROLLER:
        return _told(address, failure)
    try:
        quorum_at(target, address)
    except ApiError as error:
        return _told(address, error)
    return None


def _may_be_for_want_of_one(failure: PenstockError) -> bool:
    from penstock.clients import DeliveryFailed, Refused, TimedOut, Unreachable

    if isinstance(failure, ApiError):
        return failure.code in UNANSWERED
    if isinstance(failure, Refused):
        return failure.name == ErrorCode.NOT_CONTROLLER.name
    return isinstance(failure, (DeliveryFailed, TimedOut, Unreachable, RequestTimedOut, ConnectionLost, Starting))


def _told(address: tuple[str, int], error: ApiError) -> PenstockError:
    place = f"{address[0]}:{address[1]}"
    voters = tried(named_voters(str(error)))
    if not voters:
        said = str(error)
        return PenstockError(f"{place} answers, but {said[:1].lower()}{said[1:]}")
    problems = "; ".join(f"node {one.node_id} at {one.address}: {one.problem}" for one in voters if one.problem)
    return PenstockError(
        f"{place} answers, but the cluster has no controller: {verdict(voters)}"
        f"{f' ({problems})' if problems else ''}. {what_to_do(voters)} `penstock doctor` tells more"
    )


def _who_answers(target: Target) -> tuple[str, int] | None:
    """The first address of a broker that serves, else of one that is up. Not over TLS, where it cannot be asked so
    simply."""
    if "ssl" in str(target.settings.get("security.protocol", "")).lower():
        return None
    up = [
        (host, port)
        for host, port in target.addresses()
        if not connect_problem(host, port) and ask_api_versions(host, port, target.timeout_s) == "kafka"
    ]
    return next((address for address in up if not is_starting(*address)), up[0] if up else None)
