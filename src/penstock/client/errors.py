"""What can go wrong between a client and a broker, besides an error code in an answer (`ApiError`).

ClientError
+-- BrokerUnreachable    nothing was sent, or nothing that has an effect
+-- ConnectionLost       sent and not answered: it may or may not have happened
+-- RequestTimedOut      likewise
`-- Overloaded           refused here, before anything was sent: a bound of the client is reached
"""

from __future__ import annotations

from penstock.model.errors import ApiError, ErrorCode, PenstockError


class ClientError(PenstockError):
    pass


class BrokerUnreachable(ClientError):
    pass


class ConnectionLost(ClientError):
    pass


class RequestTimedOut(ClientError):
    pass


class Overloaded(ClientError):
    pass


def error_code(number: int) -> ErrorCode:
    """A code that is newer than this client is an unknown error, not a crash."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, message: str | None = None) -> None:
    if number:
        raise ApiError(error_code(number), message or None)
