"""Why a command went without an answer although a broker answers: nobody decides for the cluster.

Asked only after a command failed. A broker that answers sends on what only the controller can answer, and says after a
while that there is none; clients hear of that as a request that timed out, or as brokers that are gone.
"""

from __future__ import annotations

from penstock.cli.connection import Target, ask_api_versions, connect_problem, is_starting
from penstock.client.blocking_cluster import BlockingCluster
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.errors import ClientError as WireError
from penstock.client.errors import ConnectionLost, RequestTimedOut
from penstock.client.security import security_from_settings
from penstock.model.errors import ApiError, ErrorCode, PenstockError

# A broker looks for a controller for 5 s before it says that there is none.
LOOK_S = 7.0
UNANSWERED = frozenset((ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT))


def no_controller(target: Target, failure: PenstockError) -> PenstockError | None:
    """What to say instead of `failure`; None if that says it best."""
    from penstock.clients import DeliveryFailed, TimedOut, Unreachable

    kinds = (DeliveryFailed, TimedOut, Unreachable, RequestTimedOut, ConnectionLost)
    is_unanswered = isinstance(failure, ApiError) and failure.code in UNANSWERED
    if not is_unanswered and not isinstance(failure, kinds):
        return None
    place = _who_answers(target)
    if place is None:
        return None
    if isinstance(failure, ApiError) and failure.code is ErrorCode.NOT_CONTROLLER:
        return _told(place, failure)
    security = security_from_settings({name: str(value) for name, value in target.settings.items()})
    cluster = BlockingCluster(target.addresses(), "penstock-cli", security, LOOK_S)
    try:
        ClusterAdmin(cluster).quorum()
    except ApiError as error:
        return _told(place, error) if error.code is ErrorCode.NOT_CONTROLLER else None
    except WireError:
        return None
    finally:
        cluster.close()
    return None


def _told(place: str, error: ApiError) -> PenstockError:
    said = str(error)
    return PenstockError(f"{place} answers, but {said[:1].lower()}{said[1:]}")


def _who_answers(target: Target) -> str | None:
    """The first address of a broker that serves. Not over TLS, where it cannot be asked so simply."""
    if "ssl" in str(target.settings.get("security.protocol", "")).lower():
        return None
    for host, port in target.addresses():
        if (
            not connect_problem(host, port)
            and ask_api_versions(host, port, target.timeout_s) == "kafka"
            and not is_starting(host, port)
        ):
            return f"{host}:{port}"
    return None
